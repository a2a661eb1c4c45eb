"""Choice of offloading layers on shared links: as few bytes as the memory budget asks for.

It goes by when kernels start if nothing waits, and by how much memory they find in use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval, queued, queued_backwards
from g10sim.policies.planning.machine import page_sizes
from g10sim.policies.planning.occupancy import Occupancy, unmoved_bytes
from g10sim.policies.planning.timeline import Timeline
from g10sim.policies.vdnn_planning.layers import Layer, LayerKind, first_backward_kernel
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class Offloaded:
    """The tensors that one layer offloads together.

    ``leaves`` is the kernel at whose start the copy begins, ``gone`` the first kernel without the tensors,
    and ``needed`` the kernel that reads one of them again. ``size_bytes`` are whole pages.
    """

    layer: Layer
    tensors: tuple[int, ...]
    size_bytes: int
    leaves: int
    gone: int
    needed: int


class OffloadTimeline(Timeline):
    """One iteration of a trace whose layers offload; ``sizes`` are the tensors' in whole pages."""

    def __init__(self, trace: Trace, durations: Sequence[int] | Integers, page_bytes: int) -> None:
        super().__init__(durations)
        self.trace, self.sizes = trace, page_sizes(trace, page_bytes)
        self.first_backward = first_backward_kernel(trace)

    def offloaded(self, layer: Layer) -> Offloaded:
        """Describe what a layer offloads."""
        gone = layer.kernels[-1] + 1
        needed = min(use for tensor in layer.inputs for use in self.trace.uses[tensor] if use >= gone)
        size = sum(self.sizes[tensor] for tensor in layer.inputs)
        return Offloaded(layer, layer.inputs, size, layer.kernels[0], gone, needed)

    def occupancy(self) -> Occupancy:
        """Return the bytes in use while each kernel runs when nothing is offloaded."""
        return Occupancy(unmoved_bytes(self.trace, self.sizes, counts_late_uses=False))


Returns = Callable[[Offloaded, int], int]
"""Kernel from which on an offloaded layer's tensors take memory again; the copy takes that many cycles."""


class _Busy:
    """When a link is in use: intervals that do not overlap, ascending."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        found = sorted(intervals)
        self._starts = [start for start, _ in found]
        self._lengths = [end - start for start, end in found]
        self._sums = [0, *accumulate(self._lengths)]

    def before(self, cycle: int) -> int:
        """Return the cycles before this one in which the link is in use."""
        place = bisect_right(self._starts, cycle) - 1
        if place < 0:
            return 0
        return self._sums[place] + min(self._lengths[place], cycle - self._starts[place])


@dataclass(frozen=True)
class Candidate:
    """A layer that might offload: away from kernel ``gone`` to before ``back``, ``copy`` cycles each way."""

    offloaded: Offloaded
    gone: int
    back: int
    copy: int


def just_in_time(timeline: OffloadTimeline) -> Returns:
    """Return the rule that a prefetch takes memory when it has to start, not to be late."""

    def returns(offloaded: Offloaded, copy: int) -> int:
        return timeline.kernel_at(timeline.times[offloaded.needed] - copy)

    return returns


def by_window(layers: Sequence[Layer], closing: LayerKind) -> Returns:
    """Return the rule that a prefetch takes memory from the earliest layer on whose window reaches it.

    That is the backward pass of the next layer of the ``closing`` kind, or of the last layer.
    """

    def returns(offloaded: Offloaded, copy: int) -> int:
        later = [layer for layer in layers[offloaded.layer.index + 1 :] if layer.backward]
        closes = next((layer for layer in later if layer.kind is closing), later[-1] if later else None)
        return offloaded.needed if closes is None else min(offloaded.needed, closes.backward[0])

    return returns


class OffloadSet:
    """Chooses among layers until the peak is within the budget (a reading of Kim et al., FAS*W 2018).

    From no offload at all, the layer is added that is away at the peak and has the most bytes times cycles
    away for each cycle that its copies are exposed to kernels, at the rate that a link leaves to one of the
    GPUs that share it; of equals the one of the ``preferred`` kind, then the first. In the end layers that do
    not matter any more are taken out again, those with the most bytes first.
    """

    def __init__(self, timeline: OffloadTimeline, budget_bytes: int, preferred: LayerKind) -> None:
        self._timeline, self._budget, self._preferred = timeline, budget_bytes, preferred

    def choose(
        self, layers: Iterable[Layer], copy_cycles: Callable[[int], int], returns: Returns
    ) -> tuple[Layer, ...]:
        """Return the layers that offload, in order; all that help when even those are not enough."""
        left = [self._candidate(layer, copy_cycles, returns) for layer in layers if layer.inputs]
        left = [candidate for candidate in left if candidate.gone < candidate.back]
        chosen: list[Candidate] = []
        used = self._timeline.occupancy()
        while used.bytes[peak := int(np.argmax(used.bytes))] > self._budget:
            away = [candidate for candidate in left if candidate.gone <= peak < candidate.back]
            if not away:
                break
            out, back = self._busy_out(chosen), self._busy_in(chosen)
            best = max(away, key=lambda candidate: self._worth(candidate, used, out, back))
            left.remove(best)
            chosen.append(best)
            used.add(best.gone, best.back, -best.offloaded.size_bytes)
        kept = self._pruned(chosen, used)
        return tuple(sorted((c.offloaded.layer for c in kept), key=lambda layer: layer.index))

    def _candidate(self, layer: Layer, copy_cycles: Callable[[int], int], returns: Returns) -> Candidate:
        offloaded = self._timeline.offloaded(layer)
        copy = copy_cycles(offloaded.size_bytes)
        return Candidate(offloaded, offloaded.gone, returns(offloaded, copy), copy)

    def _worth(
        self, candidate: Candidate, used: Occupancy, out: _Busy, back: _Busy
    ) -> tuple[float, bool, int]:
        starts, offloaded = self._timeline.times, candidate.offloaded
        lifetime = starts[candidate.back] - starts[candidate.gone]
        exposed = self._exposed_out(candidate, used, out) + self._exposed_in(candidate, used, back)
        score = offloaded.size_bytes * lifetime / (1 + exposed)
        return score, offloaded.layer.kind is self._preferred, -offloaded.layer.index

    def _exposed_out(self, candidate: Candidate, used: Occupancy, busy: _Busy) -> int:
        """Cycles of a copy out that do not fit before the memory is first needed."""
        times, short = self._timeline.times, used.above(self._budget, candidate.gone, candidate.back)
        wanted = short[0] if short else candidate.back
        return _exposed(candidate.copy, Interval(times[candidate.offloaded.leaves], times[wanted]), busy)

    def _exposed_in(self, candidate: Candidate, used: Occupancy, busy: _Busy) -> int:
        """Cycles of a copy back that do not fit between the last shortage of memory and its use."""
        times, needed = self._timeline.times, candidate.offloaded.needed
        short = used.above(self._budget, candidate.gone, needed)
        room = short[1] + 1 if short else candidate.gone
        return _exposed(candidate.copy, Interval(times[room], times[needed]), busy)

    def _busy_out(self, chosen: Iterable[Candidate]) -> _Busy:
        """Return when copies out use the link: first come, first served."""
        order = sorted(chosen, key=lambda candidate: candidate.offloaded.leaves)
        return _Busy(queued((self._timeline.times[c.offloaded.leaves], c.copy) for c in order))

    def _busy_in(self, chosen: Iterable[Candidate]) -> _Busy:
        """Return when copies back use the link: one after another, each as late as possible."""
        order = sorted(chosen, key=lambda candidate: -candidate.offloaded.needed)
        return _Busy(queued_backwards((self._timeline.times[c.offloaded.needed], c.copy) for c in order))

    def _pruned(self, chosen: Sequence[Candidate], used: Occupancy) -> list[Candidate]:
        kept = list(chosen)
        limit = max(self._budget, used.peak_bytes)
        for candidate in sorted(chosen, key=lambda candidate: -candidate.offloaded.size_bytes):
            size = candidate.offloaded.size_bytes
            if used.most(candidate.gone, candidate.back) + size <= limit:
                used.add(candidate.gone, candidate.back, size)
                kept.remove(candidate)
        return kept


def _exposed(copy: int, window: Interval, busy: _Busy) -> int:
    """Return how much of a copy does not fit into a window beside what is busy already."""
    start, end = window
    if end <= start:
        return copy
    return max(0, copy - (end - start - busy.before(end) + busy.before(start)))
