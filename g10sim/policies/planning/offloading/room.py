"""Memory that designs need which keep tensors at fixed places, and refusals of what has not enough of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from g10sim.analysis.footprint import levels
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.config.tiers import Tier
from g10sim.errors import UnsupportedError
from g10sim.policies.interface import MigrationPlan, PlannedMachine, PlannedTier, PolicyPerJob, Requirements
from g10sim.policies.planning.offloading.windows import Window
from g10sim.trace.model import Device, Kernel, Trace
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes

IN_FRAMEWORK = Requirements(addresses="own", drops_dead_tensors=True, keeps_mappings=True, pins_on_use=True)
"""Of designs in a framework: separate addresses that stay mapped, host memory pinned on its first use."""


class FixedPlaces(PolicyPerJob):
    """Base of designs whose tensors have places in the tiers: a workload that these cannot hold is refused.

    Each job's object has ``below``, the most bytes of the job in every tier of ``_kept``, which says what a
    design keeps there.
    """

    _kept: ClassVar[Mapping[str, str]]

    @property
    def requirements(self) -> Requirements:
        """Those of designs in a framework."""
        return IN_FRAMEWORK

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Start all jobs; their moves follow kernel by kernel. Raises UnsupportedError."""
        plans = super().plan(workload, system, behaviour)
        for tier, what in self._kept.items():
            needed = sum(job.below[tier] for job in self.jobs)
            if needed:
                require_tier(self.name, system, tier, needed, what)
        return plans


def refused(policy: str, does: str, allowed: str) -> UnsupportedError:
    """Return the error about what a policy does, which a machine does not allow."""
    return UnsupportedError(f"policy '{policy}' {does}; allowed: {allowed}")


def gpu_peak(
    trace: Trace,
    sizes: Sequence[int],
    ends: Mapping[int, int],
    ahead: int,
    stays: Sequence[Window] = (),
    below: Collection[int] = (),
) -> tuple[int, Kernel]:
    """Return the most bytes that lie on the GPU, and the kernel at which they do.

    That is what persists and the GPU uses, except weights with ``stays`` there, and all else from
    ``ahead`` kernels before its first use to its last use, or until the kernel that ``ends`` gives for it;
    what a collective makes, from that on. ``sizes`` are in whole pages. What lies ``below`` and has no stays
    does not count.
    """
    kernels = len(trace.kernels)
    spans = [(stay.fetched, stay.last + 1, sizes[stay.tensor]) for stay in stays]
    come_and_go = {stay.tensor for stay in stays}.union(below)
    for tensor, uses in enumerate(trace.uses):
        if uses and tensor not in come_and_go:
            lasts = trace.lasting[tensor]
            end = kernels if lasts else min(kernels, ends.get(tensor, uses[-1]) + 1)
            early = ahead if trace.kernels[uses[0]].device is Device.GPU else 0
            spans.append((0 if lasts else max(0, uses[0] - early), end, sizes[tensor]))
    needed = levels(spans, kernels)
    kernel = int(needed.argmax())
    return int(needed[kernel]), trace.kernels[kernel]


def require_gpu(policy: str, system: SystemSpec, peak: tuple[int, Kernel], what: str) -> None:
    """Refuse a workload whose ``gpu_peak`` is more than there is. Raises UnsupportedError."""
    needed, kernel = peak
    capacity = system.gpu.memory // system.gpu.page_size * system.gpu.page_size
    if needed > capacity:
        keeps = f"keeps {what} on the GPU: {format_bytes(needed)} at kernel {kernel.id} ({kernel.name})"
        raise refused(policy, keeps, f"at most its memory, {format_bytes(capacity)}")


def require_tier(policy: str, system: SystemSpec, name: str, needed: int, what: str) -> None:
    """Refuse a workload that needs more of a memory tier than there is. Raises UnsupportedError."""
    tier = find_tier(policy, system, name, what)
    if needed > tier.capacity:
        keeps = f"keeps {what} in the tier '{name}': {format_bytes(needed)}"
        raise refused(policy, keeps, f"at most its capacity, {format_bytes(tier.capacity)}")


def find_tier(policy: str, system: SystemSpec, name: str, what: str) -> Tier:
    """Return a memory tier by its name. Raises UnsupportedError for one that the machine has not."""
    tier = next((tier for tier in system.all_tiers if tier.name == name), None)
    if tier is None:
        keeps = f"keeps {what} in the tier '{name}', which the machine has not"
        raise refused(policy, keeps, f"one of its tiers, {', '.join(system.kinds)}")
    return tier


def require_ssd(policy: str, machine: PlannedMachine) -> PlannedTier:
    """Return the SSD of a machine. Raises UnsupportedError for one that has none."""
    if machine.ssd.kind != "ssd":
        raise UnsupportedError(f"policy '{policy}': found a system without an SSD; allowed: one with it")
    return machine.ssd


def require_cpu(policy: str, system: SystemSpec, pass_bytes: int = 0) -> None:
    """Refuse a machine whose CPU, or whose memory that it passes over, is not described.

    Raises UnsupportedError.
    """
    if system.cpu is None:
        raise refused(policy, "lets the CPU run the optimizer", "with system.cpu, its optimizer_rate")
    if pass_bytes and system.cpu.memory_bandwidth is None:
        passes = "lets the CPU pass over memory (pass_bytes)"
        raise refused(policy, passes, "with system.cpu, its memory_bandwidth")
