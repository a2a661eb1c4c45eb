"""Intervals of time, and channels on which one transfer happens at a time."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """From ``start`` up to ``end``, in cycles from the start of an iteration."""

    start: int
    end: int


class Channel:
    """Transfers planned one after another, repeated in every iteration.

    A transfer that runs over the end of the iteration takes the beginning of the next one. Jobs that share a
    channel count their times from the start of their own iterations.
    """

    def __init__(self) -> None:
        self._taken: list[Interval] = []

    @property
    def taken(self) -> tuple[Interval, ...]:
        """Return the busy intervals of an iteration, in order; adjacent ones are joined."""
        return tuple(self._taken)

    def take(self, interval: Interval, period: int) -> None:
        """Keep an interval for a transfer in every iteration of ``period`` cycles."""
        for part in _within(interval, period):
            place = bisect_right(self._taken, part)
            before = self._taken[max(0, place - 1) : place]
            after = self._taken[place : place + 1]
            start = before[0].start if before and before[0].end == part.start else part.start
            end = after[0].end if after and after[0].start == part.end else part.end
            low, high = place - (start < part.start), place + (end > part.end)
            self._taken[low:high] = [Interval(start, end)]

    def fill(self, window: Interval, period: int) -> None:
        """Take all that is free of a window."""
        for part in self.free(window, period):
            self.take(part, period)

    def free(self, window: Interval, period: int) -> list[Interval]:
        """Return the free parts of a window that ends in the next iteration at the latest."""
        edges = [window.start]
        for shift in (0, period):
            first = max(0, bisect_right(self._taken, (window.start - shift, math.inf)) - 1)
            stop = bisect_left(self._taken, (window.end - shift,))
            for start, end in self._taken[first:stop]:
                edges.append(min(start + shift, window.end))
                edges.append(min(max(end + shift, window.start), window.end))
        edges.append(window.end)
        parts = map(Interval, edges[::2], edges[1::2])
        return [part for part in parts if part.start < part.end]

    def give_back(self, interval: Interval, period: int) -> None:
        """Undo ``take``."""
        for part in _within(interval, period):
            place = bisect_right(self._taken, (part.start, math.inf)) - 1
            taken = self._taken[place]
            rest = Interval(taken.start, part.start), Interval(part.end, taken.end)
            self._taken[place : place + 1] = [piece for piece in rest if piece.start < piece.end]

    def obstacle(self, start: int, end: int, period: int) -> Interval | None:
        """Return something taken between ``start`` and ``end``, or None."""
        for shift in (0, period):
            taken = _overlap(self._taken, start - shift, end - shift)
            if taken is not None:
                return Interval(taken.start + shift, taken.end + shift)
        return None


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
    start = window.start
    while start + length <= window.end:
        blocked = _first(channel, start, start + length, period, closed)
        if blocked is None:
            return Interval(start, start + length)
        start = blocked.end
    return None


def latest(
    channel: Channel, window: Interval, length: int, period: int, closed: Sequence[Interval] = ()
) -> Interval | None:
    """Return the latest stretch of a window in which the channel is free, outside what is ``closed``."""
    end = window.end
    while end - length >= window.start:
        blocked = _first(channel, end - length, end, period, closed)
        if blocked is None:
            return Interval(end - length, end)
        end = blocked.start
    return None


def earliest_in_parts(channel: Channel, window: Interval, length: int, period: int) -> Interval | None:
    """Return from the first to the last of the earliest free parts of a window that last for ``length``."""
    parts = channel.free(window, period)
    for part in parts:
        if length <= part.end - part.start:
            return Interval(parts[0].start, part.start + length)
        length -= part.end - part.start
    return None


def latest_in_parts(channel: Channel, window: Interval, length: int, period: int) -> Interval | None:
    """Return from the first to the last of the latest free parts of a window that last for ``length``."""
    parts = channel.free(window, period)
    for part in reversed(parts):
        if length <= part.end - part.start:
            return Interval(part.end - length, parts[-1].end)
        length -= part.end - part.start
    return None


def _first(
    channel: Channel, start: int, end: int, period: int, closed: Sequence[Interval]
) -> Interval | None:
    """Return something that keeps a transfer from happening from ``start`` to ``end``, or None."""
    found = channel.obstacle(start, end, period)
    return _overlap(closed, start, end) if found is None else found


def _overlap(intervals: Sequence[Interval], start: int, end: int) -> Interval | None:
    """Return one of some intervals, in order and apart, that overlaps ``start`` to ``end``, or None."""
    place = bisect_right(intervals, (start, start))
    near = intervals[max(0, place - 1) : place + 1]
    return next((found for found in near if found.start < end and start < found.end), None)


def _within(interval: Interval, period: int) -> list[Interval]:
    """Return the parts of an interval of less than an iteration, each within one."""
    start, end = interval
    if start >= period:
        return _within(Interval(start - period, end - period), period)
    if end <= period:
        return [interval]
    return [Interval(start, period), Interval(0, end - period)]
