"""10Cache: a cache of weights on the GPU, filled in the order of their uses from pinned buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import Look
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.interface.parameters import WITH_PAGEABLE, Size, parameter
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Requirements
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.offloading.below import Offloaded, WeightsBelow, read_weights
from g10sim.policies.planning.offloading.caching import cached
from g10sim.policies.planning.offloading.gradients import Gradients, host_bytes, used_on_cpu
from g10sim.policies.planning.offloading.rewriting import Schedule
from g10sim.policies.planning.offloading.room import gpu_peak, require_gpu
from g10sim.policies.planning.offloading.takeover import parameter_bytes
from g10sim.policies.planning.offloading.windows import Window, by_kernel
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload
from g10sim.units import parse_bytes

PinnedBuffers = Literal["size_classes", "uniform", "none"]


@dataclass(frozen=True)
class _Job(Offloaded):
    """Moves of one job, and the tensors that are not pinned in host memory."""

    pageable: frozenset[int] = frozenset()


@register_policy
class TenCache(WeightsBelow):
    """The GPU memory that nothing else needs is a cache of weights; the CPU runs the optimizer.

    A table has all uses of weights in an iteration. The cache holds the next ones: when a kernel has ended, a
    weight that is used again later than the next one in the table makes room for it. Weights and gradients
    have pinned buffers in host memory that are reused, each for one size. Optimizer states, then weights,
    lie in host memory as far as they fit, the others on the SSD.
    """

    name = "tencache"
    label = "10Cache"
    look = Look("#AA4499", "..\\\\", "_", "4 1 1 1")
    paper = (
        "Afroz et al., 10Cache: Heterogeneous Resource-Aware Tensor Caching and Migration for LLM Training, "
        "SoCC 2025"
    )

    prefetch: bool = parameter(default=True, published="true, paper")
    """Fill the cache ahead of uses; otherwise a weight comes with the kernel that needs it."""
    buffers: PinnedBuffers = parameter(
        default="size_classes", published="size_classes, paper", effect=WITH_PAGEABLE
    )
    """Buffers in pinned host memory. ``size_classes``: as large as the tensor; ``uniform``: all as large as
    the largest tensor; ``none``: all is pageable, as what finds no buffer within system.host.pinned.limit."""
    cache: Size | None = parameter(default=None, published="what is free, paper")
    """Memory of the GPU for weights; none: what is left when all else takes most."""
    reduce_bucket_size: int = parameter(default=50_000_000, ge=1, published="50000000, authors' scripts")
    """Gradients that fill a bucket."""
    overlap: bool = parameter(default=False)
    """Update what is in a bucket as soon as it has left; otherwise everything after the last gradient."""
    optimizer_buffers: int = parameter(default=5, ge=1, published="5, authors' scripts")
    """Steps whose states are in host memory at a time, of those with states on the SSD."""

    job_class = _Job
    _kept: ClassVar[Mapping[str, str]] = dict.fromkeys(("host", "ssd"), "what is offloaded")

    @property
    def requirements(self) -> Requirements:
        """Separate addresses, and buffers for states on the SSD."""
        return replace(super().requirements, pins_on_use=False, cpu_buffers=self.optimizer_buffers)

    def _set_up(self) -> None:
        self._pinned_limit: int | None = None

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan what the cache holds and what is pinned; the moves follow. Raises UnsupportedError."""
        pinned = system.host.pinned
        limit = None if pinned is None else pinned.limit
        self._pinned_limit = None if limit is None else limit // len(workload.jobs)
        return super().plan(workload, system, behaviour)

    def pageable(self, job: int) -> Collection[int]:
        """Return the weights and gradients that have no pinned buffer."""
        planned: _Job = self.jobs[job]
        return planned.pageable

    def _bucket_bytes(self, trace: Trace) -> int:
        return self.reduce_bucket_size * parameter_bytes(trace, self.bytes_per_parameter)

    def _schedule(self, trace: Trace) -> Schedule:
        return Schedule(self.overlap, delayed=False, bucket_bytes=self._bucket_bytes(trace), returns=False)

    def _plan_job(self, trace: Trace, machine: PlannedMachine, system: SystemSpec) -> Offloaded:
        sizes, weights = machine.sizes(trace), read_weights(trace)
        gradients = Gradients(trace, self._bucket_bytes(trace), self.births, weights)
        ends = gradients.departures
        others, _ = gpu_peak(trace, sizes, ends, self.births, gradients.stays, below=weights)
        room = machine.gpu_bytes // machine.page_bytes * machine.page_bytes - others
        capacity = room if self.cache is None else min(room, parse_bytes(self.cache))
        found = cached(trace, weights, sizes, capacity, looks_ahead=self.prefetch)
        stays, kept = _released(trace, found.stays)
        most, kernel = gpu_peak(trace, sizes, ends, self.births, [*stays, *kept, *gradients.stays])
        require_gpu(self.name, system, most, kernel, "weights of one kernel and activations")
        homes = _homes(trace, machine, weights, self.optimizer_buffers)
        in_host = [tensor for tensor in _by_first_use(trace, weights) if homes[tensor] == "host"]
        pageable, note = self._buffers(sizes, [*in_host, *ends])
        share = found.hits / found.uses if found.uses else 1.0
        note = f"{capacity / 1e9:.3g} GB of cache, asked ahead for {share:.1%} of uses; {note}"
        fetched = by_kernel([*kept, *stays], "fetched")
        return replace(_Job.of(gradients, homes, stays), note=note, pageable=pageable, fetched=fetched)

    def _buffers(self, sizes: Sequence[int], tensors: Sequence[int]) -> tuple[frozenset[int], str]:
        """Return the tensors without a pinned buffer, and how much is pinned; the first ones have one."""
        largest = max((sizes[tensor] for tensor in tensors), default=0)
        pageable, pinned, count = set[int](), 0, 0
        for tensor in tensors:
            size = largest if self.buffers == "uniform" else sizes[tensor]
            fits = self._pinned_limit is None or pinned + size <= self._pinned_limit
            if self.buffers == "none" or not fits:
                pageable.add(tensor)
            else:
                pinned, count = pinned + size, count + 1
        return frozenset(pageable), f"{pinned / 1e9:.3g} GB pinned for {count} of {len(tensors)} tensors"


def _by_first_use(trace: Trace, weights: Collection[int]) -> list[int]:
    return sorted(weights, key=lambda tensor: (trace.uses[tensor][0], tensor))


def _released(trace: Trace, stays: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """Part stays that end from those that go on into the next iteration.

    Those are of weights that are there all the time and that the CPU does not update.
    """
    updated = used_on_cpu(trace)
    leaves = {stay.tensor for stay in stays if stay.fetched > 0 or stay.last < trace.uses[stay.tensor][-1]}
    ends, lasting = list[Window](), list[Window]()
    for stay in stays:
        if stay.tensor in leaves or stay.tensor in updated:
            ends.append(stay)
        else:
            lasting.append(replace(stay, last=len(trace.kernels) - 1))
    return ends, lasting


def _homes(trace: Trace, machine: PlannedMachine, weights: Collection[int], buffers: int) -> dict[int, str]:
    """Return the tier of every optimizer state and weight: host memory as far as they fit, states first."""
    sizes = machine.sizes(trace)
    states = sorted(tensor for tensor in trace.only_on_cpu if trace.tensors[tensor].persistent)
    below = [*states, *_by_first_use(trace, weights)]
    capacity, on_cpu = machine.memory.capacity_bytes, used_on_cpu(trace)
    others = sum(sizes[tensor] for tensor in weights if tensor not in on_cpu)
    if machine.ssd.kind != "ssd" or host_bytes(trace, sizes) + others <= capacity:
        return dict.fromkeys(below, "host")
    room = capacity - host_bytes(trace, sizes, frozenset(below), buffers)
    homes = dict[int, str]()
    for tensor in below:
        homes[tensor] = "host" if sizes[tensor] <= room else "ssd"
        room -= sizes[tensor] if homes[tensor] == "host" else 0
    return homes
