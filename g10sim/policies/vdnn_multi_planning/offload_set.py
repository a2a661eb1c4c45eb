"""Which layers offload where links are shared: as few bytes as the memory budget asks for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from g10sim.policies.vdnn_multi_planning.timeline import Bytes, Offloaded, Timeline
from g10sim.policies.vdnn_planning.layers import Layer, LayerKind

Interval = tuple[int, int]
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


def just_in_time(timeline: Timeline) -> Returns:
    """Return the rule that a prefetch takes memory when it has to start, not to be late."""

    def returns(offloaded: Offloaded, copy: int) -> int:
        return timeline.kernel_at(timeline.starts[offloaded.needed] - copy)

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

    def __init__(self, timeline: Timeline, budget_bytes: int, preferred: LayerKind) -> None:
        self._timeline, self._budget, self._preferred = timeline, budget_bytes, preferred

    def choose(
        self, layers: Iterable[Layer], copy_cycles: Callable[[int], int], returns: Returns
    ) -> tuple[Layer, ...]:
        """Return the layers that offload, in order; all that help when even those are not enough."""
        left = [self._candidate(layer, copy_cycles, returns) for layer in layers if layer.inputs]
        left = [candidate for candidate in left if candidate.gone < candidate.back]
        chosen: list[Candidate] = []
        used = self._timeline.occupancy()
        while used[peak := int(np.argmax(used))] > self._budget:
            away = [candidate for candidate in left if candidate.gone <= peak < candidate.back]
            if not away:
                break
            out, back = self._busy_out(chosen), self._busy_in(chosen)
            best = max(away, key=lambda candidate: self._worth(candidate, used, out, back))
            left.remove(best)
            chosen.append(best)
            used[best.gone : best.back] -= best.offloaded.size_bytes
        kept = self._pruned(chosen, used)
        return tuple(sorted((c.offloaded.layer for c in kept), key=lambda layer: layer.index))

    def _candidate(self, layer: Layer, copy_cycles: Callable[[int], int], returns: Returns) -> Candidate:
        offloaded = self._timeline.offloaded(layer)
        copy = copy_cycles(offloaded.size_bytes)
        return Candidate(offloaded, offloaded.gone, returns(offloaded, copy), copy)

    def _worth(self, candidate: Candidate, used: Bytes, out: _Busy, back: _Busy) -> tuple[float, bool, int]:
        starts, offloaded = self._timeline.starts, candidate.offloaded
        lifetime = starts[candidate.back] - starts[candidate.gone]
        exposed = self._exposed_out(candidate, used, out) + self._exposed_in(candidate, used, back)
        score = offloaded.size_bytes * lifetime / (1 + exposed)
        return score, offloaded.layer.kind is self._preferred, -offloaded.layer.index

    def _exposed_out(self, candidate: Candidate, used: Bytes, busy: _Busy) -> int:
        """Cycles of a copy out that do not fit before the memory is first needed."""
        starts = self._timeline.starts
        short = np.flatnonzero(used[candidate.gone : candidate.back] > self._budget)
        wanted = candidate.gone + int(short[0]) if short.size else candidate.back
        return _exposed(candidate.copy, (starts[candidate.offloaded.leaves], starts[wanted]), busy)

    def _exposed_in(self, candidate: Candidate, used: Bytes, busy: _Busy) -> int:
        """Cycles of a copy back that do not fit between the last shortage of memory and its use."""
        starts, needed = self._timeline.starts, candidate.offloaded.needed
        short = np.flatnonzero(used[candidate.gone : needed] > self._budget)
        room = candidate.gone + int(short[-1]) + 1 if short.size else candidate.gone
        return _exposed(candidate.copy, (starts[room], starts[needed]), busy)

    def _busy_out(self, chosen: Iterable[Candidate]) -> _Busy:
        """Return when copies out use the link: first come, first served."""
        free, busy = 0, list[Interval]()
        for candidate in sorted(chosen, key=lambda candidate: candidate.offloaded.leaves):
            start = max(free, self._timeline.starts[candidate.offloaded.leaves])
            free = start + candidate.copy
            busy.append((start, free))
        return _Busy(busy)

    def _busy_in(self, chosen: Iterable[Candidate]) -> _Busy:
        """Return when copies back use the link: one after another, each as late as possible."""
        until, busy = self._timeline.starts[-1], list[Interval]()
        for candidate in sorted(chosen, key=lambda candidate: -candidate.offloaded.needed):
            end = min(until, self._timeline.starts[candidate.offloaded.needed])
            until = end - candidate.copy
            busy.append((until, end))
        return _Busy(busy)

    def _pruned(self, chosen: Sequence[Candidate], used: Bytes) -> list[Candidate]:
        kept = list(chosen)
        limit = max(self._budget, int(used.max(initial=0)))
        for candidate in sorted(chosen, key=lambda candidate: -candidate.offloaded.size_bytes):
            span = used[candidate.gone : candidate.back]
            if int(span.max(initial=0)) + candidate.offloaded.size_bytes <= limit:
                span += candidate.offloaded.size_bytes
                kept.remove(candidate)
        return kept


def _exposed(copy: int, window: Interval, busy: _Busy) -> int:
    """Return how much of a copy does not fit into a window beside what is busy already."""
    start, end = window
    if end <= start:
        return copy
    return max(0, copy - (end - start - busy.before(end) + busy.before(start)))
