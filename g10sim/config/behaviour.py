"""Behaviour of memory management: that of hardware, or that of the published simulator.

Every departure of the published G10 simulator from the hardware is one parameter here; ``compat: gpg``
sets them all (``docs/deviations.md`` numbers them).
"""

from __future__ import annotations

from typing import Annotated, Literal

from g10sim.config.effects import COPIES, PAGES, Effect
from g10sim.config.quantities import Count, Spec

_PLANS = Effect(lambda run, _: run.has_policy("plans"), "with a policy that plans", "no policy plans")
_BATCHES = Effect(
    lambda run, _: run.is_paged and run.is_batched,
    "with transfers batched and a policy that moves pages",
    "no pages move in batches",
)
_OWN_ADDRESSES = Effect(
    lambda run, compat: run.has_policy("frees_itself") or (run.is_paged and compat.addresses == "own"),
    "with addresses own and a policy that moves pages",
    "addresses come from an allocator, and stay mapped",
)
_FURTHER_TIERS = Effect(
    lambda run, _: run.is_paged and sum(tier.capacity > 0 for tier in run.config.system.all_tiers) > 1,
    "with a policy that moves pages, and several memory tiers",
    "no pages move, or one memory tier has room",
)
_WITH_SSD = Effect(
    lambda run, _: any(tier.kind == "ssd" for tier in run.config.system.all_tiers),
    "with an SSD",
    "there is no SSD",
)
_ITERATIONS = Effect(
    lambda run, _: run.most_iterations > 1, "with several iterations", "there is one iteration"
)


class BehaviourSpec(Spec):
    """Parameters whose defaults model the hardware."""

    transfers: Annotated[Literal["fluid", "batched"], PAGES] = "fluid"
    """fluid: constant rates between changes; batched: DMA batches with integer quotas"""
    batch_pages: Annotated[Count, _BATCHES] = 50
    """pages of one DMA batch"""
    addresses: Annotated[Literal["pooled", "own"], PAGES] = "pooled"
    """own: every tensor has its own addresses; pooled: those of designs on unified memory come from a caching
    allocator, stay mapped when a tensor dies, and are used again"""
    tensor_order: Literal["use", "trace"] = "use"
    """order of persistent tensors in the allocator, and of any that are otherwise equal: that of their first
    use, or that of the trace"""
    recency: Annotated[Literal["use", "arrival"], PAGES] = "arrival"
    """what moves pages to the recent end of the eviction order: use by a kernel, or arrival (with addresses
    from an allocator: of any page of a chunk of page_fault.group, as in the driver)"""
    dead_tensors: Annotated[Literal["released", "kept"], _OWN_ADDRESSES] = "released"
    """of tensors with their own addresses. released: freed at death; kept: stay until evicted, and are
    written out like live ones"""
    running_tensors: Literal["pinned", "evictable"] = "pinned"
    """whether the running kernel's pages may be evicted"""
    initial_tier: Annotated[Literal["first", "last"], _FURTHER_TIERS] = "first"
    """tier in which persistent tensors of unified memory lie before the first iteration: the first that has
    room for the tensor, or the last"""
    flash_capacity: Annotated[Literal["limited", "unlimited"], _WITH_SSD] = "limited"
    """whether the SSD can fill up"""
    fault_cost: Annotated[Literal["latency", "profiled"], PAGES] = "latency"
    """latency: each batch of faults waits; profiled: closed form over profiled durations"""
    compute_overlap: Annotated[Literal["after_arrival", "while_arriving"], PAGES] = "after_arrival"
    """whether a kernel computes while the pages it waits for are still arriving"""
    reported_iteration: Annotated[Literal["last", "fastest"], _ITERATIONS] = "last"
    """iteration that results report"""
    breakdown: Literal["computing", "in_flight"] = "computing"
    """what overlaps: transfers while a kernel computes, or time in flight beyond its stall"""
    planner_gigabyte: Annotated[Literal["decimal", "binary"], _PLANS] = "decimal"
    """what planners take GB/s for: 1e9 or 2^30 bytes/s"""
    planner: Annotated[Literal["live", "published"], _PLANS] = "live"
    """how the designs of the G10 paper plan. live: by what is alive, each tensor to the tier that costs
    least; published: by all tensors all the time, the SSD first"""
    copy_gigabyte: Annotated[Literal["decimal", "binary"], COPIES] = "decimal"
    """what copies of whole tensors (contiguous memory) take GB/s for: 1e9 or 2^30 bytes/s"""
    copy_latency: Annotated[Literal["ssd", "none"], COPIES] = "ssd"
    """what each copy of a whole tensor from or to the SSD waits for"""
    copy_host_path: Annotated[Literal["shared", "split"], COPIES] = "shared"
    """shared: copies from and to the host have what others leave of the link; split: they always have the
    link's rate less the SSD's"""
    copy_memory: Annotated[Literal["system", "published"], COPIES] = "system"
    """GPU memory of designs that copy whole tensors: the system's, or as many times that as the published
    simulator plans with and executes with (1.06 and 4 for most)"""
    copy_iterations: Annotated[Literal["all", "first"], COPIES] = "all"
    """iterations that designs that copy whole tensors are simulated for"""
    absent_weights: Annotated[Literal["fetched", "ignored"], COPIES] = "fetched"
    """whether kernels wait for copied weights that are not on the GPU, or run without them"""
    unread_tensors: Annotated[Literal["allocated", "skipped"], COPIES] = "allocated"
    """whether results that no kernel reads need memory in designs with a scratch buffer"""
    reported_digits: Annotated[Literal["all", "six"], COPIES] = "all"
    """digits of reported milliseconds of designs that copy whole tensors"""


GPG = BehaviourSpec(
    transfers="batched",
    addresses="own",
    tensor_order="trace",
    recency="arrival",
    dead_tensors="kept",
    running_tensors="evictable",
    initial_tier="last",
    flash_capacity="unlimited",
    fault_cost="profiled",
    compute_overlap="while_arriving",
    reported_iteration="fastest",
    breakdown="in_flight",
    planner_gigabyte="binary",
    planner="published",
    copy_gigabyte="binary",
    copy_latency="none",
    copy_host_path="split",
    copy_memory="published",
    copy_iterations="first",
    absent_weights="ignored",
    unread_tensors="skipped",
    reported_digits="six",
)

PRESETS = {"gpg": GPG}
