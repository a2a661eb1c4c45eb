"""When a chosen tensor is copied out and in, and how long kernels wait for that."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.policies.capuchin_planning.pairs import AccessPair
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.intervals import Channel, Interval, earliest, latest
from g10sim.policies.swap_planning.schedule import Swap


@dataclass(frozen=True, slots=True)
class GuidedSwap:
    """A tensor leaves after the first access of a pair and is back for the second.

    It is to be away while kernel ``peak`` runs. ``trigger`` is the kernel at whose start the copy in is
    issued. ``overhead_cycles``: how long kernels are expected to wait for the copies.
    """

    pair: AccessPair
    peak: int
    out: Interval
    back: Interval
    trigger: int
    overhead_cycles: int

    def counted(self, accesses: AccessSequence) -> Swap:
        """Return the swap as memory is counted: kernel ``peak`` waits until the tensor has left."""
        out = Interval(self.out.start, min(self.out.end, accesses.interval(self.peak).start))
        back = Interval(accesses.interval(self.trigger).start, self.back.end)
        return Swap(self.pair.tensor, out, back, self.pair.use)


class Lanes:
    """The link's two directions. Copies of each come one after another."""

    def __init__(self, accesses: AccessSequence) -> None:
        self._accesses = accesses
        self.out, self.back = Channel(), Channel()

    def take(self, swap: GuidedSwap) -> None:
        """Keep both lanes for a swap's copies."""
        self.out.take(swap.out, self._accesses.period)
        self.back.take(swap.back, self._accesses.period)

    def hidden(self, pair: AccessPair, peak: int) -> GuidedSwap | None:
        """Return a swap that nothing waits for, out as early, in as late as possible; None: there is none."""
        accesses = self._accesses
        before = Interval(accesses.interval(pair.evicted).end, accesses.interval(peak).start)
        out = earliest(self.out, before, pair.copy_cycles, accesses.period)
        back = self._latest(pair, peak)
        if out is None or back is None:
            return None
        return GuidedSwap(pair, peak, out, back, self._trigger(pair, peak, back), 0)

    def exposed(self, pair: AccessPair, peak: int) -> GuidedSwap | None:
        """Return a swap that kernels may wait for: ``peak`` for the copy out, the next use for that in.

        None: the link has no time for it.
        """
        accesses = self._accesses
        end, period = accesses.interval(pair.evicted).end, accesses.period
        out = earliest(self.out, Interval(end, end + period), pair.copy_cycles, period)
        back = self._latest(pair, peak)
        if back is None:
            start = accesses.interval(peak).end
            back = earliest(self.back, Interval(start, start + period), pair.copy_cycles, period)
        if out is None or back is None:
            return None
        overhead = max(0, out.end - accesses.interval(peak).start)
        overhead += max(0, back.end - accesses.interval(pair.use).start)
        return GuidedSwap(pair, peak, out, back, self._trigger(pair, peak, back), overhead)

    def _latest(self, pair: AccessPair, peak: int) -> Interval | None:
        accesses = self._accesses
        after = Interval(accesses.interval(peak).end, accesses.interval(pair.use).start)
        return latest(self.back, after, pair.copy_cycles, accesses.period)

    def _trigger(self, pair: AccessPair, peak: int, back: Interval) -> int:
        """Return the last kernel that starts no later than a copy in, after the peak."""
        return trigger_at(self._accesses, pair, peak, back.start)


def trigger_at(accesses: AccessSequence, pair: AccessPair, peak: int, time: int) -> int:
    """Return the last kernel after the peak, up to the next use, that starts at a time or before it."""
    kernel = accesses.kernel_at(max(0, min(time, accesses.period - 1)))
    return min(max(kernel, peak + 1), pair.use)
