"""Checkpoints: the kernels at whose start and end a bound looks at memory, and the periods between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np

from g10sim.analysis.bound.demand import Demand, Period
from g10sim.analysis.timeline import Integers, prefix_sums
from g10sim.grouping import grouped

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
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        stops = [*starts[1:].tolist(), kernels]
        peaks = [
            start + int(demand.live_bytes[start:stop].argmax())
            for start, stop in zip(starts.tolist(), stops, strict=True)
        ]
        peaks.sort(key=lambda kernel: -int(demand.live_bytes[kernel]))
        chosen.update(dict.fromkeys(peaks))
        parts *= 2
    return np.array(sorted(list(chosen)[:count]))


@dataclass(frozen=True, slots=True)
class Group:
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
    def groups(self) -> tuple[Group, ...]:
        """Periods merged by the states that they cover and by what a rerun costs."""
        members = grouped(
            ((stretch, _class_of(period.rerun), period.frozen), period)
            for period in self.demand.periods
            for stretch in self._stretches(period)
        )
        return tuple(
            Group(*stretch, sum(period.size_bytes for period in found), _cheapest(found), frozen)
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
