"""Intervals of time, and channels on which one transfer happens at a time: for one copy, or many at once."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Integers

NEVER = 2**61
"""Time of what does not happen."""

Copies: TypeAlias = tuple[Integers, Integers]
"""Starts and ends of copies. Those of which a window has no room for begin at ``NEVER``."""


class Gaps:
    """The free times of a channel, in order, in an iteration and the next one.

    The channel is busy from ``begins`` to ``stops``, in order, in every iteration of ``period`` cycles; the
    last gap never ends.
    Copies of ``lengths`` are asked for in windows from ``first`` to ``last``, which end within the next
    iteration.
    """

    def __init__(
        self, begins: Sequence[int] | Integers, stops: Sequence[int] | Integers, period: int
    ) -> None:
        begun, stopped = np.array(begins, dtype=np.int64), np.array(stops, dtype=np.int64)
        starts = np.concatenate(([0], stopped, stopped + period))
        ends = np.concatenate((begun, begun + period, [NEVER]))
        are_free = ends > starts
        self._starts, self._ends = starts[are_free], ends[are_free]
        self._lengths = self._ends - self._starts
        self._sums = self._lengths.cumsum()

    def earliest(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return the earliest copies."""
        gaps = self._ends.searchsorted(first, side="right")
        begins = np.maximum(self._starts[gaps], first)
        for some, fits in self._by_length(lengths, (begins + lengths > self._ends[gaps]).nonzero()[0]):
            begins[some] = self._starts[fits[fits.searchsorted(gaps[some], side="right")]]
        stops = begins + lengths
        return np.where(stops <= last, begins, NEVER), stops

    def latest(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return the latest copies."""
        gaps = np.maximum(self._starts.searchsorted(last) - 1, 0)
        stops = np.minimum(self._ends[gaps], last)
        for some, fits in self._by_length(lengths, (stops - lengths < self._starts[gaps]).nonzero()[0]):
            stops[some] = np.concatenate(([-NEVER], self._ends[fits]))[fits.searchsorted(gaps[some])]
        begins = stops - lengths
        return np.where(begins >= first, begins, NEVER), stops

    def earliest_in_parts(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return from the first to the last of the earliest parts that take ``lengths`` together."""
        begins = np.maximum(self._starts[self._ends.searchsorted(first, side="right")], first)
        wanted = self.free_before(first) + lengths
        gaps = self._sums.searchsorted(wanted)
        stops = self._ends[gaps] - self._sums[gaps] + wanted
        return np.where(stops <= last, begins, NEVER), stops

    def latest_in_parts(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return from the first to the last of the latest parts that take ``lengths`` together."""
        stops = np.minimum(self._ends[np.maximum(self._starts.searchsorted(last) - 1, 0)], last)
        wanted = self.free_before(last) - lengths
        gaps = self._sums.searchsorted(wanted, side="right")
        begins = self._ends[gaps] - self._sums[gaps] + wanted
        return np.where((wanted >= 0) & (begins >= first), begins, NEVER), stops

    def _by_length(self, lengths: Integers, wanted: Integers) -> Iterator[tuple[Integers, Integers]]:
        """Yield the numbers of the wanted copies that are as long, and the gaps that are long enough."""
        for length, places in groups(lengths[wanted]):
            yield wanted[places], (self._lengths >= length).nonzero()[0]

    def free_before(self, times: Integers) -> Integers:
        """Return the cycles before each of some times in which the channel is free."""
        gaps = np.maximum(self._starts.searchsorted(times, side="right") - 1, 0)
        before: Integers = self._sums[gaps] - self._lengths[gaps]
        before += np.clip(times - self._starts[gaps], 0, self._lengths[gaps])
        return before


def groups(values: Integers) -> Iterator[tuple[int, Integers]]:
    """Yield each of some values with its places."""
    is_other = values[1:] != values[:-1]
    for value in {*values[:1].tolist(), *values[1:][is_other].tolist()}:
        yield value, (values == value).nonzero()[0]


class Interval(NamedTuple):
    """From ``start`` up to ``end``, in cycles from the start of an iteration."""

    start: int
    end: int

    def within(self, period: int) -> list[Interval]:
        """Return the parts of less than an iteration, each within one."""
        start, end = self
        while start >= period:
            start, end = start - period, end - period
        if end <= period:
            return [Interval(start, end)]
        return [Interval(start, period), Interval(0, end - period)]


class Channel:
    """Transfers planned one after another, repeated in every iteration.

    A transfer that runs over the end of the iteration takes the beginning of the next one. Jobs that share a
    channel count times from the start of the iteration of each.
    """

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")
        self._gaps: Gaps | None = None

    @property
    def taken(self) -> tuple[Interval, ...]:
        """Return the busy intervals of an iteration, in order; adjacent ones are joined."""
        return tuple(map(Interval, self._starts, self._ends))

    def take(self, interval: Interval, period: int) -> None:
        """Keep what is free of an interval for a transfer in every iteration of ``period`` cycles."""
        self._gaps = None
        for start, end in interval.within(period):
            first, stop = bisect_left(self._ends, start), bisect_right(self._starts, end)
            if first < stop:
                start, end = min(start, self._starts[first]), max(end, self._ends[stop - 1])
            if start < end:
                self._starts[first:stop], self._ends[first:stop] = array("q", [start]), array("q", [end])

    def give_back(self, interval: Interval, period: int) -> None:
        """Undo ``take``."""
        self._gaps = None
        for start, end in interval.within(period):
            place = bisect_right(self._starts, start) - 1
            sides = (self._starts[place], start), (end, self._ends[place])
            rest = [piece for piece in sides if piece[0] < piece[1]]
            self._starts[place : place + 1] = array("q", [piece[0] for piece in rest])
            self._ends[place : place + 1] = array("q", [piece[1] for piece in rest])

    def gaps(self, period: int) -> Gaps:
        """Return the free times, for questions about many copies at once."""
        self._gaps = self._gaps or Gaps(self._starts, self._ends, period)
        return self._gaps

    def free_since(self, time: int) -> int:
        """Return the end of what is taken before a time; 0 where nothing is."""
        place = bisect_left(self._starts, time)
        return self._ends[place - 1] if place else 0

    def earliest(self, window: Interval, length: int, period: int) -> Interval | None:
        """Return the earliest stretch of a window in which it is free for so long; None: there is none."""
        start, last = window.start, window.end - length
        for lap in (0, period):
            for place in range(bisect_right(self._ends, start - lap), len(self._starts)):
                if self._starts[place] + lap >= start + length or start > last:
                    break
                start = self._ends[place] + lap
        return Interval(start, start + length) if start <= last else None

    def latest(self, window: Interval, length: int, period: int) -> Interval | None:
        """Return the latest stretch of a window in which it is free for so long; None: there is none."""
        first, end = window.start + length, window.end
        for lap in (period, 0):
            for place in range(bisect_left(self._starts, end - lap) - 1, -1, -1):
                if self._ends[place] + lap <= end - length or end < first:
                    break
                end = self._starts[place] + lap
        return Interval(end - length, end) if end >= first else None


def queued(ready: Integers, lengths: Integers) -> Integers:
    """Return when copies start that happen one after another, in order, each from a time on that is ready."""
    before = lengths.cumsum() - lengths
    starts: Integers = before + np.maximum.accumulate(ready - before)
    return starts


def queued_backwards(due: Integers, lengths: Integers) -> Integers:
    """Return when copies start that happen one before another, from the last on, each as late as due."""
    return -queued(-due, lengths) - lengths
