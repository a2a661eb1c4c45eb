"""The least that kernels can wait for swaps, known for all pairs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.capuchin.swaps import AccessPair, GuidedSwap, Lanes
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.swapping.access import AccessSequence

if TYPE_CHECKING:
    import numpy.typing as npt

_NEVER = 2**62


class LeastCosts:
    """Waits for swaps of pairs, by their numbers, and bounds of them for those that have a swap already.

    Lanes fill up: the copies of a pair end no earlier than they would have before, except for those that find
    room where another copy has been given up.
    """

    def __init__(self, accesses: AccessSequence, lanes: Lanes, pairs: Sequence[AccessPair]) -> None:
        self._starts, self._lanes = accesses.starts, lanes
        rows = [(one.evicted, one.use, one.size_bytes, one.out_cycles, one.copy_cycles) for one in pairs]
        self.evicted, self.uses, self.sizes, self._departures, self._copies = (
            np.array(rows, dtype=np.int64).reshape(-1, 5).T.copy()
        )
        count = len(pairs)
        self._first: Integers = np.full(count, _NEVER, dtype=np.int64)
        self._last, self._away_from, self._away_until = np.full((3, count), -1, dtype=np.int64)
        self._changes, self._costs = 0, np.zeros(count, dtype=np.int64)
        self._costs_of = np.full_like(self._costs, -1)
        self._out_ends, self._back_ends, self._out_waits, self._back_waits = np.zeros(
            (4, count), dtype=np.int64
        )

    def extents(self, numbers: Integers, first: Integers, last: Integers) -> tuple[Integers, Integers]:
        """Return from which to which kernels pairs are to be away that are away for some already."""
        return np.minimum(first, self._first[numbers]), np.maximum(last, self._last[numbers])

    def of(self, numbers: Integers, first: Integers, last: Integers) -> Integers:
        """Return the least cycles that kernels wait longer for swaps from first to last kernels."""
        kernels = len(self._starts)
        asked = (self._changes * kernels + first) * kernels + last
        new = np.flatnonzero(self._costs_of[numbers] != asked)
        self._costs_of[numbers[new]] = asked[new]
        self._costs[numbers[new]] = self._worked_out(numbers[new], first[new], last[new])
        return self._costs[numbers]

    def _worked_out(self, numbers: Integers, first: Integers, last: Integers) -> Integers:
        copies, uses, evicted = self._copies[numbers], self.uses[numbers], self.evicted[numbers]
        departures = self._departures[numbers]
        out = np.maximum(self._out_ends[numbers], self._starts[evicted + 1] + departures)
        back = np.maximum(self._back_ends[numbers], self._starts[last + 1] + copies)
        trigger, new = last.copy(), np.flatnonzero(self._first[numbers] == _NEVER)
        out[new], back[new], trigger[new] = self._lanes.ends(
            evicted[new], last[new], uses[new], departures[new], copies[new]
        )
        out -= self._lanes.with_waits(evicted, first)
        out += np.where(first == self._first[numbers], self._out_waits[numbers], 0)
        back -= self._lanes.with_waits(trigger, uses) - self._back_waits[numbers]
        paid = self._out_waits[numbers] + self._back_waits[numbers]
        costs: Integers = np.clip(out, 0, departures) + np.clip(back, 0, copies) - paid
        return costs

    def are_away(self, numbers: Integers, time: int) -> npt.NDArray[np.bool_]:
        """Tell of each pair whether its swap takes it away at a time."""
        return (self._away_from[numbers] <= time) & (time < self._away_until[numbers])

    def take(self, number: int, swap: GuidedSwap, away: Interval, old: GuidedSwap | None) -> None:
        """Note a swap that is planned, in place of an old one, and when it takes its tensor away."""
        self._changes += 1
        if old is not None and old.out != swap.out:
            self._give_up(self._out_ends, self._lanes.out, old.out)
        if old is not None and old.back != swap.back:
            self._give_up(self._back_ends, self._lanes.back, old.back)
        self._first[number], self._last[number] = swap.first, swap.last
        self._out_ends[number], self._back_ends[number] = swap.out.end, swap.back.end
        self._out_waits[number], self._back_waits[number] = swap.out_wait, swap.back_wait
        self._away_from[number], self._away_until[number] = away

    def _give_up(self, ends: Integers, lane: Channel, copy: Interval) -> None:
        np.minimum(ends, lane.free_since(copy.start) + self._copies, out=ends)
