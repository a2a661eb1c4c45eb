"""Changes of memory in use, kept in the order of their times while a plan grows and is taken back."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import TypeVar

import numpy as np

from g10sim.analysis.timeline import Integers

Entry = TypeVar("Entry")


class Changes:
    """Sizes that are added at a time, or taken away.

    Of those at one time, what is taken away comes first, or last with ``adds_first``.
    """

    def __init__(self, times: Integers, sizes: Integers, *, adds_first: bool) -> None:
        self._sign = -1 if adds_first else 1
        order = np.lexsort((self._sign * sizes, times))
        self.times, self._sizes = times[order], sizes[order]
        self._levels: Integers | None = None

    @property
    def levels(self) -> Integers:
        """Return the sum of the sizes up to each change."""
        if self._levels is None:
            self._levels = np.cumsum(self._sizes)
        return self._levels

    def add(self, changes: Iterable[tuple[int, int]]) -> None:
        """Add pairs of time and size."""
        ordered = sorted(changes, key=lambda change: (change[0], self._sign * change[1]))
        places = [self._place(*change) for change in ordered]
        self.times = np.insert(self.times, places, [time for time, _ in ordered])
        self._sizes = np.insert(self._sizes, places, [size for _, size in ordered])
        self._levels = None

    def remove(self, changes: Iterable[tuple[int, int]]) -> None:
        """Undo ``add``."""
        for change in changes:
            place = self._place(*change)
            self.times, self._sizes = np.delete(self.times, place), np.delete(self._sizes, place)
        self._levels = None

    def _place(self, time: int, size: int) -> int:
        """Return the place of the first change of this time and size, or of the one that it comes before."""
        low, high = int(self.times.searchsorted(time)), int(self.times.searchsorted(time, side="right"))
        return low + int((self._sign * self._sizes[low:high]).searchsorted(self._sign * size))


def differing(before: list[Entry], after: list[Entry]) -> tuple[int, int]:
    """Return how many objects two lists share at their beginnings, and how many of the rest at their ends."""
    start = _shared(before, after)
    return start, _shared(before[start:][::-1], after[start:][::-1])


def _shared(before: list[Entry], after: list[Entry]) -> int:
    same = list(map(is_, before, after))
    return same.index(False) if False in same else len(same)
