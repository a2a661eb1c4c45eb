"""FlashNeuron: forward activations wait on the SSD for the backward pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import ORANGE, Look
from g10sim.policies.base import Place, Policy, PolicyView, Requirements
from g10sim.policies.hash_order import hash_order
from g10sim.policies.moves import Await, Evict, Fetch, Move
from g10sim.policies.plan import MigrationPlan, Planned
from g10sim.policies.registry import register_policy
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace
from g10sim.trace.workload import Job, Workload
from g10sim.units import format_bytes


@dataclass(frozen=True)
class _Schedule:
    """FlashNeuron's decisions before an iteration.

    ``loss`` is the first kernel of the backward pass; ``returns`` are (kernel, tensor) of offloaded
    tensors, in order of their use after the offload; ``reserve_bytes`` stay free when tensors are fetched.
    """

    plan: MigrationPlan
    loss: int
    returns: tuple[tuple[int, int], ...]
    reserve_bytes: int


@register_policy
class FlashNeuron(Policy):
    """Copies of whole tensors straight between GPU and SSD, in contiguous memory.

    Weights stay on the GPU, and cuDNN workspaces share one buffer. Of the results of the forward pass that
    the backward pass reads, as many as must, in order of first use, are offloaded at the start of their
    last inactive period that begins in the forward pass: until the rest takes less than GPU memory less
    weights less the largest working set. The first backward kernel waits for all offloads. From then on,
    after every kernel, the tensors of the kernels to come are fetched while the largest hole has room for
    them beside the largest working set of intermediate tensors; what is still missing is fetched on demand.
    Offloaded tensors lie at the right end of memory, others at the left.

    Tensors of a kernel are allocated in the order of ``hash_order``, and offloads that start together start
    in the reverse of that order.
    """

    name = "flashneuron"
    label = "FlashNeuron"
    look = Look(ORANGE, "////", "^", "-.")
    paper = "Bae et al., FlashNeuron, FAST 2021; as in the G10 paper (MICRO 2023), section 7.1"
    requirements = Requirements(placement="contiguous")

    def __init__(self) -> None:
        self._schedules: list[_Schedule] = []
        self._ssd = "ssd"

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Choose what every job offloads. Raises UnsupportedError when too little can be, or without SSD."""
        drives = [tier.name for tier in system.all_tiers if tier.kind == "ssd"]
        if not drives:
            raise UnsupportedError(
                "policy 'flashneuron': found a system without an SSD; allowed: one with it"
            )
        self._ssd = drives[0]
        self._schedules = [_schedule(job.trace, system, self._ssd) for job in workload.jobs]
        return tuple(schedule.plan for schedule in self._schedules)

    def places(self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec) -> Sequence[Place]:
        """Put offloaded tensors at the right, workspaces in the buffer, and everything else at the left."""
        offloaded = plan.tensors() if plan is not None else set()
        read = {tensor for kernel in job.trace.kernels for tensor in kernel.inputs}
        places = []
        for tensor in job.trace.tensors:
            if tensor.kind is TensorKind.WORKSPACE:
                places.append(Place.BUFFER)
            elif behaviour.unread_tensors == "skipped" and not tensor.persistent and tensor.id not in read:
                places.append(Place.NOWHERE)
            else:
                places.append(Place.RIGHT if tensor.id in offloaded else Place.LEFT)
        return places

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the fixed order of ``hash_order``."""
        return hash_order(kernel.tensors)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Wait for all offloads before the backward pass."""
        if view.kernel == self._schedules[view.job].loss:
            yield Await()

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Fetch what the next kernels need, as far as the largest hole goes."""
        schedule = self._schedules[view.job]
        if view.kernel < schedule.loss:
            return
        room = view.largest_hole_bytes - schedule.reserve_bytes
        for _, tensor in schedule.returns[bisect_left(schedule.returns, (view.kernel + 1, -1)) :]:
            if not view.bytes_in(tensor, self._ssd):
                continue
            size = view.size_bytes(tensor)
            if size >= room:
                return
            room -= size
            yield Fetch(tensor)


def _schedule(trace: Trace, system: SystemSpec, ssd: str) -> _Schedule:
    backward = (kernel.id for kernel in trace.kernels if kernel.phase is Phase.BACKWARD)
    loss = next(backward, len(trace.kernels))
    page = system.gpu.page_size
    sizes = [-(-tensor.size_bytes // page) * page for tensor in trace.tensors]
    periods = _chosen(trace, loss, sizes, _line_bytes(trace, sizes, system.gpu.memory))
    moves = []
    returns = []
    for tensor, (start, end) in periods.items():
        moves.append((start, -hash_order(trace.kernels[start - 1].tensors).index(tensor), tensor))
        returns.append((end, hash_order(trace.kernels[end].tensors).index(tensor), tensor))
    plan = MigrationPlan(
        tuple(Planned(start, Evict(tensor, ssd)) for start, _, tensor in sorted(moves)), "flashneuron"
    )
    order = tuple((end, tensor) for end, _, tensor in sorted(returns))
    return _Schedule(plan, loss, order, _largest_intermediate_bytes(trace, sizes))


def _line_bytes(trace: Trace, sizes: Sequence[int], memory_bytes: int) -> int:
    """Bytes that results kept for the backward pass must stay under (published simulator).

    GPU memory less weights less the largest working set, which counts weights and workspace again.
    """
    weights = sum(sizes[tensor.id] for tensor in trace.tensors if tensor.persistent)
    working_sets = (sum(sizes[tensor] for tensor in kernel.tensors) for kernel in trace.kernels)
    return memory_bytes - weights - max(working_sets, default=0)


def _largest_intermediate_bytes(trace: Trace, sizes: Sequence[int]) -> int:
    """Bytes of the largest working set without weights and workspace."""
    counted = [not tensor.persistent and tensor.kind is not TensorKind.WORKSPACE for tensor in trace.tensors]
    working_sets = (
        sum(sizes[tensor] for tensor in kernel.tensors if counted[tensor]) for kernel in trace.kernels
    )
    return max(working_sets, default=0)


def _chosen(trace: Trace, loss: int, sizes: Sequence[int], line_bytes: int) -> dict[int, tuple[int, int]]:
    """Return the offloaded tensors with the inactive period that each is away for.

    A period is (first kernel without the tensor, next kernel with it). Raises UnsupportedError when the
    candidates without such a period alone reach the line.
    """
    candidates = _candidates(trace, loss)
    kept = sum(sizes[tensor] for tensor in candidates)
    chosen: dict[int, tuple[int, int]] = {}
    for tensor in candidates:
        if kept < line_bytes:
            break
        uses = [use for use in trace.uses[tensor] if use < trace.deaths[tensor]]
        periods = [(use + 1, after) for use, after in pairwise(uses) if use + 1 < after and use + 1 < loss]
        if periods:
            chosen[tensor] = periods[-1]
            kept -= sizes[tensor]
    if kept >= line_bytes:
        raise UnsupportedError(
            f"policy 'flashneuron': '{trace.model}' keeps {format_bytes(kept)} for its backward pass even if "
            f"all that can be is offloaded; allowed: less than {format_bytes(max(0, line_bytes))} "
            "(GPU memory less weights and largest working set)"
        )
    return chosen


def _candidates(trace: Trace, loss: int) -> list[int]:
    """Return tensors that the forward pass touches and the backward pass reads, in order of first use."""
    read = {tensor for kernel in trace.kernels for tensor in kernel.inputs}
    touched = dict.fromkeys(tensor for kernel in trace.kernels[:loss] for tensor in kernel.tensors)
    return [
        tensor
        for tensor in touched
        if tensor in read and trace.deaths[tensor] > loss and not trace.tensors[tensor].persistent
    ]
