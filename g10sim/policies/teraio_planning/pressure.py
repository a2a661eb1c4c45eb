"""Critical memory pressure: bytes beyond GPU memory as a function of time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval

_LARGEST = np.iinfo(np.int64).max


class CriticalPressure:
    """Bytes beyond GPU memory (negative: room), the same in every iteration, in steps at any time.

    ``starts`` has the start of every kernel and the end of the last one, in cycles.
    """

    def __init__(self, starts: Integers, beyond_bytes: Integers) -> None:
        self._times, self._beyond = starts.copy(), beyond_bytes.copy()
        self._lengths: Integers = np.diff(self._times)
        self._period = int(starts[-1])

    @property
    def highest_bytes(self) -> int:
        """The most bytes beyond GPU memory; 0 where all fits."""
        return max(0, int(self._beyond.max(initial=0)))

    def relief(self, absence: Interval, size_bytes: int) -> int:
        """Return the pressure that the absence of so many bytes would take away, in bytes x cycles."""
        total = 0
        for part in self._parts(absence):
            first = int(self._times.searchsorted(part.start, side="right")) - 1
            last = int(self._times.searchsorted(part.end, side="left"))
            lengths = self._lengths[first:last].copy()
            lengths[0] -= part.start - self._times[first]
            lengths[-1] -= self._times[last] - part.end
            taken = np.minimum(np.maximum(self._beyond[first:last], 0), size_bytes)
            if size_bytes * (part.end - part.start) > _LARGEST:
                taken = taken.astype(object)
            total += int(taken.dot(lengths))
        return total

    def lower(self, absence: Interval, size_bytes: int) -> None:
        """Let so many bytes be absent."""
        for part in self._parts(absence):
            first, last = self._split(part.start), self._split(part.end)
            self._beyond[first:last] -= size_bytes

    def _split(self, time: int) -> int:
        """Return the step that begins at a time, made if there is none."""
        place = int(self._times.searchsorted(time, side="left"))
        if place < len(self._times) and self._times[place] == time:
            return place
        self._times = np.insert(self._times, place, time)
        self._beyond = np.insert(self._beyond, place, self._beyond[place - 1])
        self._lengths = np.diff(self._times)
        return place

    def _parts(self, absence: Interval) -> Iterator[Interval]:
        """Yield the parts of an absence within an iteration; those after its end come at the beginning."""
        start, end = absence
        if start >= self._period:
            start, end = start - self._period, end - self._period
        if start < min(end, self._period):
            yield Interval(start, min(end, self._period))
        if end > self._period:
            yield Interval(0, end - self._period)
