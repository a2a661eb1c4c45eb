"""Behaviour of memory management: that of hardware, or that of the published simulator.

Every departure of the published G10 simulator from the hardware is one parameter here; ``compat: gpg``
sets them all (``docs/deviations.md`` numbers them).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from g10sim.config.quantities import Count, Spec


class BehaviourSpec(Spec):
    """Parameters whose defaults model the hardware."""

    transfers: Literal["fluid", "batched"] = Field(
        default="fluid",
        description="fluid: constant rates between changes; batched: DMA batches with integer quotas",
    )
    batch_pages: Count = Field(default=50, description="pages of one DMA batch")
    addresses: Literal["pooled", "own"] = Field(
        default="pooled",
        description="own: every tensor has its own addresses; pooled: those of designs on unified memory"
        " come from a caching allocator, stay mapped when a tensor dies, and are used again",
    )
    tensor_order: Literal["use", "trace"] = Field(
        default="use",
        description="order of persistent tensors in the allocator, and of any that are otherwise equal: that"
        " of their first use, or that of the trace",
    )
    recency: Literal["use", "arrival"] = Field(
        default="arrival",
        description="what moves pages to the recent end of the eviction order: use by a kernel, or arrival"
        " (with addresses from an allocator: of any page of a chunk of page_fault.group, as in the driver)",
    )
    dead_tensors: Literal["released", "kept"] = Field(
        default="released",
        description="of tensors with their own addresses. released: freed at death; kept: stay until"
        " evicted, and are written out like live ones",
    )
    running_tensors: Literal["pinned", "evictable"] = Field(
        default="pinned", description="whether the running kernel's pages may be evicted"
    )
    initial_tier: Literal["first", "last"] = Field(
        default="first",
        description="tier in which persistent tensors of unified memory lie before the first iteration:"
        " the first that has room for the tensor, or the last",
    )
    flash_capacity: Literal["limited", "unlimited"] = Field(
        default="limited", description="whether the SSD can fill up"
    )
    fault_cost: Literal["latency", "profiled"] = Field(
        default="latency",
        description="latency: each group of faults waits; profiled: closed form over profiled durations",
    )
    compute_overlap: Literal["after_arrival", "while_arriving"] = Field(
        default="after_arrival",
        description="whether a kernel computes while the pages it waits for are still arriving",
    )
    reported_iteration: Literal["last", "fastest"] = Field(
        default="last", description="iteration that results report"
    )
    breakdown: Literal["computing", "in_flight"] = Field(
        default="computing",
        description="what overlaps: transfers while a kernel computes, or time in flight beyond its stall",
    )
    planner_gigabyte: Literal["decimal", "binary"] = Field(
        default="decimal", description="what planners take GB/s for: 1e9 or 2^30 bytes/s"
    )
    planner: Literal["live", "published"] = Field(
        default="live",
        description="how the designs of the G10 paper plan. live: by what is alive, each tensor to the tier"
        " that costs least; published: by all tensors all the time, the SSD first",
    )
    copy_gigabyte: Literal["decimal", "binary"] = Field(
        default="decimal",
        description="what copies of whole tensors (contiguous memory) take GB/s for: 1e9 or 2^30 bytes/s",
    )
    copy_latency: Literal["ssd", "none"] = Field(
        default="ssd", description="what each copy of a whole tensor from or to the SSD waits for"
    )
    copy_host_path: Literal["shared", "split"] = Field(
        default="shared",
        description="shared: copies from and to the host have what others leave of the link; split: they "
        "always have the link's rate less the SSD's",
    )
    copy_memory: Literal["system", "published"] = Field(
        default="system",
        description="GPU memory of designs that copy whole tensors: the system's, or as many times that as "
        "the published simulator plans with and executes with (1.06 and 4 for most)",
    )
    copy_iterations: Literal["all", "first"] = Field(
        default="all", description="iterations that designs that copy whole tensors are simulated for"
    )
    absent_weights: Literal["fetched", "ignored"] = Field(
        default="fetched",
        description="whether kernels wait for copied weights that are not on the GPU, or run without them",
    )
    unread_tensors: Literal["allocated", "skipped"] = Field(
        default="allocated",
        description="whether results that no kernel reads need memory in designs with a scratch buffer",
    )
    reported_digits: Literal["all", "six"] = Field(
        default="all",
        description="digits of reported milliseconds of designs that copy whole tensors",
    )


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
