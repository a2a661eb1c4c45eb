"""Demand of a trace: bytes alive during each kernel, and the periods in which tensors may be away.

Bounds look at memory at checkpoints: the start and the end of some kernels.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log

import numpy as np

from g10sim.analysis.footprint import unmoved_bytes, working_set_bytes
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers, kernel_durations, prefix_sums
from g10sim.analysis.vitality import InactivePeriod, each_inactive_period
from g10sim.grouping import grouped
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Period:
    """A tensor is used by kernel ``last`` and then not before kernel ``following``.

    One that ``wraps`` crosses the border of the iteration. A ``frozen`` tensor leaves without a transfer.
    ``rerun`` is (cycles, bytes) of the kernel that may run again in place of a transfer back, with all its
    results that can be dropped; None if the tensor cannot be dropped.
    """

    size_bytes: int
    last: int
    following: int
    wraps: bool = False
    rerun: tuple[int, int] | None = None
    frozen: bool = False


@dataclass(frozen=True)
class Demand:
    """One iteration of a trace, in cycles and whole pages.

    ``live_bytes`` are those of each kernel: persistent tensors that some kernel uses, live ranges, and what
    is written in vain; ``lasting_bytes`` are the first of these, ``frozen_bytes`` those that none writes.
    ``needed_bytes`` is the largest working set, ``sizes`` are those of tensors. With ``recomputes`` tensors
    may be dropped.
    """

    cycles: Integers
    live_bytes: Integers
    lasting_bytes: int
    needed_bytes: int
    trace: Trace
    sizes: Sequence[int]
    recomputes: bool = False
    frozen_bytes: int = 0

    @cached_property
    def periods(self) -> tuple[Period, ...]:
        """Every period in which a tensor may be away, by tensor and then by start."""
        return tuple(self._periods())

    def _periods(self) -> Iterator[Period]:
        trace, sizes = self.trace, self.sizes
        reruns = _Reruns(trace, self.cycles, sizes) if self.recomputes else None
        for found in each_inactive_period(trace):
            last = trace.uses[found.tensor][-1] if found.wraps else found.start - 1
            rerun = None if reruns is None else reruns.of(found)
            frozen = found.tensor in trace.frozen
            yield Period(sizes[found.tensor], last, found.end, found.wraps, rerun, frozen)

    @property
    def ideal_cycles(self) -> int:
        """Sum of the kernel times."""
        return int(self.cycles.sum())

    @property
    def peak_bytes(self) -> int:
        """Most bytes alive at a time."""
        return int(self.live_bytes.max(initial=0))


def demand_of(trace: Trace, clock_hz: int, page_bytes: int, *, recompute: bool = False) -> Demand:
    """Return the demand of a trace; with ``recompute``, tensors may be dropped and computed again."""
    sizes = [pages * page_bytes for pages in trace.page_sizes(page_bytes)]
    cycles = kernel_durations(trace, clock_hz)
    facts = zip(sizes, trace.lasting, trace.uses, strict=True)
    used = sum(size for size, lasts, uses in facts if lasts and uses)
    needed = int(working_set_bytes(trace, sizes).max(initial=0))
    frozen_bytes = sum(sizes[tensor] for tensor in trace.frozen if trace.uses[tensor])
    live = unmoved_bytes(trace, sizes)
    return Demand(cycles, live, used, needed, trace, sizes, recompute, frozen_bytes)


class _Reruns:
    """Finds the least that it takes to compute tensors again."""

    def __init__(self, trace: Trace, cycles: Integers, sizes: Sequence[int]) -> None:
        self._trace, self._cycles, self._sizes = trace, cycles, sizes
        self._rules = Recomputability(trace, chains=True)
        periods = each_inactive_period(trace)
        self._droppable = {period.tensor for period in periods if self._may_drop(period)}

    def _may_drop(self, period: InactivePeriod) -> bool:
        """Return whether a policy may drop the tensor, once the kernel before the period has ended."""
        moments = () if period.wraps else (period.start - 1, period.end)
        return any(not self._rules.problem(period.tensor, kernel) for kernel in moments)

    def of(self, period: InactivePeriod) -> tuple[int, int] | None:
        """Return (cycles, bytes) of the rerun that brings a tensor back at the end of a period, or None.

        A rerun brings all results back that were dropped. A tensor that is written next, and not read, comes
        back for nothing.
        """
        tensor = period.tensor
        if not self._may_drop(period):
            return None
        producer = self._rules.producer(tensor, period.end)
        if producer is None or tensor not in self._trace.kernels[period.end].inputs:
            return 0, self._sizes[tensor]
        results = self._droppable.intersection(producer.outputs)
        return int(self._cycles[producer.id]), sum(self._sizes[result] for result in results)


_PARTS = 5
_FINENESS = log(1.25)
"""Logarithm of the ratio below which the prices of reruns are rounded down to the lowest."""


def choose_checkpoints(demand: Demand, count: int) -> Integers:
    """Return that many kernels, in order; more of them include all that fewer do.

    The iteration is cut into parts, and each of them into halves again and again, by number of kernels and,
    to a quarter, by time. Of each part the kernel with the most live bytes is taken. The choice does not
    depend on the machine: a better machine cannot have a higher bound.
    """
    kernels = len(demand.cycles)
    if count >= kernels:
        return np.arange(kernels)
    before = np.cumsum(demand.cycles) - demand.cycles
    position = (before / max(1, demand.ideal_cycles) + 3 * np.arange(kernels) / kernels) / 4
    chosen: dict[int, None] = {}
    parts = _PARTS
    while len(chosen) < count:
        part = np.minimum((position * parts).astype(np.int64), parts - 1)
        edges = [*np.flatnonzero(np.diff(part, prepend=-1)).tolist(), kernels]
        peaks = [start + int(demand.live_bytes[start:stop].argmax()) for start, stop in pairwise(edges)]
        peaks.sort(key=lambda kernel: -int(demand.live_bytes[kernel]))
        chosen.update(dict.fromkeys(peaks))
        parts *= 2
    return np.array(sorted(list(chosen)[:count]))


@dataclass(frozen=True, slots=True)
class PeriodGroup:
    """Periods that cover the same states, ``first`` to ``last``; over the border they are counted on.

    Bytes that do not leave are away from the beginning; those that do not return stay away to the end.
    ``price`` is (cycles, bytes) of the cheapest rerun; None where nothing may be dropped. What is ``frozen``
    leaves without a transfer.
    """

    first: int
    last: int
    leaves: bool
    returns: bool
    size_bytes: int
    price: tuple[int, int] | None
    frozen: bool


@dataclass(frozen=True)
class Checkpoints:
    """States of an iteration: the start and the end of the computation of each chosen kernel.

    If the iteration repeats (``steady``), its border is one more state. Interval ``i`` ends with state ``i``,
    and the last one begins with the last checkpoint.
    """

    demand: Demand
    kernels: Integers
    steady: bool

    @cached_property
    def states(self) -> list[int]:
        """Twice the kernel for its start, and one more for its end; that of the border is last."""
        border = [2 * len(self.demand.cycles)] if self.steady else []
        return [*np.sort(np.concatenate([2 * self.kernels, 2 * self.kernels + 1])).tolist(), *border]

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes alive in every state."""
        border = [self.demand.lasting_bytes] if self.steady else []
        return [*np.repeat(self.demand.live_bytes[self.kernels], 2).tolist(), *border]

    @cached_property
    def cycles(self) -> list[int]:
        """Computation within every interval, in cycles."""
        ends = prefix_sums(self.demand.cycles)
        places = [(state + 1) // 2 for state in self.states if state < 2 * len(self.demand.cycles)]
        found: list[int] = np.diff(ends[places], prepend=0, append=ends[-1]).tolist()
        return found

    @cached_property
    def may_stall(self) -> list[bool]:
        """Tell of every interval whether a kernel may wait in it; a kernel that computes does not."""
        return [*(state % 2 == 0 for state in self.states), *([] if self.steady else [True])]

    def after(self, state: int) -> int:
        """Return the interval that follows a state."""
        return (state + 1) % len(self.cycles)

    @cached_property
    def groups(self) -> tuple[PeriodGroup, ...]:
        """Periods merged by the states that they cover and by what a rerun costs."""
        members = grouped(
            ((stretch, _class_of(period.rerun), period.frozen), period)
            for period in self.demand.periods
            for stretch in self._stretches(period)
        )
        return tuple(
            PeriodGroup(*stretch, sum(period.size_bytes for period in found), _cheapest(found), frozen)
            for (stretch, _, frozen), found in members.items()
        )

    def _stretches(self, period: Period) -> list[tuple[int, int, bool, bool]]:
        """Return (first state, last state, leaves, returns) of the parts of a period that cover any."""
        after = bisect_right(self.states, 2 * period.last + 1)
        before = bisect_left(self.states, 2 * period.following) - 1
        count = len(self.states)
        if not period.wraps:
            found = [(after, before, True, True)]
        elif self.steady:
            found = [(after, before + count, True, True)]
        else:
            found = [(0, before, False, True), (after, count - 1, True, False)]
        return [stretch for stretch in found if stretch[0] <= stretch[1]]


def _class_of(rerun: tuple[int, int] | None) -> int | None:
    """Return a number that reruns of about the same price share; None where there is none."""
    if rerun is None:
        return None
    cycles, size_bytes = rerun
    return int(log(cycles / size_bytes) // _FINENESS) if cycles else -(10**6)


def _cheapest(periods: Sequence[Period]) -> tuple[int, int] | None:
    reruns = [period.rerun for period in periods if period.rerun is not None]
    return min(reruns, key=lambda rerun: rerun[0] / rerun[1], default=None)
