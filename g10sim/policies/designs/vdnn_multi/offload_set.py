"""Choice of offloading layers on shared links: as few bytes as the memory budget asks for.

It goes by when kernels start if nothing waits, and by how much memory they find in use.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from g10sim.analysis.footprint import unmoved_bytes
from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.vdnn.layers import Layer, LayerKind
from g10sim.policies.interface.machine import page_sizes
from g10sim.policies.planning.channel import NEVER, Gaps, queued, queued_backwards
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace

_ROUNDING = 1e-12
"""Share by which quotients of floats may be off: those that close to the best are compared exactly."""


Returns = Callable[[Layer, int, int], int]
"""Kernel from which on an offloaded layer's tensors take memory again, by the kernel that needs them and the
cycles of their copy."""


@dataclass(frozen=True)
class Offloaded:
    """The tensors that one layer offloads together.

    ``leaves`` is the kernel at whose start the copy begins, ``gone`` the first kernel without the tensors,
    ``needed`` the kernel that reads one of them again, and ``back`` that from which on they take memory
    again. ``size_bytes`` are whole pages; they take ``copy`` cycles each way.
    """

    layer: Layer
    size_bytes: int
    leaves: int
    gone: int
    needed: int
    back: int
    copy: int


class OffloadTimeline(Timeline):
    """One iteration of a trace whose layers offload; ``sizes`` are the tensors' in whole pages."""

    def __init__(self, trace: Trace, durations: Sequence[int] | Integers, page_bytes: int) -> None:
        super().__init__(durations)
        self.trace, self.sizes = trace, page_sizes(trace, page_bytes)

    def offloaded(self, layer: Layer, copy_cycles: Callable[[int], int], returns: Returns) -> Offloaded:
        """Describe what a layer offloads."""
        away = list(layer.absences(self.trace, self.sizes))
        size, needed = sum(one.size_bytes for one in away), min(one.end for one in away)
        copy = copy_cycles(size)
        back = returns(layer, needed, copy)
        return Offloaded(layer, size, layer.kernels[0], away[0].start, needed, back, copy)

    def occupancy(self) -> Occupancy:
        """Return the bytes in use while each kernel runs when nothing is offloaded."""
        return Occupancy(unmoved_bytes(self.trace, self.sizes, counts_late_uses=False))


def just_in_time(timeline: OffloadTimeline) -> Returns:
    """Return the rule that a prefetch takes memory when it has to start, not to be late."""
    return lambda layer, needed, copy: timeline.kernel_at(timeline.times[needed] - copy)


def by_window(layers: Sequence[Layer], closing: LayerKind) -> Returns:
    """Return the rule that a prefetch takes memory from the earliest layer on whose window reaches it.

    That is the backward pass of the next layer of the ``closing`` kind, or of the last layer.
    """
    opens: dict[int, int] = {}
    closes: Layer | None = None
    for layer in reversed(layers):
        if closes is not None:
            opens[layer.index] = closes.backward[0]
        if layer.backward and (closes is None or layer.kind is closing):
            closes = layer
    return lambda layer, needed, copy: min(needed, opens.get(layer.index, needed))


class _Exposure:
    """Cycles for which copies of candidates are exposed to kernels, for all of them at once.

    Links carry those of the candidates that were taken.
    """

    def __init__(self, candidates: Sequence[Offloaded], starts: Integers) -> None:
        rows = [(c.leaves, c.gone, c.back, c.needed, c.copy) for c in candidates]
        columns = np.array(rows, dtype=np.int64).reshape(-1, 5).T
        self._leaves, self.gone, self.back, self._needed, self._copies = columns
        self._starts = starts
        self._leaving, self._returning = list[int](), list[int]()

    def take(self, number: int) -> None:
        """Let links carry the copies of a candidate."""
        insort(self._leaving, number, key=self._leaves.__getitem__)
        insort(self._returning, number, key=lambda other: -self._needed[other])

    def cycles(self, some: Integers, short: Integers) -> Integers:
        """Return the exposed cycles of some; memory is ``short`` during these kernels."""
        return self._out(some, short) + self._in(some, short)

    def _out(self, some: Integers, short: Integers) -> Integers:
        """Cycles of copies out, first come, first served, that do not fit before the memory is needed."""
        places = np.minimum(np.searchsorted(short, self.gone[some]), len(short) - 1)
        first = short[places]
        is_short = (self.gone[some] <= first) & (first < self.back[some])
        wanted = np.where(is_short, first, self.back[some])
        order = np.array(self._leaving, dtype=np.int64)
        begins = queued(self._starts[self._leaves[order]], self._copies[order])
        link = Gaps(begins, begins + self._copies[order], NEVER)
        return self._exposed(some, self._leaves[some], wanted, link)

    def _in(self, some: Integers, short: Integers) -> Integers:
        """Cycles of copies back that do not fit between the last shortage of memory and their use."""
        last = short[np.searchsorted(short, self._needed[some]) - 1]
        is_short = (self.gone[some] <= last) & (last < self._needed[some])
        room = np.where(is_short, last + 1, self.gone[some])
        order = np.array(self._returning, dtype=np.int64)
        begins = queued_backwards(self._starts[self._needed[order]], self._copies[order])
        link = Gaps(begins[::-1], (begins + self._copies[order])[::-1], NEVER)
        return self._exposed(some, room, self._needed[some], link)

    def _exposed(self, some: Integers, first: Integers, last: Integers, link: Gaps) -> Integers:
        """Return how much of copies does not fit between two kernels where the link is free."""
        copies, start, end = self._copies[some], self._starts[first], self._starts[last]
        left = copies - (link.free_before(end) - link.free_before(start))
        return np.where(end <= start, copies, np.maximum(left, 0))


def layers_to_offload(
    timeline: OffloadTimeline,
    layers: Iterable[Layer],
    budget_bytes: int,
    preferred: LayerKind,
    copy_cycles: Callable[[int], int],
    returns: Returns,
) -> tuple[Layer, ...]:
    """Return the layers that offload, in order, until the peak is within the budget; else all that help.

    From no offload at all, the layer is added that is away at the peak and has the most bytes times cycles
    away for each cycle that its copies are exposed to kernels, at the rate that a link leaves to one of the
    GPUs that share it; of equals the one of the ``preferred`` kind, then the first. In the end layers that do
    not matter any more are taken out again, those with the most bytes first. It is a reading of Kim et al.,
    FAS*W 2018.
    """
    offloading = (layer for layer in layers if layer.inputs)
    every = (timeline.offloaded(layer, copy_cycles, returns) for layer in offloading)
    found, times = [candidate for candidate in every if candidate.gone < candidate.back], timeline.times
    exposure = _Exposure(found, timeline.starts)
    worth = [one.size_bytes * (times[one.back] - times[one.gone]) for one in found]
    rough_worth = np.array(worth, dtype=np.float64)
    chosen, is_left = list[int](), np.ones(len(found), dtype=bool)
    used = timeline.occupancy()
    while used.bytes[peak := int(np.argmax(used.bytes))] > budget_bytes:
        away = np.flatnonzero(is_left & (exposure.gone <= peak) & (peak < exposure.back))
        if not len(away):
            break
        cycles = exposure.cycles(away, np.flatnonzero(used.bytes > budget_bytes))
        rough = rough_worth[away] / (1 + cycles)
        near = np.flatnonzero(rough >= (1 - _ROUNDING) * rough.max())
        scores = (
            (worth[number] / (1 + exposed), found[number].layer.kind is preferred, -number)
            for number, exposed in zip(away[near].tolist(), cycles[near].tolist(), strict=True)
        )
        best = -max(scores)[-1]
        is_left[best] = False
        chosen.append(best)
        exposure.take(best)
        used.add(found[best].gone, found[best].back, -found[best].size_bytes)
    kept = pruned([found[number] for number in chosen], used, budget_bytes)
    return tuple(sorted((one.layer for one in kept), key=lambda layer: layer.index))


def pruned(chosen: Sequence[Offloaded], used: Occupancy, budget_bytes: int) -> list[Offloaded]:
    """Return what matters of those that are chosen: without the others the peak is no higher."""
    kept = list(chosen)
    limit = max(budget_bytes, used.peak_bytes)
    for candidate in sorted(chosen, key=lambda candidate: -candidate.size_bytes):
        size = candidate.size_bytes
        if used.most(candidate.gone, candidate.back) + size <= limit:
            used.add(candidate.gone, candidate.back, size)
            kept.remove(candidate)
    return kept
