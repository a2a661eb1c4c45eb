"""Bytes on the GPU, or in another memory, during each kernel of an iteration."""

from __future__ import annotations

from math import floor

import numpy as np

from g10sim.analysis.footprint import levels
from g10sim.analysis.timeline import Integers, prefix_sums
from g10sim.policies.planning.budget import move_sums


class Occupancy:
    """Bytes in use during each kernel, the same in every iteration.

    Spans are kernels ``first`` to ``stop`` - 1, counted on over the border of the iteration, backwards too.
    """

    def __init__(self, occupancy_bytes: Integers) -> None:
        self.bytes = occupancy_bytes
        self._highest = -1
        """Kernel with the highest occupancy; -1: not known."""

    @property
    def peak_bytes(self) -> int:
        """Highest occupancy."""
        if not len(self.bytes):
            return 0
        if self._highest < 0:
            self._highest = int(self.bytes.argmax())
        return max(0, int(self.bytes[self._highest]))

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        for part in span_slices(first, stop, len(self.bytes)):
            changed, highest = self.bytes[part], self._highest
            changed += size_bytes
            if size_bytes < 0 and part.start <= highest < part.stop:
                self._highest = -1
            elif highest >= 0 and size_bytes > 0 and changed.max() > self.bytes[highest]:
                self._highest = part.start + int(changed.argmax())

    def most(self, first: int, stop: int) -> int:
        """Return the highest occupancy within a span; 0 for an empty one."""
        return int(self._within(first, stop).max(initial=0))

    def above(self, limit_bytes: float, first: int, stop: int) -> tuple[int, int] | None:
        """Return the first and the last kernel of a span with more than the limit, or None."""
        found = np.flatnonzero(self._within(first, stop) > limit_bytes)
        return (first + int(found[0]), first + int(found[-1])) if len(found) else None

    def within_from(self, limit_bytes: float, first: int, stop: int) -> int:
        """Return the first kernel of a span from which on it never exceeds the limit."""
        above = self.above(limit_bytes, first, stop)
        return first if above is None else above[1] + 1

    def _within(self, first: int, stop: int) -> Integers:
        parts = [self.bytes[part] for part in span_slices(first, stop, len(self.bytes))]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else self.bytes[:0]


class Pressure(Occupancy):
    """Occupancy, and how long it exceeds a limit."""

    def __init__(self, occupancy_bytes: Integers, durations: Integers, limit_bytes: float) -> None:
        super().__init__(occupancy_bytes)
        self._durations, self._limit_bytes = durations, floor(limit_bytes)
        self._over = np.zeros_like(durations)
        self._sums = prefix_sums(self._over)
        """Cycles above the limit in the first 0, 1, ... kernels, without what has ``_changed``."""
        self._changed = slice(0, len(durations))

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        super().add(first, stop, size_bytes)
        for part in span_slices(first, stop, len(self.bytes)):
            known = self._changed if self._changed.start < self._changed.stop else part
            self._changed = slice(min(known.start, part.start), max(known.stop, part.stop))

    def over_cycles(self, first: Integers, stop: Integers) -> Integers:
        """Return the cycles of spans during which occupancy exceeds the limit."""
        changed = self._changed
        if changed.start < changed.stop:
            over = (self.bytes[changed] > self._limit_bytes) * self._durations[changed]
            move_sums(self._sums, changed, over - self._over[changed])
            self._over[changed], self._changed = over, slice(0, 0)
        laps, places = np.divmod(np.stack((first, stop)), max(1, len(self.bytes)))
        before, until = laps * self._sums[-1] + self._sums.take(places)
        return np.where(stop > first, until - before, 0)


def bytes_of_spans(starts: Integers, ends: Integers, sizes: Integers, num_kernels: int) -> Integers:
    """Return the bytes that spans come to during each kernel."""
    first = starts % num_kernels
    spans = np.stack([first, first + ends - starts, sizes], axis=1)
    found: Integers = levels(spans, 2 * num_kernels).reshape(2, num_kernels).sum(axis=0)
    return found


def span_slices(first: int, stop: int, num_kernels: int) -> tuple[slice, ...]:
    """Return the slices of an iteration's kernels that make up a span of at most one iteration."""
    if stop <= first:
        return ()
    place = first % num_kernels
    end = place + stop - first
    if end <= num_kernels:
        return (slice(place, end),)
    return (slice(place, num_kernels), slice(0, end - num_kernels))
