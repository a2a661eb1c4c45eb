"""In place: use tensors where they lie, or bring them in, whichever keeps the link less busy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.host import KernelAccessSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface import JobPolicy, PolicyPerJob, PolicyView, Requirements
from g10sim.policies.interface.machine import PlannedMachine, PlannedTier
from g10sim.policies.interface.moves import Access, Evict, Fetch, Move
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.fitting import fitting
from g10sim.policies.planning.offloading.room import refused
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job


@dataclass(frozen=True, slots=True)
class _Rates:
    """Rates of a tier in bytes/cycle: of copies to and from the GPU, and of kernels that use it in place."""

    copied_in: float
    copied_out: float
    read: float
    written: float

    def prefers_access(self, reads: int, writes: int) -> bool:
        """Return True if a tensor is better used in place so often than brought in and sent away again.

        Break-even per byte: reads / read + writes / written against 1 / copied_in + 1 / copied_out.
        """
        return reads / self.read + writes / self.written <= 1 / self.copied_in + 1 / self.copied_out


class _Job(JobPolicy):
    """Moves of one job, from rates by tier and the persistent tensors that stay ``away``."""

    def __init__(self, rates: Mapping[str, _Rates], away: Collection[int]) -> None:
        self._rates, self._away = rates, away

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Use in place what is better used there; fetch the rest of the working set."""
        for tensor in view.trace.kernels[view.kernel].tensors:
            tier = self._tier_of(view, tensor)
            if tier is not None:
                yield Access(tensor, tier)
            if not view.is_whole(tensor):
                yield Fetch(tensor)

    def _tier_of(self, view: PolicyView, tensor: int) -> str | None:
        """Return the tier in which a tensor is used where it lies; None where it is better brought in."""
        tier = next((name for name in view.in_place_tiers if view.bytes_in(tensor, name)), None)
        if tier is None or tensor in self._away:
            return tier
        if view.trace.lasting[tensor]:
            return None
        return tier if self._rates[tier].prefers_access(*_touches(view.trace, tensor, view.kernel)) else None

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Send away what came to the GPU but will be used in place."""
        if not view.in_place_tiers:
            return
        for tensor in view.trace.kernels[view.kernel].tensors:
            if tensor in self._away and view.resident_bytes(tensor):
                yield Evict(tensor, view.in_place_tiers[0])


@register_policy
class InPlace(PolicyPerJob):
    """Kernels use a tensor where it lies if that takes less of the link's time than to bring it in.

    In place, its bytes cross the link as often as kernels read and write them, otherwise once in and, as
    memory is full, once out. Persistent tensors are kept on the GPU as far as they have room next to the peak
    of all others, those first that are used most; of the rest, those that are better used in place are sent
    to the fastest tier that kernels can use, once. A tensor of one iteration that had to leave is used in
    place if that is better for the uses left. All else is fetched when a kernel needs it. A machine where
    kernels can use no tier is unsupported.
    """

    name = "in_place"
    label = "In place"
    look = Look("#AA4466", "|-", "x", "4 1")
    paper = "break-even of migration and remote access, as for coherent links (Grace Hopper) and CXL memory"
    requirements = Requirements(drops_dead_tensors=True)

    job_class = _Job

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Job:
        """Choose what is kept and what stays away; the rest is decided kernel by kernel."""
        usable = (
            (tier.name, tier.kernel_access) for tier in system.all_tiers if tier.kernel_access is not None
        )
        rates = {name: _rates(machine.tier(name), access, machine.clock_hz) for name, access in usable}
        if not rates:
            does = f"uses tensors where they lie, and kernels can access no tier of '{system.name}'"
            allowed = "machines with kernel_access of a tier, such as host.kernel_access"
            raise refused(self.name, does, allowed)
        trace, sizes = job.trace, machine.sizes(job.trace)
        persistent = [tensor.id for tensor in trace.tensors if tensor.persistent and trace.uses[tensor.id]]
        every = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
        room = machine.gpu_bytes - (peak_live_bytes(trace) - every)
        touches = {tensor: _touches(trace, tensor) for tensor in persistent}
        most_used = sorted(persistent, key=lambda tensor: (-sum(touches[tensor]), tensor))
        kept = fitting(most_used, sizes, room)
        first = next(iter(rates.values()))
        left = (tensor for tensor in persistent if tensor not in kept)
        return _Job(rates, {tensor for tensor in left if first.prefers_access(*touches[tensor])})


def _rates(tier: PlannedTier, access: KernelAccessSpec, clock_hz: int) -> _Rates:
    """Return the rates of a tier; kernels use it as fast as copies do, unless ``access`` says less."""
    read, written = (inf if rate is None else rate / clock_hz for rate in (access.read, access.write))
    return _Rates(tier.read_rate, tier.write_rate, min(tier.read_rate, read), min(tier.write_rate, written))


def _touches(trace: Trace, tensor: int, since: int = 0) -> tuple[int, int]:
    """Return how often kernels read and write a tensor's bytes in an iteration, from kernel ``since`` on."""
    kernels = [trace.kernels[kernel] for kernel in trace.uses[tensor] if kernel >= since]
    reads = sum(kernel.reads_of(tensor) for kernel in kernels)
    return reads, sum(tensor in kernel.outputs for kernel in kernels)
