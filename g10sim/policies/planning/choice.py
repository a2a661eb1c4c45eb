"""The best of candidates whose worth shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from g10sim.analysis.timeline import Floats, Integers, Numbers

_FIRST, _MOST_FIRST = 8, 128
"""Candidates that are worked out at a time, at least, and at most to begin with."""


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

    Those without any worth (0) are left out for good. Each is a complex number of less its worth and its
    number, as numpy orders such by both.
    """

    def __init__(self, worths: Floats) -> None:
        entries = _entries(worths, np.arange(len(worths)))
        self._entries = np.sort(entries[worths > 0])
        self._first, self._count, self._many = 0, _FIRST, 0

    def pop(self, worths: Callable[[Integers], Floats]) -> int | None:
        """Work out candidates, the first ones first, until one is better than any that follows was; take it.

        Returns its number; None: there is none left. ``worths`` may work out more of them than are looked at.
        """
        entries, count = self._entries[self._first :], self._count
        looked_at = entries[:0]
        while len(looked_at) < len(entries):
            numbers = entries[len(looked_at) :][:count].imag.astype(np.int64)
            looked_at = np.concatenate((looked_at, _entries(worths(numbers), numbers)))
            count = len(looked_at)
            best, following = np.minimum.accumulate(looked_at), np.append(entries[1 : count + 1], 0)
            is_first = best < following[:count]
            if is_first.any():
                end = int(is_first.argmax()) + 1
                self._count = min(max(_FIRST, end * 5 // 4), _MOST_FIRST)
                if end > _MOST_FIRST:
                    self._many = end * 21 // 20  # mostly a few are needed, or about as many as the last time
                chosen, left = best[end - 1], looked_at[:end]
                left = left[(left.real < 0) & (left != chosen)]
                stop = end + (int(entries[end:].searchsorted(left.max())) if len(left) else 0)
                between = np.sort(np.concatenate((left, entries[end:stop])), kind="stable")
                entries[stop - len(between) : stop] = between
                self._first += stop - len(between)
                return int(chosen.imag)
            count = max(count, self._many - count) if count >= 2 * _FIRST else 2 * count
        return None


def _entries(worths: Floats, numbers: Integers) -> Numbers:
    """Return complex numbers that are ordered by worth, the highest first, and then by number."""
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
