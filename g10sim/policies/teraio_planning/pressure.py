"""Critical memory pressure: bytes beyond GPU memory as a function of time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.occupancy import prefix_sums

_LARGEST, _LOW_BITS = np.iinfo(np.int64).max, 20


class CriticalPressure:
    """Bytes beyond GPU memory (negative: room), the same in every iteration, in steps at any time.

    ``starts`` has the start of every kernel and the end of the last one, in cycles.
    """

    def __init__(self, starts: Integers, beyond_bytes: Integers) -> None:
        self._times, self._beyond = starts.copy(), beyond_bytes.copy()
        self._period = int(starts[-1])
        self._renew()

    @property
    def highest_bytes(self) -> int:
        """The most bytes beyond GPU memory; 0 where all fits."""
        return self._highest

    def relief(self, absence: Interval, size_bytes: int) -> int:
        """Return the pressure that the absence of so many bytes would take away, in bytes x cycles.

        Sums up to each step are kept for sizes that are asked for often between two changes.
        """
        taken, sums = self._taken(size_bytes)
        total = 0
        for start, end in self._parts(absence):
            first = int(self._times.searchsorted(start, side="right")) - 1
            last = int(self._times.searchsorted(end, side="left"))
            total += sum((int(part[last]) - int(part[first])) << shift for shift, part in sums.items())
            total -= int(taken[first]) * (start - int(self._times[first]))
            total -= int(taken[last - 1]) * (int(self._times[last]) - end)
        return total

    def _taken(self, size_bytes: int) -> tuple[Integers, dict[int, Integers]]:
        """Return the bytes of so many that are beyond GPU memory in each step, and their sums x cycles.

        Sums that may be too large are those of the high and of the low bits, by how far they are shifted.
        """
        if size_bytes not in self._of_size:
            taken = np.minimum(self._above, size_bytes)
            parts = {0: taken}
            if size_bytes * self._period > _LARGEST:
                parts = {_LOW_BITS: taken >> _LOW_BITS, 0: taken & ((1 << _LOW_BITS) - 1)}
            sums = {shift: prefix_sums(part * self._lengths) for shift, part in parts.items()}
            self._of_size[size_bytes] = taken, sums
        return self._of_size[size_bytes]

    def lower(self, absence: Interval, size_bytes: int) -> None:
        """Let so many bytes be absent."""
        for part in self._parts(absence):
            first, last = self._split(part.start), self._split(part.end)
            self._beyond[first:last] -= size_bytes
        self._renew()

    def _renew(self) -> None:
        self._lengths: Integers = np.diff(self._times)
        self._above: Integers = np.maximum(self._beyond, 0)
        self._highest = int(self._above.max(initial=0))
        self._of_size: dict[int, tuple[Integers, dict[int, Integers]]] = {}

    def _split(self, time: int) -> int:
        """Return the step that begins at a time, made if there is none."""
        place = int(self._times.searchsorted(time, side="left"))
        if place < len(self._times) and self._times[place] == time:
            return place
        self._times = np.insert(self._times, place, time)
        self._beyond = np.insert(self._beyond, place, self._beyond[place - 1])
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
