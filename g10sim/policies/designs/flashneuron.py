"""FlashNeuron: forward activations wait on the SSD for the backward pass."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil
from typing import Literal

from g10sim.analysis.footprint import working_set_bytes
from g10sim.analysis.gradients import first_backward_kernel
from g10sim.analysis.vitality import inactive_periods
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.looks import ORANGE, Look
from g10sim.policies.interface.jobs import JobPolicy, PolicyPerJob
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.interface.moves import Await, Evict, Fetch, Move
from g10sim.policies.interface.parameters import Declared, Density, one_for_each, parameter
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Compressed, Place, PolicyView, Requirements
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.hash_order import hash_order
from g10sim.policies.planning.offloading.room import require_ssd
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes

_SINGLE, _HALF = 4, 2
_RECTIFIED = re.compile(r"(^|[^a-z])relu", re.IGNORECASE)

AS_CSR = Effect(
    lambda run, policy: policy.compression == "csr", "with compression: csr", "nothing is compressed as CSR"
)
"""Effect of parameters about tensors of which only what is not zero is copied."""


@dataclass
class _Schedule(JobPolicy):
    """FlashNeuron's decisions before an iteration, and the moves that follow.

    ``loss`` is the first kernel of the backward pass; ``returns`` are (kernel, tensor, bytes) of offloaded
    tensors, in order of their use after the offload; ``reserve_bytes`` stay free when tensors are fetched.
    ``compressed`` are those that are copied in another format; ``ssd`` is the tier.
    """

    trace: Trace
    ssd: str
    loss: int
    returns: tuple[tuple[int, int, int], ...]
    reserve_bytes: int
    compressed: Mapping[int, Compressed]
    plan: MigrationPlan | None = None
    _away: deque[tuple[int, int, int]] = field(default_factory=deque, init=False)
    """Those of ``returns`` that have yet to return in the backward pass."""

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Wait for all offloads before the backward pass."""
        if view.kernel == self.loss:
            self._away = deque(self.returns)
            yield Await()

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Fetch what the next kernels need, as far as the largest hole goes."""
        if view.kernel < self.loss:
            return
        room, away = view.largest_hole_bytes - self.reserve_bytes, self._away
        while away and (away[0][0] <= view.kernel or not view.bytes_in(away[0][1], self.ssd)):
            away.popleft()
        for _, tensor, size in away:
            if not view.bytes_in(tensor, self.ssd):
                continue
            if size >= room:
                return
            room -= size
            yield Fetch(tensor)


@register_policy
class FlashNeuron(Declared, PolicyPerJob):
    """Copies of whole tensors straight between GPU and SSD, in contiguous memory.

    Weights stay on the GPU, and cuDNN workspaces share one buffer. Of the results of the forward pass that
    the backward pass reads, as many as must, in order of first use, are offloaded at the start of their
    last inactive period that begins in the forward pass: until the rest takes less than GPU memory less
    weights less the largest working set. The first backward kernel waits for all offloads. From then on,
    after every kernel, the tensors of the kernels to come are fetched while the largest hole has room for
    them in addition to the largest working set of intermediate tensors; the rest is fetched on demand.
    Offloaded tensors lie at the right end of memory, others at the left.

    With ``compression`` the GPU turns what it offloads into numbers of half precision and, of results of a
    ReLU, copies only what is not zero; a bit for each element and their running counts stay behind. If
    offloads do not end with the forward pass, further results of a ReLU take the place of the last ones that
    are none. Elements count as numbers of 4 bytes.

    Tensors of a kernel are allocated in the order of ``hash_order``, and offloads that start together start
    in the reverse of that order.
    """

    name = "flashneuron"
    label = "FlashNeuron"
    look = Look(ORANGE, "////", "^", "-.")
    paper = "Bae et al., FlashNeuron, FAST 2021; as in the G10 paper (MICRO 2023), section 7.1"
    requirements = Requirements(placement="contiguous", host_memory="none")

    compression: Literal["none", "half", "csr"] = parameter(default="none", published="csr, its paper")
    """Format of what is copied: as it is, in half precision, or (results of a ReLU) without zeros, too."""
    density: Density = parameter(
        default=0.5, published="0.5, what its public scheduler counts on", effect=AS_CSR
    )
    """Share of elements that are not zero in results of a ReLU: one for all, or one for each of them that the
    backward pass reads, in order of first use."""

    job_class = _Schedule

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Schedule:
        """Choose what is offloaded. Raises UnsupportedError when too little can be, or without SSD."""
        trace, ssd = job.trace, require_ssd(self.name, machine).name
        loss = first_backward_kernel(trace)
        page, sizes = machine.page_bytes, machine.sizes(trace)
        candidates = _candidates(trace, loss)
        formats = self._formats(trace, candidates, page)
        weights = sum(sizes[tensor.id] for tensor in trace.tensors if tensor.persistent)
        # The largest working set counts weights and workspace again, as in the published simulator.
        line = system.gpu.memory - weights - int(working_set_bytes(trace, sizes).max(initial=0))
        copies = {tensor: formats.get(tensor, Compressed(sizes[tensor])) for tensor in candidates}
        choice = _Choice(trace, loss, sizes, copies, line)
        if formats:
            write = next(tier.write_bandwidth for tier in system.all_tiers if tier.name == ssd)
            rate = min(system.pcie.outward, write or system.pcie.outward)
            choice.refine(rate)
        moves, returns = [], []
        for tensor, (start, end) in choice.periods.items():
            moves.append((start, -hash_order(trace.kernels[start - 1].tensors).index(tensor), tensor))
            returns.append((end, hash_order(trace.kernels[end].tensors).index(tensor), tensor))
        plan = MigrationPlan(tuple(Planned(start, Evict(i, ssd)) for start, _, i in sorted(moves)), self.name)
        order = tuple((end, tensor, sizes[tensor]) for end, _, tensor in sorted(returns))
        kept = {tensor: formats[tensor] for tensor in choice.periods if tensor in formats}
        counts = (not one.persistent and one.kind is not TensorKind.WORKSPACE for one in trace.tensors)
        counted = [size * count for size, count in zip(sizes, counts, strict=True)]
        reserve = int(working_set_bytes(trace, counted).max(initial=0))
        return _Schedule(trace, ssd, loss, order, reserve, kept, plan)

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

    def compressed(self, job: Job, plan: MigrationPlan | None) -> Mapping[int, Compressed]:
        """Return what is copied in another format than it is kept in."""
        return next(one.compressed for one in self.jobs if one.trace is job.trace)

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the fixed order of ``hash_order``."""
        return hash_order(kernel.tensors)

    def _formats(self, trace: Trace, candidates: Sequence[int], page: int) -> dict[int, Compressed]:
        """Return how candidates would be compressed. Raises PolicyError for densities that do not fit."""
        if self.compression == "none":
            return {}
        forward = (kernel for kernel in trace.kernels if kernel.phase is not Phase.BACKWARD)
        relus = (kernel for kernel in forward if _RECTIFIED.search(kernel.name))
        rectified = {tensor for kernel in relus for tensor in kernel.outputs}
        as_csr = [tensor for tensor in candidates if tensor in rectified and self.compression == "csr"]
        what = "results of a ReLU that the backward pass reads"
        each = one_for_each(self.density, len(as_csr), what, self.name)
        elements = {tensor: ceil(trace.tensors[tensor].size_bytes / _SINGLE) for tensor in candidates}
        formats = {tensor: Compressed(_HALF * elements[tensor]) for tensor in candidates}
        for tensor, density in zip(as_csr, each, strict=True):
            moved = max(1, ceil(_HALF * density * elements[tensor]))
            formats[tensor] = Compressed(moved, index_bytes(elements[tensor]))
        pages = {t: -(-one.moved_bytes // page) - (-one.index_bytes // page) for t, one in formats.items()}
        return {t: one for t, one in formats.items() if pages[t] * page < trace.tensors[t].size_bytes}


class _Choice:
    """Chooses what is offloaded: as much as must be, and where it is compressed, what is copied in time.

    ``copies`` has all candidates, each with the sizes of its copy. ``periods`` are the inactive periods of
    offloaded tensors, for which each is away: (first kernel without the tensor, next kernel with it), the
    last one that begins before the ``loss``. Raises UnsupportedError when the candidates without such a
    period alone reach the line, ``line_bytes``, that results kept for the backward pass must stay under.
    """

    def __init__(
        self, trace: Trace, loss: int, sizes: Sequence[int], copies: Mapping[int, Compressed], line_bytes: int
    ) -> None:
        self._trace, self._loss, self._sizes, self._copies = trace, loss, sizes, copies
        self._line_bytes, self._kept = line_bytes, sum(sizes[tensor] for tensor in copies)
        self._starts = [0, *accumulate(kernel.duration for kernel in trace.kernels)]
        every = (period for period in inactive_periods(trace) if not period.wraps)
        self._last = {one.tensor: (one.start, one.end) for one in every if one.start < loss}
        self.periods: dict[int, tuple[int, int]] = {}
        for tensor in copies:
            if self._kept < line_bytes:
                break
            if tensor in self._last:
                self.periods[tensor] = self._last[tensor]
                self._kept -= self._freed(tensor)
        if self._kept >= line_bytes:
            raise UnsupportedError(
                f"policy 'flashneuron': '{trace.model}' keeps {format_bytes(self._kept)} for its backward "
                f"pass even if all that can be is offloaded; allowed: {self._allowed()}"
            )

    def _allowed(self) -> str:
        """Say how much may stay, where anything may."""
        if self._line_bytes <= 0:
            return "a GPU with room for more than the weights and the largest working set"
        return f"less than {format_bytes(self._line_bytes)} (GPU memory less weights and largest working set)"

    def refine(self, rate: int) -> None:
        """Offload results of a ReLU instead of others while copies at a rate outlast the forward pass.

        The last chosen tensor without an index stays, and the next candidates with one go, until the rest is
        under the line again (second phase of the public scheduler, SNU-ARC/flashneuron,
        ``offloading_scheduler``).
        """
        indexed = {tensor for tensor, copy in self._copies.items() if copy.index_bytes}
        further = [i for i in self._copies if i in indexed and i in self._last and i not in self.periods]
        while self._last_end(rate) > self._starts[self._loss]:
            out = next((tensor for tensor in reversed(self.periods) if tensor not in indexed), None)
            if out is None:
                return
            rests = accumulate((-self._freed(i) for i in further), initial=self._kept + self._freed(out))
            enough = ((count, rest) for count, rest in enumerate(rests) if rest < self._line_bytes)
            count, self._kept = next(enough, (0, self._kept))
            if not count:
                return
            del self.periods[out]
            self.periods |= {tensor: self._last[tensor] for tensor in further[:count]}
            del further[:count]

    def _last_end(self, rate: int) -> float:
        """Return the tick at which the last copy ends, one after the other in order of their start."""
        end = 0.0
        for tensor, (start, _) in sorted(self.periods.items(), key=lambda item: item[1]):
            moved = self._copies[tensor].moved_bytes
            end = max(end, self._starts[start]) + moved * self._trace.ticks_per_second / rate
        return end

    def _freed(self, tensor: int) -> int:
        """Bytes of GPU memory that a tensor leaves while it is away."""
        return self._sizes[tensor] - self._copies[tensor].index_bytes


def index_bytes(elements: int) -> int:
    """Bytes of the index of a result of a ReLU with this number of elements, which stays on the GPU.

    A bit for each element, in words of 4 bytes for each 32, and for each 32 elements a running count of 4
    bytes, the number of these rounded up to a power of two (public code, SNU-ARC/flashneuron, ``Copy.cu``).
    """
    bits = 128 * ceil(elements / 1024)
    counts = 4 << ceil(elements / 32).bit_length()
    return bits + counts


def _candidates(trace: Trace, loss: int) -> list[int]:
    """Return tensors that the forward pass touches and the backward pass reads, in order of first use."""
    touched = dict.fromkeys(tensor for kernel in trace.kernels[:loss] for tensor in kernel.tensors)
    return [tensor for tensor in touched if trace.deaths[tensor] > loss and not trace.lasting[tensor]]
