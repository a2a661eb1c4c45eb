"""Lifetimes that share time, and the addresses of those in a window of it, in order while the window moves.

Lifetimes are found from their starts: work is proportional to what is alive, not to all.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Integers

AddressKind: TypeAlias = Literal["i", "q"]
"""Code of the integers that addresses are kept as: of 32 bits, which move faster, or of 64."""
_KEPT = 3
"""Windows: large blocks of one size cross the load peak, or come before it, or after it."""
_NEAR = 128
"""Pieces by which a window moves, less than this; farther away, a new one costs less."""
_STEP = 128
"""Pieces, in order of their starts, of which one tells what is alive there."""


class Neighbors:
    """Lifetimes on a circle of time, cut where the circle closes: each is one *piece*, or two.

    Every that many starts it is written down which pieces are alive then; those that share time with a piece
    are among the ones alive there and the ones that start later, up to its end. ``block`` has the lifetime
    of every piece, ``stopping`` the pieces by their stops, ``stop_ranks`` the places that they have there.
    """

    def __init__(self, starts: Integers, lengths: Integers, circle: int) -> None:
        starts = starts % circle
        ends = starts + lengths
        crossing = np.flatnonzero(ends > circle)
        begins = np.concatenate([starts, np.zeros_like(crossing)])
        stops = np.concatenate([np.minimum(ends, circle), ends[crossing] - circle])
        blocks = np.concatenate([np.arange(len(starts)), crossing])
        order = np.argsort(begins, kind="stable")
        self.block: Integers = blocks[order]
        self._begins, self._stops = begins[order], stops[order]
        self._until: list[int] = self._begins.searchsorted(self._stops).tolist()
        stopping = self._stops.argsort(kind="stable")
        self._since: list[int] = self._stops[stopping].searchsorted(self._begins, side="right").tolist()
        self.stopping: list[int] = stopping.tolist()
        self.stop_ranks: list[int] = stopping.argsort().tolist()
        self._numbers = np.arange(len(order))
        places = np.empty_like(order)
        places[order] = self._numbers
        self._pieces: list[list[int]] = places[: len(starts), np.newaxis].tolist()
        for block, place in zip(crossing.tolist(), places[len(starts) :].tolist(), strict=True):
            self._pieces[block].append(place)
        self._alive = [self._numbers[:0]]
        for place in range(_STEP, len(order), _STEP):
            before = np.concatenate([self._alive[-1], self._numbers[place - _STEP : place]])
            self._alive.append(before[self._stops[before] > self._begins[place]])

    def pieces(self, block: int) -> list[int]:
        """Return the pieces of a lifetime."""
        return self._pieces[block]

    def span(self, block: int) -> tuple[int, int]:
        """Return how many pieces stop before a lifetime, and how many begin before its end.

        The latter are counted on where the lifetime crosses the border of the circle.
        """
        first, *second = self.pieces(block)
        return self._since[first], len(self.block) + self._until[second[0]] if second else self._until[first]

    def of(self, block: int) -> Integers:
        """Return the pieces that share time with a lifetime, its own among them."""
        found = [self._beside(piece) for piece in self.pieces(block)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _beside(self, piece: int) -> Integers:
        step = piece // _STEP
        near = np.concatenate([self._alive[step], self._numbers[step * _STEP : self._until[piece]]])
        return near.compress(self._stops.take(near) > self._begins[piece])


@dataclass(slots=True, eq=False)
class _Window:
    """The placed ones of the first ``until`` pieces, without the ``since`` pieces that stop first.

    Pieces are counted on over the border of the circle. Begins and ends are those in memory, each in order;
    the first end is 0, and the last begin above all others.
    """

    since: int
    until: int
    begins: array[int]
    ends: array[int]


class Windows:
    """Windows around one lifetime after another, among those that are placed already.

    Lifetimes that follow each other often share time with nearly the same others. The last few windows are
    kept therefore, and the nearest of them moves to the next lifetime.
    """

    def __init__(self, neighbors: Neighbors, kind: AddressKind) -> None:
        self._neighbors, self._kind = neighbors, kind
        self._begins, self._ends = (array(kind, [-1]) * len(neighbors.block) for _ in range(2))
        self._kept: list[_Window] = []

    def of(self, block: int) -> tuple[Integers, Integers]:
        """Return the begins and the ends in memory, each in order, of what shares time with a lifetime.

        The first end is 0, that of none, and the last begin above all. They hold until the next call of a
        method.
        """
        since, until = self._neighbors.span(block)
        near, least = None, _NEAR
        for kept in self._kept:
            distance = abs(kept.since - since) + abs(kept.until - until)
            if distance < least:
                near, least = kept, distance
        if near is None:
            near = self._new(block, since, until)
            del self._kept[: 1 - _KEPT]
        else:
            self._kept.remove(near)
            self._move(near, since, until)
        self._kept.append(near)
        return np.frombuffer(near.begins, self._kind), np.frombuffer(near.ends, self._kind)

    def put(self, block: int, begin: int, end: int) -> None:
        """Place a lifetime from one address to another."""
        count, ranks = len(self._begins), self._neighbors.stop_ranks
        for piece in self._neighbors.pieces(block):
            self._begins[piece], self._ends[piece] = begin, end
            for kept in self._kept:
                times = (piece < kept.until) + (piece + count < kept.until) - (ranks[piece] < kept.since)
                for _ in range(times):
                    insort(kept.begins, begin)
                    insort(kept.ends, end)

    def _new(self, block: int, since: int, until: int) -> _Window:
        pieces = self._neighbors.of(block)
        begins, ends = (np.frombuffer(values, self._kind)[pieces] for values in (self._begins, self._ends))
        placed, most = begins >= 0, np.iinfo(self._kind).max
        sides = (np.append(side[placed], side.dtype.type(last)) for side, last in ((begins, most), (ends, 0)))
        return _Window(since, until, *(array(self._kind, np.sort(side).tobytes()) for side in sides))

    def _move(self, window: _Window, since: int, until: int) -> None:
        """Let a window begin and end at other times: first what joins it, then what it leaves behind."""
        stopping, before, after = self._neighbors.stopping, window.since, window.until
        begins, ends, count = self._begins, self._ends, len(self._begins)
        for piece in (*range(after, until), *stopping[since:before]):
            if begins[piece - count] >= 0:
                insort(window.begins, begins[piece - count])
                insort(window.ends, ends[piece - count])
        for piece in (*range(until, after), *stopping[before:since]):
            if begins[piece - count] >= 0:
                del window.begins[bisect_left(window.begins, begins[piece - count])]
                del window.ends[bisect_left(window.ends, ends[piece - count])]
        window.since, window.until = since, until
