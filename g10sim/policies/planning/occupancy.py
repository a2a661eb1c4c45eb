"""Bytes on the GPU, or in another memory, during each kernel of an iteration."""

from __future__ import annotations

from math import floor

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.prefix_sums import PrefixSums

_BLOCK = 4096


class Occupancy:
    """Bytes in use during each kernel, the same in every iteration.

    Spans are kernels ``first`` to ``stop`` - 1, counted on over the border of the iteration, backwards too.
    """

    def __init__(self, occupancy_bytes: Integers) -> None:
        self.bytes = occupancy_bytes
        blocks = -(-len(occupancy_bytes) // _BLOCK)
        self._peaks, self._altered = np.zeros(blocks, dtype=np.int64), set(range(blocks))

    @property
    def peak_bytes(self) -> int:
        """Highest occupancy; looks at the kernels around those that have changed."""
        for block in self._altered:
            self._peaks[block] = self.bytes[block * _BLOCK : (block + 1) * _BLOCK].max()
        self._altered.clear()
        return int(self._peaks.max(initial=0))

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        for part in span_slices(first, stop, len(self.bytes)):
            self.bytes[part] += size_bytes
            self._altered.update(range(part.start // _BLOCK, (part.stop - 1) // _BLOCK + 1))

    def most(self, first: int, stop: int) -> int:
        """Return the highest occupancy within a span; 0 for an empty one."""
        return int(self._within(first, stop).max(initial=0))

    def above(self, limit_bytes: float, first: int, stop: int) -> tuple[int, int] | None:
        """Return the first and the last kernel of a span with more than the limit, or None."""
        found = np.flatnonzero(self._within(first, stop) > limit_bytes)
        return (first + int(found[0]), first + int(found[-1])) if len(found) else None

    def within_from(self, limit_bytes: float, first: int, stop: int) -> int:
        """Return the first kernel of a span from which on it never exceeds the limit."""
        count = 64
        while True:
            start = max(first, stop - count)
            above = self.above(limit_bytes, start, stop)
            if above is not None:
                return above[1] + 1
            if start == first:
                return first
            count *= 8

    def _within(self, first: int, stop: int) -> Integers:
        parts = [self.bytes[part] for part in span_slices(first, stop, len(self.bytes))]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else self.bytes[:0]


class Pressure(Occupancy):
    """Occupancy, and how long it exceeds a limit."""

    def __init__(self, occupancy_bytes: Integers, durations: Integers, limit_bytes: float) -> None:
        super().__init__(occupancy_bytes)
        self._durations, self._limit_bytes = durations, floor(limit_bytes)
        self._is_over = self.bytes > self._limit_bytes
        self._over: Integers = self._is_over * durations
        self._over_sums = PrefixSums(self._over)
        self._changed = list[slice]()

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        super().add(first, stop, size_bytes)
        self._changed += span_slices(first, stop, len(self.bytes))

    def over_cycles(self, first: Integers, stop: Integers) -> Integers:
        """Return the cycles of spans during which occupancy exceeds the limit."""
        for part in self._changed:
            is_over = self.bytes[part] > self._limit_bytes
            turned = np.flatnonzero(is_over != self._is_over[part])
            if len(turned):
                self._is_over[part] = is_over
                some = slice(part.start + int(turned[0]), part.start + int(turned[-1]) + 1)
                self._over[some] = self._is_over[some] * self._durations[some]
                self._over_sums.change(some.start, some.stop)
        self._changed.clear()
        return np.where(stop > first, self._over_before(stop) - self._over_before(first), 0)

    def _over_before(self, kernel: Integers) -> Integers:
        laps, places = np.divmod(kernel, max(1, len(self.bytes)))
        sums: Integers = laps * self._over_sums.sums[-1] + self._over_sums.sums.take(places)
        return sums


def span_slices(first: int, stop: int, num_kernels: int) -> tuple[slice, ...]:
    """Return the slices of an iteration's kernels that make up a span of at most one iteration."""
    if stop <= first:
        return ()
    place = first % num_kernels
    end = place + stop - first
    if end <= num_kernels:
        return (slice(place, end),)
    return (slice(place, num_kernels), slice(0, end - num_kernels))
