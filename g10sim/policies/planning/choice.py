"""The best of candidates whose worth shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

import numpy as np

from g10sim.analysis.timeline import Floats, Integers

_FIRST = 8
"""Candidates that are worked out at a time, at least."""


class Standing:
    """Candidates by what each was last found to be worth, the best first, of equals that of a lower number.

    Those without any worth (0) are left out for good. All that is worked out again counts from then on; if
    ``in_turn``, what is worked out ahead, behind the best, counts as if it had not been looked at.
    """

    def __init__(self, *, in_turn: bool = False) -> None:
        self._waiting: list[tuple[float, int]] = []
        self._in_turn, self._count = in_turn, _FIRST

    def add(self, numbers: Iterable[int], worths: Floats) -> None:
        """Add candidates with their worths."""
        for worth, number in zip(worths.tolist(), numbers, strict=True):
            if worth:
                heappush(self._waiting, (-worth, number))

    def remove_best(self) -> None:
        """Leave out the one that was found best last."""
        heappop(self._waiting)

    def best(self, worths: Callable[[Integers], Floats]) -> int | None:
        """Return the number of the candidate that is worth most; None: there is none.

        ``worths`` works some out again: a few of those that were worth most, then more and more, until one is
        better than any that follows was.
        """
        waiting, best, count = self._waiting, (0.0, -1), self._count
        looked_at, ahead = list[tuple[float, int]](), list[tuple[float, int]]()
        while waiting and waiting[0] < best:
            some = [heappop(waiting) for _ in range(min(count, len(waiting)))]
            numbers = [number for _, number in some]
            found = zip((-worths(np.array(numbers))).tolist(), numbers, strict=True)
            for place, (before, now) in enumerate(zip(some, found, strict=True)):
                if self._in_turn and not before < best:
                    ahead = some[place:]
                    break
                looked_at.append(now)
                best = min(best, now)
            count *= 2
        if self._in_turn:  # mostly about as many are needed as the last time
            self._count = max(_FIRST, len(looked_at) * 5 // 4)
        for entry in looked_at + ahead:
            if entry[0]:
                heappush(waiting, entry)
        return best[1] if best[0] else None


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
