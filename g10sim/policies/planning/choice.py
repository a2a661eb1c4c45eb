"""The best of candidates whose worth shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from g10sim.analysis.timeline import Floats, Integers

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

    Those without any worth (0) are left out for good.
    """

    def __init__(self, worths: Floats) -> None:
        order = np.argsort(-worths, kind="stable")
        self._numbers: Integers = order[worths[order] > 0]
        self._keys: Floats = -worths[self._numbers]
        self._first, self._count, self._many = 0, _FIRST, 0

    def pop(self, worths: Callable[[Integers], Floats]) -> int | None:
        """Work out candidates, the first ones first, until one is better than any that follows was; take it.

        Returns its number; None: there is none left. ``worths`` may work out more of them than are looked at.
        """
        first, place, count = self._first, self._first, self._count
        keys, numbers = np.zeros(1), np.array([len(self._keys)])  # worse than any candidate
        while place < len(self._keys):
            some = self._numbers[place : place + count]
            keys, numbers = np.concatenate((keys, -worths(some))), np.concatenate((numbers, some))
            lowest, best = _best_up_to_each(keys, numbers)
            known, following = (
                np.concatenate((values[first + 1 : first + len(keys)], [worst]))[: len(keys) - 1]
                for values, worst in ((self._keys, 0.0), (self._numbers, -1))
            )
            is_first = (lowest[1:] < known) | ((lowest[1:] == known) & (best[1:] < following))
            place, looked_at = place + len(some), place + len(some) - first
            count = max(looked_at, self._many - looked_at) if looked_at >= 2 * _FIRST else 2 * count
            if is_first.any():
                end = int(is_first.argmax()) + 2
                chosen = int(best[end - 1])
                is_left = (keys[:end] < 0) & (numbers[:end] != chosen)
                self._put_back(first + end - 1, keys[:end][is_left], numbers[:end][is_left])
                return chosen
        return None

    def _put_back(self, place: int, keys: Floats, numbers: Integers) -> None:
        """Put candidates of which the worth has changed among those from a place on."""
        needed = place - self._first
        self._count = min(max(_FIRST, needed * 5 // 4), _MOST_FIRST)
        if needed > _MOST_FIRST:
            self._many = needed * 21 // 20  # mostly a few are needed, or about as many as the last time
        self._first = place - len(keys)
        order = np.lexsort((numbers, keys))
        keys, numbers = keys[order], numbers[order]
        at, after = (self._keys[place:].searchsorted(keys, side) for side in ("left", "right"))
        for key in set(keys[at < after].tolist()):
            equal = keys == key
            first, stop = at[equal][0], after[equal][0]
            at[equal] += self._numbers[place + first : place + stop].searchsorted(numbers[equal])
        stop = place + int(at.max(initial=0))
        at += np.arange(len(at))
        is_old = np.ones(stop - self._first, dtype=np.bool_)
        is_old[at] = False
        for kept, new in ((self._keys, keys), (self._numbers, numbers)):
            old = kept[place:stop].copy()
            kept[self._first : stop][is_old] = old
            kept[self._first + at] = new


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


def _best_up_to_each(keys: Floats, numbers: Integers) -> tuple[Floats, Integers]:
    """Return the lowest key of the first 1, 2, ... candidates, and the lowest number that has it."""
    lowest = np.minimum.accumulate(keys)
    falls = np.append(0, (lowest[1:] < lowest[:-1]).cumsum()) * (numbers.max() + 1)
    holders = np.where(keys == lowest, numbers - falls, numbers.max())
    return lowest, np.minimum.accumulate(holders) + falls
