"""Bytes on the GPU, or in another memory, during each kernel of an iteration, and transfer budgets.

A budget says how many bytes one direction of a link can still move while each kernel runs. Kernels are
counted on over the border of the iteration: kernel n + k is kernel k of the next iteration, which has the
same budget. Prefix sums answer by bisection when a transfer would end or must begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

import numpy as np

from g10sim.analysis.footprint import levels
from g10sim.analysis.timeline import Floats, Integers, Numbers, prefix_sums


class Budget:
    """One direction of the GPU's link, and the channels of the tiers that go over it.

    A transfer uses up both; the free budget of a tier is never more than the link's. Rates are bytes/cycle,
    by name of the tier. ``free_bytes`` are those of each kernel on the way to or from a tier; read only.
    """

    def __init__(self, durations: Integers, link_rate: float, rates: Mapping[str, float]) -> None:
        cycles: Floats = durations.astype(np.float64)
        unit = 2.0 ** (np.ceil(np.log2(cycles.sum() * link_rate + 1)) - 51)  # so that sums of it are exact
        self._link: Floats = np.rint(cycles * link_rate / unit) * unit
        self.free_bytes = {
            tier: np.rint(cycles * min(rate, link_rate) / unit) * unit for tier, rate in rates.items()
        }
        self.num_kernels = len(durations)
        self._sums = {tier: prefix_sums(free) for tier, free in self.free_bytes.items()}

    def finish(self, starts: Integers, sizes_bytes: Integers, tier: str) -> Integers:
        """Kernels during which transfers end that may begin with kernels ``starts``.

        Three iterations on where an iteration's budget is not enough.
        """
        sums, kernels = self._sums[tier], self.num_kernels
        begins, laps = _without_laps(starts, kernels)
        wanted, total = sums[begins] + sizes_bytes, sums[-1]
        is_next = wanted > total
        wanted, laps = np.where(is_next, wanted - total, wanted), np.where(is_next, laps + kernels, laps)
        found = np.maximum(starts, sums.searchsorted(wanted) - 1 + laps)
        return np.where(wanted > total, 3 * kernels, found)

    def latest_start(self, ends: Integers, sizes_bytes: Integers, tier: str) -> Integers:
        """Last kernels with which transfers can begin and end before kernels ``ends``; -1 for none."""
        sums, kernels = self._sums[tier], self.num_kernels
        stops, laps = _without_laps(ends, kernels)
        wanted = sums[stops] - sizes_bytes
        is_before = (wanted < 0) & (laps > 0)
        wanted = np.where(is_before, wanted + sums[-1], wanted)
        laps = np.where(is_before, laps - kernels, laps)
        found = np.minimum(ends - 1, sums.searchsorted(wanted, "right") - 1 + laps)
        return np.where(wanted < 0, -1, found)

    def debit(self, start: int, size_bytes: float, tier: str) -> None:
        """Use up budget for a transfer, from kernel ``start`` on, for at most one iteration."""
        path, sums, left = self.free_bytes[tier], self._sums[tier], float(size_bytes)
        for part in span_slices(start, start + self.num_kernels, self.num_kernels):
            if left <= 0:
                break
            last = min(int(sums.searchsorted(sums[part.start] + left)), part.stop)
            used = path[part.start : last].copy()
            used[-1] -= max(0.0, float(sums[last] - sums[part.start]) - left)
            left -= float(used.sum())
            self._take(slice(part.start, last), used, tier)

    def _take(self, kernels: slice, used: Floats, tier: str) -> None:
        link = self._link[kernels] = np.maximum(self._link[kernels] - used, 0.0)
        for name, free in self.free_bytes.items():
            left = np.minimum(free[kernels] - (used if name == tier else 0.0), link)
            move_sums(self._sums[name], kernels, left - free[kernels])
            free[kernels] = left


def move_sums(sums: Numbers, part: slice, changes: Numbers) -> None:
    """Let sums of the first 0, 1, ... values follow changes of a part of them; all sums have to be exact."""
    changed = changes.cumsum()
    sums[part.start + 1 : part.stop + 1] += changed
    sums[part.stop + 1 :] += changed[-1]


def _without_laps(kernels: Integers, num_kernels: int) -> tuple[Integers, Integers]:
    """Split kernels counted on over the border into (kernels of an iteration, first of that iteration)."""
    laps = np.where(kernels > num_kernels, num_kernels, 0)
    return kernels - laps, laps


class Occupancy:
    """Bytes in use during each kernel, the same in every iteration.

    Spans are kernels ``first`` to ``stop`` - 1, counted on over the border of the iteration, backwards too.
    """

    def __init__(self, occupancy_bytes: Integers) -> None:
        self.bytes = occupancy_bytes

    @property
    def peak_bytes(self) -> int:
        """Highest occupancy."""
        return int(self.bytes.max(initial=0))

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        for part in span_slices(first, stop, len(self.bytes)):
            self.bytes[part] += size_bytes

    def most(self, first: int, stop: int) -> int:
        """Return the highest occupancy within a span; 0 for an empty one."""
        return int(self._within(first, stop).max(initial=0))

    def above(self, limit_bytes: float, first: int, stop: int) -> tuple[int, int] | None:
        """Return the first and the last kernel of a span with more than the limit, or None."""
        (found,) = (self._within(first, stop) > limit_bytes).nonzero()
        return (first + int(found[0]), first + int(found[-1])) if len(found) else None

    def within_from(self, limit_bytes: float, first: int, stop: int) -> int:
        """Return the first kernel of a span from which on it never exceeds the limit."""
        above = self.above(limit_bytes, first, stop)
        return first if above is None else above[1] + 1

    def _within(self, first: int, stop: int) -> Integers:
        parts = [self.bytes[part] for part in span_slices(first, stop, len(self.bytes))]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else self.bytes[:0]


class ExcessOccupancy(Occupancy):
    """Occupancy, and how long it exceeds a limit."""

    def __init__(self, occupancy_bytes: Integers, durations: Integers, limit_bytes: float) -> None:
        super().__init__(occupancy_bytes)
        self._durations, self._limit_bytes = durations, floor(limit_bytes)
        self._sums: Integers | None = None
        """Cycles above the limit in the first 0, 1, ... kernels; None: not known."""

    def add(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during a span."""
        super().add(first, stop, size_bytes)
        self._sums = None

    def over_cycles(self, first: Integers, stop: Integers) -> Integers:
        """Return the cycles of spans during which occupancy exceeds the limit."""
        if self._sums is None:
            self._sums = prefix_sums((self.bytes > self._limit_bytes) * self._durations)
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
