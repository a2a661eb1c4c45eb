"""Lifetimes that share time, found from their starts: work is proportional to what is alive, not to all."""

from __future__ import annotations

import numpy as np

from g10sim.analysis.timeline import Integers

_STEP = 128


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
        together: Integers = near.compress(self._stops.take(near) > self._begins[piece])
        return together
