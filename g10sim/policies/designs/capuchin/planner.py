"""The hybrid of swaps and recomputations that brings one job's memory peak down to a target."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Flags, Integers
from g10sim.policies.designs.capuchin.recomputations import Recomputations
from g10sim.policies.designs.capuchin.swaps import GuidedSwap, Lanes, LeastCosts, access_pairs
from g10sim.policies.planning.channel import NEVER, Interval
from g10sim.policies.planning.choice import best_first
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.swapping.peak import PeakAnalysis, recomputation_of
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule, Recomputed

_FEW = 64
"""Pairs that are looked at first, and then twice as many each time."""


class Hybrid:
    """The plan of one job: swaps and recomputations until the peak is within the target, or none is left.

    At every peak, of the tensors that are there and are used before and after it: the one with the longest
    free time whose swap nothing waits for; without one, the swap or recomputation that saves most memory for
    the time that it costs (MSPS): that kernels wait for copies, or that a kernel takes to run again. The peak
    is found again after each.

    ``overhead_cycles``: the time that it costs of an iteration, by what is waited for and recomputed. Pairs
    have numbers in the order of their free times, the longest first.
    """

    def __init__(
        self,
        accesses: AccessSequence,
        target_bytes: int,
        bytes_per_cycle: float,
        *,
        least_bytes: int = 0,
        recomputation: bool = True,
        planning_limit: float | None = None,
    ) -> None:
        self._accesses = accesses
        self._lanes = Lanes(accesses)
        self.schedule = JobSchedule(accesses, self._lanes.out, self._lanes.back)
        self.analysis = PeakAnalysis(self.schedule, "physical")
        self._rules = Recomputability(accesses.trace)
        self._pairs = access_pairs(accesses, bytes_per_cycle, least_bytes)
        self._costs = LeastCosts(accesses, self._lanes, self._pairs)
        self._is_kept = np.ones(len(self._pairs), dtype=np.bool_)
        self._entries: dict[int, Recomputed | None] = {}
        self._remaking: Integers = np.full(len(self._pairs), -1 if recomputation else NEVER, dtype=np.int64)
        self._may_hide = self._costs.free_times >= 0
        self._tried: dict[int, int] = {}
        self._swaps: dict[int, GuidedSwap] = {}
        self._recomputed = Recomputations(accesses, self._rules)
        self.unplanned_peak_bytes, self.target_bytes = self.peak_bytes, target_bytes
        self.time = TimeLimit(planning_limit)
        self._choose()

    @property
    def peak_bytes(self) -> int:
        """The memory peak with what is planned."""
        return self.analysis.peak.size_bytes

    @property
    def is_enough(self) -> bool:
        """Return True if the peak is within the target."""
        return self.peak_bytes <= self.target_bytes

    def _choose(self) -> None:
        while not self.is_enough and not self.time.is_over():
            kernel = self._accesses.kernel_at(self.analysis.peak.time)
            if not self._swap_hidden(kernel) and not self._choose_cheapest(kernel):
                break
        self.schedule.recomputed = self._recomputed.entries()
        self.swaps = tuple(self._swaps.values())
        self.overhead_cycles = sum(swap.overhead_cycles for swap in self.swaps)
        self.overhead_cycles += sum(map(self._recomputation_cycles, self.schedule.recomputed))

    def _over(self, kernel: int, some: Flags, first: int = 0) -> Integers:
        """Return the numbers, from one on, of some pairs in a row that a kernel is in between."""
        pairs = slice(first, first + len(some))
        is_over = (self._costs.evicted[pairs] < kernel) & (kernel < self._costs.uses[pairs])
        return first + np.flatnonzero(some & is_over)

    def _may_hide_at(self, kernel: int, first: int) -> Iterator[int]:
        """Yield the numbers, from one on, of pairs at a peak whose swaps may be hidden, a few at a time."""
        count = _FEW
        while first < len(self._pairs):
            yield from self._over(kernel, self._may_hide[first : first + count], first).tolist()
            first, count = first + count, 2 * count

    def _swap_hidden(self, kernel: int) -> bool:
        # Lanes mostly fill up: what was impossible at this peak is not tried again.
        for number in self._may_hide_at(kernel, self._tried.get(kernel, 0)):
            swap = self._lanes.planned(self._pairs[number], kernel, kernel, may_wait=False)
            if swap is not None and self._accept_swap(number, swap):
                self._tried[kernel] = number + 1
                return True
        self._tried[kernel] = len(self._pairs)
        return False

    def _choose_cheapest(self, kernel: int) -> bool:
        """Keep what saves most bytes for a cycle that it costs: of a tensor a swap before a recomputation.

        Swaps are worked out when they come to the top by the least that they can cost. A tensor that is
        swapped already, and not away yet or back again at the peak, may be away longer.
        """
        numbers = self._over(kernel, self._is_kept & ~self._costs.are_away(self.analysis.peak.time))
        highs = self._costs.extents(numbers, *self._high(kernel, numbers))
        costs = np.stack([self._costs.of(numbers, *highs), self._recomputation_costs(kernel, numbers)])
        worths = (self._saved(self._costs.sizes.take(numbers)) / np.maximum(1, costs)).ravel()
        worths[costs.ravel() >= NEVER] = 0
        tensors, count = np.tile(self._costs.tensors.take(numbers), 2), len(numbers)
        known: list[tuple[float, int, int, int, GuidedSwap]] = []
        for place in chain(best_first(worths, tensors), (None,)):
            bound = (0.0, 0, 0)
            if place is not None:
                bound = -float(worths[place]), int(tensors[place]), place // count
            while known and known[0][:3] < bound:
                *_, number, swap = heapq.heappop(known)
                if self._accept_swap(number, swap):
                    return True
            if place is None:
                break
            number = int(numbers[place % count])
            if bound[2]:
                if self._accept_recomputation(number):
                    return True
            elif (found := self._exposed(number, *(int(high[place]) for high in highs))) is not None:
                heapq.heappush(known, (-found[0], bound[1], 0, number, found[1]))
        return False

    def _exposed(self, number: int, first: int, last: int) -> tuple[float, GuidedSwap] | None:
        """Return the bytes that a swap saves for a cycle that it costs, and the swap; None: there is none."""
        pair, old = self._pairs[number], self._swaps.get(number)
        if old is not None:
            self._lanes.give_back(old)
        swap = self._lanes.planned(pair, first, last, may_wait=True)
        if old is not None:
            self._lanes.take(old)
        if swap is None:
            return None
        cost = swap.overhead_cycles - (0 if old is None else old.overhead_cycles)
        return int(self._saved(pair.size_bytes)) / max(1, cost), swap

    def _high(self, kernel: int, numbers: Integers) -> tuple[Integers, Integers]:
        """Return the first and last kernels around the peak that are the peak when each tensor is away."""
        levels, costs = self.analysis.kernel_levels(), self._costs
        rest = np.maximum(self.target_bytes, self.peak_bytes - costs.sizes.take(numbers))
        before, after = (_kernels_above(rest, some) for some in (levels[:kernel][::-1], levels[kernel + 1 :]))
        first = np.maximum(costs.evicted.take(numbers) + 1, kernel - before)
        return first, np.minimum(costs.uses.take(numbers) - 1, kernel + after)

    def _saved(self, sizes_bytes: Integers | int) -> Integers:
        """Return the bytes that are saved, no more than have to be saved still."""
        return np.minimum(sizes_bytes, self.peak_bytes - self.target_bytes)

    def _recomputation_costs(self, kernel: int, numbers: Integers) -> Integers:
        """Return the cycles that it costs to drop tensors before a kernel and make them again.

        ``NEVER``: they cannot be.
        """
        costs = self._remaking.take(numbers)
        for place in np.flatnonzero(costs < 0).tolist():
            number = int(numbers[place])
            pair = self._pairs[number]
            entry = recomputation_of(self._accesses, self._rules, pair.tensor, pair.evicted + 1, pair.use)
            self._entries[number] = entry
            cost = NEVER if entry is None else self._recomputation_cycles(entry)
            costs[place] = self._remaking[number] = cost
        first = bisect_left(self._accesses.times, self.analysis.peak.time)
        if first < kernel:  # those between take no time
            costs[self._costs.evicted.take(numbers) >= first] = NEVER
        return costs

    def _recomputation_cycles(self, entry: Recomputed) -> int:
        """Return the time of the kernel that makes a tensor."""
        producer = self._rules.producer(entry.tensor, entry.drop)
        return 0 if producer is None else int(self._accesses.durations[producer.id])

    def _accept_swap(self, number: int, swap: GuidedSwap) -> bool:
        """Keep a swap, in place of what was planned for its pair, if that lowers the peak."""
        counted, old = swap.counted(self._accesses), self._swaps.get(number)
        spans = self.analysis.spans(counted)
        spans += [] if old is None else self.analysis.spans(old.counted(self._accesses), -1)
        if not self._recomputed.allow(swap.pair) or not self.analysis.lowers(spans):
            return False
        if old is None:
            self._recomputed.note_swap(swap.pair)
        else:
            self._lanes.give_back(old)
        self._swaps[number] = swap
        self._costs.take(number, swap, Interval(counted.out.end, counted.back.start), old)
        self._lanes.take(swap)
        self._may_hide[number], self._remaking[number] = False, NEVER
        return True

    def _accept_recomputation(self, number: int) -> bool:
        """Keep a recomputation, and the ones that it brings forward, if that lowers the peak."""
        entry = self._entries[number]
        assert entry is not None
        if not self._recomputed.add(entry, self.analysis.lowers):
            return False
        self._is_kept[number] = self._may_hide[number] = False
        self._remaking[self._costs.tensors == entry.tensor] = NEVER
        return True


def _kernels_above(limits: Integers, levels: Integers) -> Integers:
    """Return for each of some limits how many levels exceed it before the first that does not."""
    is_low = levels <= limits.min(initial=NEVER)
    stop = int(is_low.argmax()) + 1 if is_low.any() else len(levels)
    return (-np.minimum.accumulate(levels[:stop])).searchsorted(-limits)
