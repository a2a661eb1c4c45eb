"""Settings that make keys of a run configuration count: a key that does nothing where it stands is refused.

Only keys that the user wrote are judged: in the file, as a setting, or swept. What a preset or a system in
its own file fills in is not, nor is a key that may not be left out. A key is refused if it changes no
number in any combination of swept values, under any of the policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.host import HostSpec, PinnedSpec
from g10sim.config.run import JobSpec, RunConfig, WorkloadSpec, most_iterations
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.ssd import FlashSsdSpec, SsdSpec
from g10sim.config.system import GpuSpec, PageFaultSpec, PcieSpec, SystemSpec
from g10sim.config.tiers import MemoryTierSpec, SsdTierSpec


@dataclass(frozen=True)
class PolicyTraits:
    """Properties of a policy that decide which keys count.

    ``is_paged``: memory moves in pages; ``copies``: whole tensors are copied, ``copies_to_host``: to host
    memory, too, where buffers that are left are unpinned (``unpins``); ``plans``: it plans for the machine;
    ``keeps_service``: links are served as the system says; ``frees_itself``: it is paged, and its tensors
    have their own addresses whatever the others have; ``pins``: it moves pages, and says which tensors are
    pinned in host memory; ``pins_on_use``: it moves pages, and buffers in host memory are pinned when they
    are used first.
    """

    is_paged: bool
    frees_itself: bool
    copies: bool
    plans: bool
    keeps_service: bool
    copies_to_host: bool = False
    unpins: bool = False
    pins: bool = False
    pins_on_use: bool = False


@dataclass(frozen=True)
class Setting:
    """One combination of a run's settings: the configuration and the traits of its policies.

    ``policies`` leaves out those with unlimited memory, which others are measured by: a run of them alone
    counts as one of any policies.
    """

    config: RunConfig
    policies: Sequence[PolicyTraits]

    def has_policy(self, trait: str) -> bool:
        """Return whether a policy has a trait."""
        return not self.policies or any(getattr(policy, trait) for policy in self.policies)

    @property
    def has_further_tiers(self) -> bool:
        """Return whether more than one memory tier has room."""
        return sum(tier.capacity > 0 for tier in self.config.system.all_tiers) > 1

    @cached_property
    def is_paged(self) -> bool:
        """Return whether a policy moves pages."""
        return self.has_policy("is_paged")

    @cached_property
    def copies(self) -> bool:
        """Return whether a policy copies whole tensors."""
        return self.has_policy("copies")

    @cached_property
    def copies_to_host(self) -> bool:
        """Return whether a policy copies whole tensors to host memory."""
        return self.has_policy("copies_to_host")

    @property
    def is_batched(self) -> bool:
        """Return whether pages move in batches, which know one link and nothing of how it is shared."""
        return self.config.compat.transfers == "batched"

    @property
    def pins(self) -> bool:
        """Return whether a policy that moves pages says which tensors are pinned in host memory."""
        return not self.is_batched and self.has_policy("pins")

    @property
    def pins_on_use(self) -> bool:
        """Return whether buffers in host memory are pinned when they are used first."""
        return not self.is_batched and self.has_policy("pins_on_use")

    @property
    def has_pageable_memory(self) -> bool:
        """Return whether it matters which tensors such a policy pins."""
        pinned = self.config.system.host.pinned
        return self.pins and pinned is not None and pinned.pageable_bandwidth is not None

    @property
    def accesses_tiers(self) -> bool:
        """Return whether kernels can use tensors where they lie in some tier."""
        system = self.config.system
        return not self.is_batched and self.is_paged and any(tier.kernel_access for tier in system.all_tiers)

    @property
    def has_links(self) -> bool:
        """Return whether anything moves over the tree of links."""
        return self.copies or not self.is_batched

    @property
    def replicas(self) -> int:
        """Replicas that could exchange gradients."""
        return self.config.workload.replicas or 1

    @cached_property
    def tiers(self) -> frozenset[str]:
        """Names of the memory tiers."""
        return frozenset(tier.name for tier in self.config.system.all_tiers)

    @cached_property
    def places(self) -> frozenset[str]:
        """Names of what memory tiers hang on."""
        return frozenset(tier.at for tier in self.config.system.all_tiers if tier.at is not None)

    @property
    def joins_gpus(self) -> bool:
        """Return whether bytes may go from GPU to GPU."""
        exchange, gpus = self.config.workload.gradient_exchange, range(self.config.system.gpu.count)
        hosts = self.places & {f"gpu{gpu}" for gpu in gpus}
        apart = len({job.gpu for job in self.config.workload.jobs}) > 1
        return (self.replicas > 1 and exchange.method == "ring") or apart or (len(gpus) > 1 and bool(hosts))

    @property
    def has_tier_at_socket(self) -> bool:
        """Return whether a tier hangs on a processor."""
        return not self.places.isdisjoint(self.config.system.sockets)

    @property
    def last_gpu(self) -> int:
        """The highest GPU that a job runs on."""
        return max((job.gpu for job in self.config.workload.jobs), default=self.replicas - 1)

    @property
    def shares_gpus(self) -> bool:
        """Return whether jobs run side by side on a GPU."""
        return self.config.workload.sharing.compute != "exclusive"

    @property
    def most_iterations(self) -> int:
        """Most iterations that a job may run."""
        workload, compat = self.config.workload, self.config.compat
        return max(most_iterations(part.iterations, compat) for part in workload.jobs or (workload,))


@dataclass(frozen=True)
class Effect:
    """Condition under which a key counts, given the setting and the part, or policy, that has the key.

    ``where`` is the condition in words, ``otherwise`` why the key does nothing elsewhere.
    """

    counts: Callable[[Setting, Any], bool]
    where: str
    otherwise: str


class Rule(NamedTuple):
    """Effect of keys of some models."""

    models: tuple[type[BaseModel], ...]
    keys: tuple[str, ...]
    effect: Effect


_PAGES = Effect(
    lambda run, part: run.is_paged,
    "with a policy that moves pages",
    "every policy copies whole tensors",
)
_COPIES = Effect(
    lambda run, part: run.copies,
    "with a policy that copies whole tensors",
    "every policy moves pages",
)
_HOST_COPIES = Effect(
    lambda run, part: run.copies_to_host,
    "with a policy that copies whole tensors to host memory",
    "no policy does so",
)
_LINKS = Effect(
    lambda run, part: run.has_links,
    "with fluid transfers or a policy that copies whole tensors",
    "batched transfers know one link",
)
_BESIDE = Effect(
    lambda run, part: run.shares_gpus,
    "with sharing.compute time_sliced or concurrent",
    "jobs on a GPU run one after another",
)

RULES: tuple[Rule, ...] = (
    Rule(
        (BehaviourSpec,),
        ("transfers", "addresses", "recency", "fault_cost", "compute_overlap"),
        _PAGES,
    ),
    Rule(
        (BehaviourSpec,),
        ("dead_tensors",),
        Effect(
            lambda run, compat: (
                run.has_policy("frees_itself") or (run.is_paged and compat.addresses == "own")
            ),
            "with addresses own and a policy that moves pages",
            "addresses come from an allocator, and stay mapped",
        ),
    ),
    Rule(
        (BehaviourSpec,),
        ("batch_pages",),
        Effect(
            lambda run, compat: run.is_paged and run.is_batched,
            "with transfers batched and a policy that moves pages",
            "no pages move in batches",
        ),
    ),
    Rule(
        (BehaviourSpec,),
        (
            "copy_gigabyte",
            "copy_latency",
            "copy_host_path",
            "copy_memory",
            "copy_iterations",
            "absent_weights",
            "unread_tensors",
            "reported_digits",
        ),
        _COPIES,
    ),
    Rule(
        (BehaviourSpec,),
        ("planner_gigabyte", "planner"),
        Effect(
            lambda run, compat: run.has_policy("plans"),
            "with a policy that plans",
            "no policy plans",
        ),
    ),
    Rule(
        (BehaviourSpec,),
        ("reported_iteration",),
        Effect(
            lambda run, compat: run.most_iterations > 1,
            "with several iterations",
            "there is one iteration",
        ),
    ),
    Rule(
        (BehaviourSpec,),
        ("initial_tier",),
        Effect(
            lambda run, compat: run.is_paged and run.has_further_tiers,
            "with a policy that moves pages, and several memory tiers",
            "no pages move, or one memory tier has room",
        ),
    ),
    Rule(
        (BehaviourSpec,),
        ("flash_capacity",),
        Effect(
            lambda run, compat: any(tier.kind == "ssd" for tier in run.config.system.all_tiers),
            "with an SSD",
            "there is no SSD",
        ),
    ),
    Rule(
        (GpuSpec,),
        ("copy_contention",),
        _LINKS,
    ),
    Rule(
        (GpuSpec,),
        ("count",),
        Effect(
            lambda run, gpu: run.last_gpu > 0, "with replicas, or jobs on several GPUs", "one GPU has jobs"
        ),
    ),
    Rule(
        (HostSpec,),
        ("memory",),
        Effect(lambda run, host: "host" in run.tiers, "with host among the tiers", "it is no tier"),
    ),
    Rule((HostSpec,), ("memory_bandwidth",), _LINKS),
    Rule(
        (HostSpec,),
        ("sockets",),
        Effect(
            lambda run, host: (
                run.has_links
                and (run.has_tier_at_socket or bool(host.memory_bandwidth or host.inter_socket_bandwidth))
            ),
            "with memory_bandwidth or inter_socket_bandwidth, or a tier at a socket",
            "sockets have neither limits nor tiers",
        ),
    ),
    Rule(
        (HostSpec,),
        ("inter_socket_bandwidth",),
        Effect(
            lambda run, host: (
                run.has_links
                and (run.has_tier_at_socket or (run.joins_gpus and run.config.system.nvlink is None))
            ),
            "with a tier at a socket, or GPUs that send to each other over PCIe",
            "nothing goes from socket to socket",
        ),
    ),
    Rule((HostSpec,), ("compression",), _HOST_COPIES),
    Rule(
        (HostSpec,),
        ("pinned",),
        Effect(
            lambda run, host: run.copies_to_host or run.pins or run.pins_on_use,
            "with a policy that copies whole tensors to the host, pins on first use, or names pageable ones",
            "nothing is pinned",
        ),
    ),
    Rule(
        (PinnedSpec,),
        ("pin_latency", "pin_rate"),
        Effect(
            lambda run, pinned: run.copies_to_host or run.pins_on_use,
            "with a policy that copies whole tensors to the host, or pins on first use",
            "no policy pins buffers when it uses them first",
        ),
    ),
    Rule(
        (PinnedSpec,),
        ("unpin_latency", "unpin_rate"),
        Effect(
            lambda run, pinned: run.has_policy("unpins"),
            "with a policy that copies whole tensors to the host, and does not keep their buffers there",
            "no buffer is unpinned",
        ),
    ),
    Rule(
        (HostSpec, MemoryTierSpec),
        ("kernel_access",),
        Effect(
            lambda run, part: run.is_paged and not run.is_batched,
            "with a policy that moves pages, except for batched transfers",
            "no kernel uses tensors where they lie",
        ),
    ),
    Rule(
        (PinnedSpec,),
        ("beyond_limit",),
        Effect(
            lambda run, pinned: run.copies_to_host and pinned.limit is not None,
            "with a limit and a policy that copies whole tensors to the host",
            "there is no limit, or no policy copies whole tensors to the host",
        ),
    ),
    Rule(
        (PinnedSpec,),
        ("pageable_bandwidth",),
        Effect(
            lambda run, pinned: run.pins or pinned.limit is not None,
            "with a limit, or a policy that names pageable tensors",
            "there is no limit",
        ),
    ),
    Rule(
        (SystemSpec,),
        ("ssd",),
        Effect(lambda run, system: "ssd" in run.tiers, "with ssd among the tiers", "it is no tier"),
    ),
    Rule(
        (SystemSpec,),
        ("nvlink",),
        Effect(
            lambda run, system: run.joins_gpus,
            "with replicas that exchange gradients around a ring, jobs on several GPUs, or a tier at one",
            "no GPU sends to another",
        ),
    ),
    Rule((SsdSpec,), ("path", "behind"), _LINKS),
    Rule(
        (SsdSpec, SsdTierSpec),
        ("write_latency",),
        Effect(
            lambda run, ssd: run.copies or run.has_policy("plans") or ssd.requests is not None,
            "with a policy that plans or copies whole tensors, or requests",
            "pages that leave on demand do not wait for it",
        ),
    ),
    Rule(
        (SsdSpec, SsdTierSpec),
        ("write_cache",),
        Effect(
            lambda run, ssd: (
                ssd.write_cache.sustained
                < (ssd.write if isinstance(ssd, SsdTierSpec) else ssd.write_bandwidth)
            ),
            "with a sustained rate below write_bandwidth",
            "writes are no slower once it is used up",
        ),
    ),
    Rule(
        (SsdSpec, FlashSsdSpec, SsdTierSpec),
        ("bounce",),
        Effect(
            lambda run, ssd: run.has_links and ssd.path == "host",
            "with path host, except for batched transfers",
            "nothing stops over in host memory",
        ),
    ),
    Rule(
        (FlashSsdSpec,),
        ("write_window",),
        Effect(lambda run, ssd: ssd.write_buffer > 0, "with a write_buffer", "there is no write buffer"),
    ),
    Rule(
        (FlashSsdSpec,),
        ("read_command_plane", "program_command_plane"),
        Effect(lambda run, ssd: ssd.planes > 1, "with several planes", "a die has one plane"),
    ),
    Rule(
        (FlashSsdSpec,),
        ("copy_planes",),
        Effect(
            lambda run, ssd: ssd.planes > 1 and not ssd.in_place,
            "with several planes and without in_place",
            "a die has one plane, or there is no garbage",
        ),
    ),
    Rule(
        (FlashSsdSpec,),
        ("collection", "erase", "streams", "trim", "condition"),
        Effect(lambda run, ssd: not ssd.in_place, "without in_place", "the medium is overwritten in place"),
    ),
    Rule(
        (PageFaultSpec,),
        ("batch", "eviction"),
        Effect(
            lambda run, fault: run.is_paged and not run.is_batched,
            "with fluid transfers and a policy that moves pages",
            "no faults are handled one batch after another",
        ),
    ),
    Rule(
        (PageFaultSpec,),
        ("leaf", "threshold"),
        Effect(
            lambda run, fault: run.is_paged and not run.is_batched and fault.batch is not None,
            "with a batch, fluid transfers and a policy that moves pages",
            "all faults of a group are handled at once",
        ),
    ),
    Rule(
        (PcieSpec,),
        ("service",),
        Effect(
            lambda run, pcie: run.has_links and run.has_policy("keeps_service"),
            "with fluid transfers, or a policy that copies whole tensors and does not choose the service",
            "batched transfers know one link, or policies choose the service",
        ),
    ),
    Rule(
        (PcieSpec,),
        ("shared",),
        Effect(
            lambda run, pcie: run.has_links or run.has_policy("plans"),
            "with fluid transfers, or a policy that plans or copies whole tensors",
            "batched transfers know one link",
        ),
    ),
    Rule(
        (WorkloadSpec,),
        ("gradient_exchange",),
        Effect(lambda run, workload: run.replicas > 1, "with replicas, 2 or more", "there are no replicas"),
    ),
    Rule(
        (WorkloadSpec,),
        ("sharing",),
        Effect(lambda run, workload: bool(workload.jobs), "with jobs", "one job runs at a time"),
    ),
    Rule(
        (ExchangeSpec,),
        ("bucket",),
        Effect(
            lambda run, exchange: exchange.method != "none", "with method ring or host", "nothing is sent"
        ),
    ),
    Rule(
        (VariationSpec,),
        ("distribution",),
        Effect(
            lambda run, variation: variation.magnitude > 0,
            "with a magnitude above 0",
            "the magnitude is 0",
        ),
    ),
    Rule(
        (SharingSpec,),
        ("time_slice",),
        Effect(
            lambda run, sharing: sharing.compute == "time_sliced",
            "with compute time_sliced",
            "jobs take no turns",
        ),
    ),
    Rule(
        (SharingSpec,),
        ("slowdown",),
        Effect(
            lambda run, sharing: sharing.compute == "concurrent",
            "with compute concurrent",
            "kernels of jobs do not run at once",
        ),
    ),
    Rule((SharingSpec,), ("admission", "admission_memory"), _BESIDE),
    Rule((JobSpec,), ("priority",), _BESIDE),
    Rule(
        (JobSpec,),
        ("interval", "arrivals"),
        Effect(lambda run, job: job.copies > 1, "with copies, 2 or more", "there is one copy"),
    ),
)
"""Keys that count under some settings only. All others always do, or are no part of what is simulated."""
