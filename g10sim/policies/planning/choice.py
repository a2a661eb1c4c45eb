"""The best of candidates whose worth shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Floats, Integers

if TYPE_CHECKING:
    import numpy.typing as npt

_FIRST, _MOST_FIRST = 8, 128
"""Candidates that are worked out at a time, at least, and at most to begin with."""
_WORTHLESS = -1j
"""An entry of no worth, before all others of none."""

Entries: TypeAlias = "npt.NDArray[np.complex128]"


class Standing:
    """Candidates by what each was worth when it was last worked out: no less than it is worth now."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int]] = []

    def add(self, numbers: Sequence[int], worths: Floats) -> None:
        """Add candidates with their worths; those without any are left out for good."""
        for worth, number in zip(worths.tolist(), numbers, strict=True):
            if worth:
                heappush(self._waiting, (-worth, number))

    def remove_best(self) -> None:
        """Leave out the one that was found best last."""
        heappop(self._waiting)

    def best(self, worths: Callable[[Integers], Floats]) -> int | None:
        """Return the number of the candidate that is worth most, of equals the lowest; None: there is none.

        ``worths`` works some out again: a few of those that were worth most, then more and more.
        """
        waiting, looked_at, count = self._waiting, list[tuple[float, int]](), _FIRST
        best = 0.0, -1
        while waiting and waiting[0] < best:
            numbers = [heappop(waiting)[1] for _ in range(min(count, len(waiting)))]
            found = (-worths(np.array(numbers))).tolist()
            looked_at += zip(found, numbers, strict=True)
            best = min(best, min(looked_at))
            count *= 2
        for entry in looked_at:
            if entry[0]:
                heappush(waiting, entry)
        return best[1] if best[0] else None


class Ranking:
    """Candidates by what each was last found to be worth, the best first, of equals that of a lower number.

    Those without any worth (0) are left out for good. An entry is a complex number, which numpy sorts by its
    real part, less the worth of a candidate, and then by the other one, the candidate's number.
    """

    def __init__(self, worths: Floats) -> None:
        self._entries = np.sort(_entries(worths, np.arange(len(worths)))[worths > 0])
        self._first, self._count, self._many = 0, _FIRST, 0

    def pop(self, worths: Callable[[Integers], Floats]) -> int | None:
        """Work out candidates, the first ones first, until one is better than any that follows was; take it.

        Returns its number; None: there is none left. ``worths`` may work out more of them than are looked at.
        """
        first, place, count = self._first, self._first, self._count
        found = self._entries[:0]
        while place < len(self._entries):
            numbers = self._entries[place : place + count].imag.astype(np.int64)
            found = np.concatenate((found, _entries(worths(numbers), numbers)))
            best = np.minimum.accumulate(found)
            following = np.append(self._entries[first + 1 : first + len(found) + 1], _WORTHLESS)[: len(found)]
            is_first = best < following
            place, looked_at = place + len(numbers), len(found)
            count = max(looked_at, self._many - looked_at) if looked_at >= 2 * _FIRST else 2 * count
            if is_first.any():
                end = int(is_first.argmax()) + 1
                chosen = best[end - 1]
                left = found[:end]
                self._put_back(first + end, left[(left.real < 0) & (left != chosen)])
                return int(chosen.imag)
        return None

    def _put_back(self, place: int, entries: Entries) -> None:
        """Put candidates of which the worth has changed among those from a place on."""
        needed = place - self._first
        self._count = min(max(_FIRST, needed * 5 // 4), _MOST_FIRST)
        if needed > _MOST_FIRST:
            self._many = needed * 21 // 20  # mostly a few are needed, or about as many as the last time
        self._first = place - len(entries)
        entries = np.sort(entries)
        before = self._entries[place:].searchsorted(entries)
        stop = place + int(before.max(initial=0))
        self._entries[self._first : stop] = np.insert(self._entries[place:stop], before, entries)


def _entries(worths: Floats, numbers: Integers) -> Entries:
    return -worths + 1j * numbers


def nested(numbers: Integers, kinds: Integers, starts: Integers, ends: Integers) -> dict[int, list[int]]:
    """Return the spans directly within each other one of their kind, by its number; -1: those within none.

    A span is within another one that has a lower number.
    """
    found = dict[int, list[int]]()
    around, kind = list[tuple[int, int]](), -1
    order = np.lexsort((numbers, -ends, starts, kinds))
    for number, own, end in np.stack((numbers, kinds, ends))[:, order].T.tolist():
        while around and (own != kind or around[-1][1] < end):
            around.pop()
        outer = around[-1][0] if around else -1
        found.setdefault(outer if outer < number else -1, []).append(number)
        around.append((number, end))
        kind = own
    return found


def best_first(worths: Floats, keys: Integers) -> Iterator[int]:
    """Yield the numbers of candidates with any worth, the best first, of equals that with the lowest key.

    They are put in order when more than a few are asked for.
    """
    left = worths.copy()
    for _ in range(_FIRST):
        most = left.max(initial=0)
        if not most:
            return
        best = np.flatnonzero(left == most)
        left[best] = 0
        yield from map(int, best[keys[best].argsort(kind="stable")])
    order = np.lexsort((keys, -left))
    yield from map(int, order[left[order] > 0])
