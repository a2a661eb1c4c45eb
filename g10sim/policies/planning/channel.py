"""Intervals of time, and channels on which one transfer happens at a time."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from g10sim.policies.planning.gaps import Gaps


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
    channel count their times from the start of their own iterations.
    """

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")
        self._gaps: Gaps | None = None

    @property
    def taken(self) -> tuple[Interval, ...]:
        """Return the busy intervals of an iteration, in order; adjacent ones are joined."""
        return tuple(map(Interval, self._starts, self._ends))

    def take(self, interval: Interval, period: int) -> None:
        """Keep an interval for a transfer in every iteration of ``period`` cycles."""
        self._gaps = None
        for start, end in interval.within(period):
            place = bisect_right(self._starts, start)
            low, high = place, place
            if place and self._ends[place - 1] == start:
                low, start = place - 1, self._starts[place - 1]
            if place < len(self._starts) and self._starts[place] == end:
                high, end = place + 1, self._ends[place]
            self._starts[low:high], self._ends[low:high] = array("q", [start]), array("q", [end])

    def fill(self, window: Interval, period: int) -> None:
        """Take all that is free of a window."""
        for part in self.free(window, period):
            self.take(part, period)

    def free(self, window: Interval, period: int) -> list[Interval]:
        """Return the free parts of a window that ends in the next iteration at the latest."""
        edges = [window.start]
        for shift in (0, period):
            first = max(0, bisect_right(self._starts, window.start - shift) - 1)
            stop = bisect_left(self._starts, window.end - shift)
            for start, end in zip(self._starts[first:stop], self._ends[first:stop], strict=True):
                edges.append(min(start + shift, window.end))
                edges.append(min(max(end + shift, window.start), window.end))
        edges.append(window.end)
        parts = map(Interval, edges[::2], edges[1::2])
        return [part for part in parts if part.start < part.end]

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

    def earliest(self, start: int, end: int, length: int, period: int) -> int | None:
        """Return the first time from ``start`` on at which it is free for so long, until ``end``; or None."""
        last = end - length
        while start <= last:
            found = self._free_from(start, length, last)
            if found + length > period:
                found = self._free_from(found - period, length, last - period) + period
            if found == start:
                return start
            start = found
        return None

    def latest(self, start: int, end: int, length: int, period: int) -> int | None:
        """Return the last time until ``end`` up to which it is free for so long, from ``start``; or None."""
        first = start + length
        while end >= first:
            found = self._free_until(end, length, first)
            if found > period:
                found = self._free_until(found - period, length, first - period) + period
            if found == end:
                return end
            end = found
        return None

    def _free_from(self, start: int, length: int, last: int) -> int:
        """Return when it is free for so long, in this iteration, or a time after the last that matters."""
        starts, ends = self._starts, self._ends
        for place in range(bisect_right(ends, start), len(starts)):
            if starts[place] >= start + length or start > last:
                break
            start = ends[place]
        return start

    def _free_until(self, end: int, length: int, first: int) -> int:
        """Return until when it is free for so long, in this iteration, or a time before the first allowed."""
        starts, ends = self._starts, self._ends
        for place in range(bisect_left(starts, end) - 1, -1, -1):
            if ends[place] <= end - length or end < first:
                break
            end = starts[place]
        return end


def queued(copies: Iterable[tuple[int, int]]) -> list[Interval]:
    """Return when copies happen one after another, in order; each may begin at a time and takes so long."""
    found: list[Interval] = []
    for ready, length in copies:
        start = max(ready, found[-1].end) if found else ready
        found.append(Interval(start, start + length))
    return found


def queued_backwards(copies: Iterable[tuple[int, int]]) -> list[Interval]:
    """Return when copies happen one before another, from the last on, each as late as its end allows."""
    found: list[Interval] = []
    for due, length in copies:
        end = min(due, found[-1].start) if found else due
        found.append(Interval(end - length, end))
    return found


def earliest(
    channel: Channel, window: Interval, length: int, period: int, closed: Sequence[Interval] = ()
) -> Interval | None:
    """Return the earliest stretch of a window in which the channel is free, outside what is ``closed``."""
    start = channel.earliest(*window, length, period)
    while start is not None and (blocked := _overlap(closed, start, start + length)) is not None:
        start = channel.earliest(blocked.end, window.end, length, period)
    return None if start is None else Interval(start, start + length)


def latest(channel: Channel, window: Interval, length: int, period: int) -> Interval | None:
    """Return the latest stretch of a window in which the channel is free."""
    end = channel.latest(*window, length, period)
    return None if end is None else Interval(end - length, end)


def _overlap(intervals: Sequence[Interval], start: int, end: int) -> Interval | None:
    """Return one of some intervals, in order and apart, that overlaps ``start`` to ``end``, or None."""
    place = bisect_right(intervals, (start, start))
    near = intervals[max(0, place - 1) : place + 1]
    return next((found for found in near if found.start < end and start < found.end), None)
