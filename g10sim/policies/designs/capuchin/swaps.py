"""Times at which a chosen tensor is copied out and in, and how long kernels wait for that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Channel, Interval, earliest, latest
from g10sim.policies.planning.gaps import NEVER
from g10sim.policies.planning.swapping.access import AccessSequence, transfer_cycles
from g10sim.policies.planning.swapping.schedule import Swap


@dataclass(frozen=True, slots=True)
class AccessPair:
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
    for tensor, (uses, size) in enumerate(zip(accesses.uses, accesses.sizes, strict=True)):
        if size < least_bytes:
            continue
        copy = transfer_cycles(accesses, tensor, bytes_per_cycle)
        out = accesses.out_cycles(tensor, copy)
        found += [
            AccessPair(tensor, evicted, use, size, out, copy, times[use] - times[evicted + 1] - out - copy)
            for evicted, use in pairwise(uses)
            if use > evicted + 1
        ]
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

    def _waits_within(self, after: int, until: int) -> int:
        """Return how long kernels wait already, of those after one up to another: copies go on meanwhile."""
        return int(self._waits[until + 1] - self._waits[after + 1])

    def with_waits(self, after: Integers, kernels: Integers) -> Integers:
        """Return when kernels start if those after one wait as they do already."""
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

    def hidden(self, pair: AccessPair, peak: int) -> GuidedSwap | None:
        """Return a swap over a kernel that nothing waits for, out as early, in as late as possible.

        None: there is none.
        """
        accesses = self._accesses
        before = Interval(accesses.interval(pair.evicted).end, accesses.interval(peak).start)
        out = earliest(self.out, before, pair.out_cycles, accesses.period)
        back = self._latest(pair, peak)
        if out is None or back is None:
            return None
        return GuidedSwap(pair, peak, peak, out, back, trigger_at(accesses, pair, peak, back.start))

    def exposed(self, pair: AccessPair, first: int, last: int) -> GuidedSwap | None:
        """Return a swap over some kernels: the first may wait for the copy out, the next use for that in.

        None: the link has no time for it.
        """
        accesses = self._accesses
        end, period = accesses.interval(pair.evicted).end, accesses.period
        out = earliest(self.out, Interval(end, end + period), pair.out_cycles, period)
        back = self._latest(pair, last)
        if back is None:
            start = accesses.interval(last).end
            back = earliest(self.back, Interval(start, start + period), pair.copy_cycles, period)
        if out is None or back is None:
            return None
        trigger = trigger_at(accesses, pair, last, back.start)
        out_wait = out.end - accesses.interval(first).start - self._waits_within(pair.evicted, first)
        back_wait = back.end - accesses.interval(pair.use).start - self._waits_within(trigger, pair.use)
        # A copy delays those behind it, and whoever waits for them, by no more than its own time.
        out_wait = min(pair.out_cycles, max(0, out_wait))
        back_wait = min(pair.copy_cycles, max(0, back_wait))
        return GuidedSwap(pair, first, last, out, back, trigger, out_wait, back_wait)

    def _latest(self, pair: AccessPair, last: int) -> Interval | None:
        accesses = self._accesses
        after = Interval(accesses.interval(last).end, accesses.interval(pair.use).start)
        return latest(self.back, after, pair.copy_cycles, accesses.period)


def trigger_at(accesses: AccessSequence, pair: AccessPair, last: int, time: int) -> int:
    """Return the last kernel after ``last``, up to the next use, that starts at a time or before it."""
    kernel = accesses.kernel_at(max(0, min(time, accesses.period - 1)))
    return min(max(kernel, last + 1), pair.use)
