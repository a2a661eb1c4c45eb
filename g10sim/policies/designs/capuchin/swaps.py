"""Times at which a chosen tensor is copied out and in, how long kernels wait for that, and the least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from g10sim.analysis.timeline import Flags, Integers
from g10sim.analysis.vitality import inactive_periods
from g10sim.policies.planning.channel import NEVER, Channel, Interval
from g10sim.policies.planning.swapping.schedule import AccessSequence, Swap


class AccessPair(NamedTuple):
    """Kernel ``evicted`` uses a tensor before the peak, kernel ``use`` is the next that does, after it.

    ``free_time`` (FT): cycles between the end of a copy out right after the first and the start of a copy
    in right before the second, of ``out_cycles`` and ``copy_cycles``. Negative where they take longer than
    there is.
    """

    tensor: int
    evicted: int
    use: int
    size_bytes: int
    out_cycles: int
    copy_cycles: int
    free_time: int


def access_pairs(accesses: AccessSequence, bytes_per_cycle: float, least_bytes: int = 0) -> list[AccessPair]:
    """Return the pairs of all tensors between which kernels run, the longest free time first.

    Tensors of less than ``least_bytes`` are left out.
    """
    found, times = [], accesses.times
    for tensor, start, use, wraps in inactive_periods(accesses.trace):
        size = accesses.sizes[tensor]
        if not wraps and size >= least_bytes:
            copy = accesses.copy_cycles(tensor, bytes_per_cycle)
            out = accesses.out_cycles(tensor, copy)
            free_time = times[use] - times[start] - out - copy
            found.append(AccessPair(tensor, start - 1, use, size, out, copy, free_time))
    return sorted(found, key=lambda pair: (-pair.free_time, pair.tensor))


@dataclass(frozen=True, slots=True)
class GuidedSwap:
    """A tensor leaves after the first access of a pair and is back for the second.

    It is to be away from kernel ``first`` to kernel ``last``. ``trigger`` is the kernel at whose start the
    copy in is issued. ``out_wait``: how long kernel ``first`` is expected to wait for the copy out, beyond
    what it waits for others; ``back_wait``: how long the next use waits for that in.
    """

    pair: AccessPair
    first: int
    last: int
    out: Interval
    back: Interval
    trigger: int
    out_wait: int = 0
    back_wait: int = 0

    @property
    def overhead_cycles(self) -> int:
        """Cycles that kernels are expected to wait for the copies."""
        return self.out_wait + self.back_wait

    def counted(self, accesses: AccessSequence) -> Swap:
        """Return the swap as memory is counted: kernel ``first`` waits until the tensor has left."""
        out = Interval(self.out.start, min(self.out.end, accesses.interval(self.first).start))
        back = Interval(accesses.interval(self.trigger).start, self.back.end)
        return Swap(self.pair.tensor, out, back, self.pair.use)


class Lanes:
    """The link's two directions, where copies of each come one after another, and who waits for them."""

    def __init__(self, accesses: AccessSequence) -> None:
        self._accesses = accesses
        self.out, self.back = Channel(), Channel()
        self._waits: Integers = np.zeros(len(accesses.starts), dtype=np.int64)

    def take(self, swap: GuidedSwap) -> None:
        """Keep both lanes for a swap's copies."""
        self.out.take(swap.out, self._accesses.period)
        self.back.take(swap.back, self._accesses.period)
        self._wait(swap, 1)

    def give_back(self, swap: GuidedSwap) -> None:
        """Undo ``take``."""
        self.out.give_back(swap.out, self._accesses.period)
        self.back.give_back(swap.back, self._accesses.period)
        self._wait(swap, -1)

    def _wait(self, swap: GuidedSwap, sign: int) -> None:
        if swap.out_wait:
            self._waits[swap.first + 1 :] += sign * swap.out_wait
        if swap.back_wait:
            self._waits[swap.pair.use + 1 :] += sign * swap.back_wait

    def with_waits(self, after: Integers | int, kernels: Integers | int) -> Integers:
        """Return when kernels start if those after one wait as they do already: copies go on meanwhile."""
        starts: Integers = self._accesses.starts[kernels] + self._waits[kernels + 1] - self._waits[after + 1]
        return starts

    def ends(
        self, evicted: Integers, last: Integers, uses: Integers, departures: Integers, copies: Integers
    ) -> tuple[Integers, Integers, Integers]:
        """Return when the copies of exposed swaps would end, out and in, and their triggers."""
        starts, period = self._accesses.starts, self._accesses.period
        after, begin = starts[evicted + 1], starts[last + 1]
        out = self.out.gaps(period).earliest(after, after + period, departures)
        back = self.back.gaps(period).latest(begin, starts[uses], copies)
        late = self.back.gaps(period).earliest(begin, begin + period, copies)
        back_start, back_end = (np.where(back[0] < NEVER, *both) for both in zip(back, late, strict=True))
        running = starts.searchsorted(np.minimum(back_start, period - 1), side="right") - 1
        return out[1], back_end, np.minimum(np.maximum(running, last + 1), uses)

    def planned(self, pair: AccessPair, first: int, last: int, *, may_wait: bool) -> GuidedSwap | None:
        """Return a swap over some kernels, out as early, in as late as possible; None: there is no time.

        Nothing waits for it, unless the first kernel ``may_wait`` for the copy out, and the next use for that
        in.
        """
        times, period = self._accesses.times, self._accesses.period
        begin, end = times[pair.evicted + 1], times[last + 1]
        out_window = Interval(begin, begin + period if may_wait else times[first])
        out = self.out.earliest(out_window, pair.out_cycles, period)
        back = self.back.latest(Interval(end, times[pair.use]), pair.copy_cycles, period)
        if back is None and may_wait:
            back = self.back.earliest(Interval(end, end + period), pair.copy_cycles, period)
        if out is None or back is None:
            return None
        trigger = trigger_at(self._accesses, pair, last, back.start)
        out_wait = out.end - int(self.with_waits(pair.evicted, first))
        back_wait = back.end - int(self.with_waits(trigger, pair.use))
        # A copy delays those behind it, and whoever waits for them, by no more than its own time.
        out_wait = min(pair.out_cycles, max(0, out_wait))
        back_wait = min(pair.copy_cycles, max(0, back_wait))
        return GuidedSwap(pair, first, last, out, back, trigger, out_wait, back_wait)


def trigger_at(accesses: AccessSequence, pair: AccessPair, last: int, time: int) -> int:
    """Return the last kernel after ``last``, up to the next use, that starts at a time or before it."""
    kernel = accesses.kernel_at(max(0, min(time, accesses.period - 1)))
    return min(max(kernel, last + 1), pair.use)


class LeastCosts:
    """Waits for swaps of pairs, by their numbers, and bounds of them for those that have a swap already.

    Lanes fill up: the copies of a pair end no earlier than they would have before, except for those that find
    room where another copy has been given up.
    """

    def __init__(self, accesses: AccessSequence, lanes: Lanes, pairs: Sequence[AccessPair]) -> None:
        self._starts, self._lanes = accesses.starts, lanes
        columns, count = np.array(pairs, dtype=np.int64).reshape(-1, 7).T.copy(), len(pairs)
        self.tensors, self.evicted, self.uses, self.sizes = columns[:4]
        self._departures, self._copies, self.free_times = columns[4:]
        self._first: Integers = np.full(count, NEVER, dtype=np.int64)
        self._last, self._away_from, self._away_until = np.full((3, count), -1, dtype=np.int64)
        self._changes, self._costs = 0, np.zeros(count, dtype=np.int64)
        self._costs_of = np.full_like(self._costs, -1)
        self._out_ends, self._back_ends = np.zeros((2, count), dtype=np.int64)
        self._out_waits, self._back_waits = np.zeros((2, count), dtype=np.int64)

    def extents(self, numbers: Integers, first: Integers, last: Integers) -> tuple[Integers, Integers]:
        """Return from which to which kernels pairs are to be away that are away for some already."""
        return np.minimum(first, self._first.take(numbers)), np.maximum(last, self._last.take(numbers))

    def of(self, numbers: Integers, first: Integers, last: Integers) -> Integers:
        """Return the least cycles that kernels wait longer for swaps from first to last kernels."""
        kernels = len(self._starts)
        asked = (self._changes * kernels + first) * kernels + last
        new = np.flatnonzero(self._costs_of.take(numbers) != asked)
        self._costs_of[numbers[new]] = asked[new]
        self._costs[numbers[new]] = self._worked_out(numbers[new], first[new], last[new])
        return self._costs.take(numbers)

    def _worked_out(self, numbers: Integers, first: Integers, last: Integers) -> Integers:
        copies, uses, evicted = self._copies[numbers], self.uses[numbers], self.evicted[numbers]
        departures = self._departures[numbers]
        out = np.maximum(self._out_ends[numbers], self._starts[evicted + 1] + departures)
        back = np.maximum(self._back_ends[numbers], self._starts[last + 1] + copies)
        trigger, new = last.copy(), np.flatnonzero(self._first[numbers] == NEVER)
        out[new], back[new], trigger[new] = self._lanes.ends(
            evicted[new], last[new], uses[new], departures[new], copies[new]
        )
        out -= self._lanes.with_waits(evicted, first)
        out += np.where(first == self._first[numbers], self._out_waits[numbers], 0)
        back -= self._lanes.with_waits(trigger, uses) - self._back_waits[numbers]
        paid = self._out_waits[numbers] + self._back_waits[numbers]
        costs: Integers = np.clip(out, 0, departures) + np.clip(back, 0, copies) - paid
        return costs

    def are_away(self, time: int) -> Flags:
        """Tell of each pair whether its swap takes it away at a time."""
        return (self._away_from <= time) & (time < self._away_until)

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
