"""The hybrid of swaps and recomputations that brings one job's memory peak down to a target."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.capuchin.costs import LeastCosts
from g10sim.policies.designs.capuchin.swaps import AccessPair, GuidedSwap, Lanes, access_pairs
from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.limit import Limit
from g10sim.policies.planning.swapping.access import AccessSequence
from g10sim.policies.planning.swapping.peak import Peak, PeakAnalysis
from g10sim.policies.planning.swapping.recomputing import recomputation_of
from g10sim.policies.planning.swapping.schedule import JobSchedule, Recomputed, Swap

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Parameters:
    """Targets and rates of a plan: sizes in bytes, rates of link and mapping in bytes/cycle."""

    target_bytes: int
    bytes_per_cycle: float
    mapping_rate: float = math.inf
    least_bytes: int = 0
    recomputation: bool = True
    planning_limit: float | None = None


@dataclass(frozen=True)
class Planned:
    """The plan of one job, its memory peak before and after in bytes, and the time that it costs.

    ``overhead_cycles``: of an iteration, by what is waited for and recomputed.
    """

    schedule: JobSchedule
    analysis: PeakAnalysis
    swaps: tuple[GuidedSwap, ...]
    unplanned_peak_bytes: int
    peak_bytes: int
    target_bytes: int
    overhead_cycles: int
    time: Limit

    @property
    def is_enough(self) -> bool:
        """Return True if the peak is within the target."""
        return self.peak_bytes <= self.target_bytes


def plan_job(accesses: AccessSequence, parameters: Parameters) -> Planned:
    """Choose swaps and recomputations until the memory peak is within the target, or none is left.

    At every peak, of the tensors that are there and are used before and after it: the one with the longest
    free time whose swap nothing waits for; without one, the swap or recomputation that saves most memory for
    the time that it costs (MSPS): that kernels wait for copies, or that a kernel takes to run again, its
    result mapped anew. The peak is found anew after each.
    """
    return _Planner(accesses, parameters).plan()


_NEVER = 2**62


class _Planner:
    """Pairs have numbers in the order of their free times, the longest first."""

    def __init__(self, accesses: AccessSequence, parameters: Parameters) -> None:
        self._accesses, self._parameters = accesses, parameters
        self._lanes = Lanes(accesses)
        self._schedule = JobSchedule(accesses, self._lanes.out, self._lanes.back)
        self._analysis = PeakAnalysis(self._schedule, "physical")
        self._rules = Recomputability(accesses.trace)
        self._pairs = access_pairs(accesses, parameters.bytes_per_cycle, parameters.least_bytes)
        self._costs = LeastCosts(accesses, self._lanes, self._pairs)
        self._tensors = np.array([pair.tensor for pair in self._pairs], dtype=np.int64)
        self._number_of = {(pair.tensor, pair.evicted + 1): number for number, pair in enumerate(self._pairs)}
        self._is_kept = np.ones(len(self._pairs), dtype=np.bool_)
        self._is_swapped, self._is_recomputed = (
            np.zeros_like(self._is_kept),
            np.zeros(len(accesses.sizes), dtype=np.bool_),
        )
        self._entries: dict[int, Recomputed | None] = {}
        impossible = not parameters.recomputation
        self._remaking: Integers = np.full(len(self._pairs), _NEVER if impossible else -1, dtype=np.int64)
        self._may_hide = np.array([pair.free_time >= 0 for pair in self._pairs], dtype=np.bool_)
        self._tried: dict[int, int] = {}
        self._swaps: list[GuidedSwap] = []
        self._places: dict[int, int] = {}
        self._swapped: dict[int, list[AccessPair]] = {}
        self._readers: dict[int, list[Recomputed]] = {}
        self._peak = self._analysis.find()

    def plan(self) -> Planned:
        before, target = self._peak.size_bytes, self._parameters.target_bytes
        time = Limit(self._parameters.planning_limit)
        while self._peak.size_bytes > target and not time.is_over() and self._lower():
            pass
        swaps, after = tuple(self._swaps), self._peak.size_bytes
        overhead = sum(swap.overhead_cycles for swap in swaps)
        overhead += sum(map(self._recomputation_cycles, self._schedule.recomputed))
        return Planned(self._schedule, self._analysis, swaps, before, after, target, overhead, time)

    def _lower(self) -> bool:
        """Make the peak smaller, or leave it for a later one of the same size; False: it cannot be."""
        kernel = self._accesses.kernel_at(self._peak.time)
        return self._swap_hidden(kernel) or self._choose_cheapest(kernel)

    def _over(self, kernel: int, some: npt.NDArray[np.bool_], first: int = 0) -> list[int]:
        """Return the numbers, from one on, of those of some pairs that a kernel is in between."""
        there = some[first:] & (self._costs.evicted[first:] < kernel) & (kernel < self._costs.uses[first:])
        found: list[int] = (np.flatnonzero(there) + first).tolist()
        return found

    def _swap_hidden(self, kernel: int) -> bool:
        # Lanes mostly fill up: what was impossible at this peak is not tried again.
        for number in self._over(kernel, self._may_hide, self._tried.get(kernel, 0)):
            swap = self._lanes.hidden(self._pairs[number], kernel)
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
        numbers = np.array(self._over(kernel, self._is_kept), dtype=np.int64)
        numbers = numbers[~self._costs.are_away(numbers, self._peak.time)]
        highs = self._costs.extents(numbers, *self._high(kernel, numbers))
        costs = np.concatenate([self._costs.of(numbers, *highs), self._recomputation_costs(numbers)])
        worths = np.tile(self._saved(self._costs.sizes[numbers]), 2) / np.maximum(1, costs)
        tensors, count = np.tile(self._tensors[numbers], 2), len(numbers)
        order = np.lexsort((np.arange(2 * count) >= count, tensors, -worths))
        known: list[tuple[float, int, int, GuidedSwap]] = []
        for place in order[costs[order] < _NEVER].tolist():
            number, rank = int(numbers[place % count]), place // count
            bound = -float(worths[place]), int(tensors[place]), rank
            while known and known[0][:3] < bound:
                *_, swap = heapq.heappop(known)
                if self._accept_swap(self._number_of[swap.pair.tensor, swap.pair.evicted + 1], swap):
                    return True
            if rank:
                if self._accept_recomputation(number):
                    return True
            elif (found := self._exposed(number, *(int(high[place]) for high in highs))) is not None:
                heapq.heappush(known, (-found[0], int(tensors[place]), rank, found[1]))
        while known:
            *_, swap = heapq.heappop(known)
            if self._accept_swap(self._number_of[swap.pair.tensor, swap.pair.evicted + 1], swap):
                return True
        return False

    def _exposed(self, number: int, first: int, last: int) -> tuple[float, GuidedSwap] | None:
        """Return the bytes that a swap saves for a cycle that it costs, and the swap; None: there is none."""
        pair, old = self._pairs[number], self._old(number)
        if old is not None:
            self._lanes.give_back(old)
        swap = self._lanes.exposed(pair, first, last)
        if old is not None:
            self._lanes.take(old)
        if swap is None:
            return None
        cost = swap.overhead_cycles - (0 if old is None else old.overhead_cycles)
        return int(self._saved(pair.size_bytes)) / max(1, cost), swap

    def _high(self, kernel: int, numbers: Integers) -> tuple[Integers, Integers]:
        """Return the first and last kernels around the peak that are the peak when each tensor is away."""
        levels, costs = self._analysis.kernel_levels(), self._costs
        rest = np.maximum(self._parameters.target_bytes, self._peak.size_bytes - costs.sizes[numbers])
        before = -np.minimum.accumulate(levels[:kernel][::-1])
        after = -np.minimum.accumulate(levels[kernel + 1 :])
        first = np.maximum(costs.evicted[numbers] + 1, kernel - before.searchsorted(-rest))
        return first, np.minimum(costs.uses[numbers] - 1, kernel + after.searchsorted(-rest))

    def _old(self, number: int) -> GuidedSwap | None:
        place = self._places.get(number)
        return None if place is None else self._swaps[place]

    def _saved(self, sizes_bytes: Integers | int) -> Integers:
        """Return the bytes that are saved, no more than have to be saved still."""
        return np.minimum(sizes_bytes, self._peak.size_bytes - self._parameters.target_bytes)

    def _recomputation_costs(self, numbers: Integers) -> Integers:
        """Return the cycles that it costs to drop tensors and make them again; ``_NEVER``: they cannot be."""
        for number in numbers[self._remaking[numbers] < 0].tolist():
            pair = self._pairs[number]
            entry = recomputation_of(self._accesses, self._rules, pair.tensor, pair.evicted + 1, pair.use)
            self._entries[number] = entry
            self._remaking[number] = _NEVER if entry is None else self._recomputation_cycles(entry)
        is_between = self._accesses.starts[self._costs.evicted[numbers]] < self._peak.time
        is_free = is_between & ~self._is_recomputed[self._tensors[numbers]] & ~self._is_swapped[numbers]
        return np.where(is_free, self._remaking[numbers], _NEVER)

    def _recomputation_cycles(self, entry: Recomputed) -> int:
        """Return the time of the kernel that makes a tensor, and to map it anew."""
        producer = self._rules.producer(entry.tensor, entry.drop)
        time = Interval(0, 0) if producer is None else self._accesses.interval(producer.id)
        mapping = self._accesses.sizes[entry.tensor] / self._parameters.mapping_rate
        return time.end - time.start + math.ceil(mapping)

    def _accept_swap(self, number: int, swap: GuidedSwap) -> bool:
        """Keep a swap, in place of what was planned for its pair, if that lowers the peak."""
        swaps, place, old = self._schedule.swaps, self._places.get(number), self._old(number)
        pair = swap.pair
        if any(pair.evicted < entry.use < pair.use for entry in self._readers.get(pair.tensor, ())):
            return False
        counted = swap.counted(self._accesses)
        before = () if place is None else (swaps[place],)
        if not self._has_lowered(before, (counted,)):
            return False
        if old is None or place is None:
            self._places[number] = len(swaps)
            self._swapped.setdefault(pair.tensor, []).append(pair)
            self._swaps.append(swap)
            swaps.append(counted)
        else:
            self._lanes.give_back(old)
            self._swaps[place], swaps[place] = swap, counted
        self._costs.take(number, swap, Interval(counted.out.end, counted.back.start), old)
        self._lanes.take(swap)
        self._may_hide[number], self._is_swapped[number] = False, True
        return True

    def _accept_recomputation(self, number: int) -> bool:
        """Keep a recomputation, and the ones that it brings forward, if that lowers the peak."""
        entry = self._entries[number]
        assert entry is not None
        before, known = self._schedule.recomputed, set(map(id, self._schedule.recomputed))
        readers = self._readers.get(entry.tensor, ())
        use = min((other.use for other in readers if entry.drop <= other.use < entry.use), default=entry.use)
        if self._reads_what_is_away([replace(entry, use=use)]):
            return False
        after = collective([*before, entry], self._rules)
        new, kept = [other for other in after if id(other) not in known], set(map(id, after))
        gone = [other for other in before if id(other) not in kept]
        if self._reads_what_is_away(new) or not self._has_lowered(gone, new):
            return False
        self._schedule.recomputed = after
        self._readers.clear()
        for other in after:
            for source in sources(other, self._rules):
                self._readers.setdefault(source, []).append(other)
        self._is_kept[number] = self._may_hide[number] = False
        self._is_recomputed[entry.tensor] = True
        return True

    def _reads_what_is_away(self, entries: Iterable[Recomputed]) -> bool:
        """Return True if a recomputation needs a tensor while it is swapped out."""
        return any(
            pair.evicted < entry.use < pair.use
            for entry in entries
            for source in sources(entry, self._rules)
            for pair in self._swapped.get(source, ())
        )

    def _has_lowered(self, gone: Collection[Swap | Recomputed], new: Collection[Swap | Recomputed]) -> bool:
        """Find the peak anew; False, and nothing changes, unless it is smaller, or as large but later."""
        found, old = self._peak_with(gone, new), self._peak
        if (found.size_bytes, -found.time) >= (old.size_bytes, -old.time):
            self._peak_with(new, gone)
            return False
        self._peak = found
        return True

    def _peak_with(self, gone: Collection[Swap | Recomputed], new: Collection[Swap | Recomputed]) -> Peak:
        self._analysis.exchange(gone, new)
        return self._analysis.find()


def collective(entries: Iterable[Recomputed], rules: Recomputability) -> list[Recomputed]:
    """Return the recomputations as they happen: what is made on the way to another tensor stays.

    A tensor that was dropped and that another's producer reads is back when that one is recomputed, so that
    each is made again once (Capuchin's collective recomputation).
    """
    found = {entry.tensor: entry for entry in entries}

    def restore_sources(tensor: int, use: int) -> None:
        for source in sources(found[tensor], rules):
            other = found.get(source)
            if other is not None and other.drop <= use < other.use:
                found[source] = replace(other, use=use)
                restore_sources(source, use)

    for entry in sorted(found.values(), key=lambda entry: (entry.use, entry.tensor)):
        restore_sources(entry.tensor, entry.use)
    return list(found.values())


def sources(entry: Recomputed, rules: Recomputability) -> tuple[int, ...]:
    """Return what the kernel reads that makes a dropped tensor."""
    producer = rules.producer(entry.tensor, entry.drop)
    return () if producer is None else producer.inputs
