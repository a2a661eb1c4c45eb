"""The hybrid of swaps and recomputations that brings one job's memory peak down to a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.policies.capuchin_planning.swaps import AccessPair, GuidedSwap, Lanes, pairs_over
from g10sim.policies.planning.channel import Interval
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.peak import PeakAnalysis
from g10sim.policies.swap_planning.recomputing import recomputation_over
from g10sim.policies.swap_planning.schedule import JobSchedule, Recomputed


@dataclass(frozen=True)
class Parameters:
    """Targets and rates of a plan: sizes in bytes, rates of link and mapping in bytes/cycle."""

    target_bytes: int
    bytes_per_cycle: float
    mapping_rate: float = math.inf
    least_bytes: int = 0
    recomputation: bool = True


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


_Choice: TypeAlias = GuidedSwap | Recomputed


class _Planner:
    def __init__(self, accesses: AccessSequence, parameters: Parameters) -> None:
        self._accesses, self._parameters = accesses, parameters
        self._lanes = Lanes(accesses)
        self._schedule = JobSchedule(accesses, self._lanes.out, self._lanes.back)
        self._analysis = PeakAnalysis(accesses, "physical")
        self._rules = Recomputability(accesses.trace)
        self._swaps: list[GuidedSwap] = []
        self._numbers: dict[AccessPair, int] = {}
        self._dropped: set[tuple[int, int]] = set()
        self._exposed: set[tuple[AccessPair, int]] = set()
        self._peak = self._analysis.find(self._schedule)

    def plan(self) -> Planned:
        before, target = self._peak.size_bytes, self._parameters.target_bytes
        while self._peak.size_bytes > target and self._lower():
            pass
        swaps, after = tuple(self._swaps), self._peak.size_bytes
        overhead = sum(swap.overhead_cycles for swap in swaps)
        overhead += sum(map(self._recomputation_cycles, self._schedule.recomputed))
        return Planned(self._schedule, self._analysis, swaps, before, after, target, overhead)

    def _lower(self) -> bool:
        """Make the peak smaller, or leave it for a later one of the same size; False: it cannot be."""
        kernel = self._accesses.kernel_at(self._peak.time)
        rate, least = self._parameters.bytes_per_cycle, self._parameters.least_bytes
        found = pairs_over(self._accesses, self._peak.residents, kernel, rate, least)
        pairs = [pair for pair in found if (pair.tensor, pair.evicted + 1) not in self._dropped]
        return self._swap_hidden(pairs, kernel) or self._choose_cheapest(pairs, kernel)

    def _swap_hidden(self, pairs: list[AccessPair], kernel: int) -> bool:
        for pair in pairs:
            if pair.free_time < 0:
                return False
            # Lanes mostly fill up: what was impossible at this peak is not tried again.
            if pair in self._numbers or (pair, kernel) in self._exposed:
                continue
            swap = self._lanes.hidden(pair, kernel)
            if swap is not None and self._accept_swap(swap):
                return True
            self._exposed.add((pair, kernel))
        return False

    def _choose_cheapest(self, pairs: list[AccessPair], kernel: int) -> bool:
        options = [*self._exposed_swaps(pairs, kernel), *self._recomputations()]
        for _, _, choice in sorted(options, key=lambda option: (-option[0], option[1])):
            if self._accept(choice):
                return True
        return False

    def _accept(self, choice: _Choice) -> bool:
        if isinstance(choice, GuidedSwap):
            return self._accept_swap(choice)
        return self._accept_recomputation(choice)

    def _exposed_swaps(self, pairs: list[AccessPair], kernel: int) -> Iterator[tuple[float, int, _Choice]]:
        """Yield swaps with the bytes they save for a cycle that they cost, and their tensors.

        They are away as long as they would be at the next peaks, too. A tensor that is swapped already, and
        not away yet or back again at the peak, may be away longer.
        """
        levels = self._analysis.kernel_levels(self._schedule)
        for pair in pairs:
            old, (first, last) = self._old(pair), self._high(levels, pair, kernel)
            if old is None:
                swap, paid = self._lanes.exposed(pair, first, last), 0
            else:
                self._lanes.give_back(old)
                swap = self._lanes.exposed(pair, min(old.first, first), max(old.last, last))
                self._lanes.take(old)
                paid = old.overhead_cycles
            if swap is not None:
                yield self._worth(pair.size_bytes, swap.overhead_cycles - paid), pair.tensor, swap

    def _high(self, levels: Integers, pair: AccessPair, kernel: int) -> tuple[int, int]:
        """Return the first and last kernel around the peak that are the peak when a tensor is away there."""
        rest = max(self._parameters.target_bytes, self._peak.size_bytes - pair.size_bytes)
        before = np.flatnonzero(levels[pair.evicted + 1 : kernel] <= rest)
        after = np.flatnonzero(levels[kernel + 1 : pair.use] <= rest)
        first = pair.evicted + 2 + int(before[-1]) if len(before) else pair.evicted + 1
        return first, kernel + int(after[0]) if len(after) else pair.use - 1

    def _old(self, pair: AccessPair) -> GuidedSwap | None:
        number = self._numbers.get(pair)
        return None if number is None else self._swaps[number]

    def _recomputations(self) -> Iterator[tuple[float, int, _Choice]]:
        """Yield recomputations with the bytes they save for a cycle that they cost, and their tensors."""
        if not self._parameters.recomputation:
            return
        accesses, chosen = self._accesses, {entry.tensor for entry in self._schedule.recomputed}
        swapped = {(pair.tensor, pair.evicted + 1) for pair in self._numbers}
        for tensor in self._peak.residents:
            size = accesses.sizes[tensor]
            if tensor in chosen or size < self._parameters.least_bytes:
                continue
            entry = recomputation_over(self._schedule, self._rules, self._peak, tensor)
            if entry is not None and (tensor, entry.drop) not in swapped:
                yield self._worth(size, self._recomputation_cycles(entry)), tensor, entry

    def _worth(self, size_bytes: int, cycles: int) -> float:
        """Return the bytes saved for a cycle, no more than have to be saved still."""
        return min(size_bytes, self._peak.size_bytes - self._parameters.target_bytes) / max(1, cycles)

    def _recomputation_cycles(self, entry: Recomputed) -> int:
        """Return the time of the kernel that makes a tensor, and to map it anew."""
        producer = self._rules.producer(entry.tensor, entry.drop)
        time = Interval(0, 0) if producer is None else self._accesses.interval(producer.id)
        mapping = self._accesses.sizes[entry.tensor] / self._parameters.mapping_rate
        return time.end - time.start + math.ceil(mapping)

    def _accept_swap(self, swap: GuidedSwap) -> bool:
        """Keep a swap, in place of what was planned for its pair, if that lowers the peak."""
        swaps, old = self._schedule.swaps, self._old(swap.pair)
        if reads_what_is_away(self._schedule.recomputed, [swap.pair], self._rules):
            return False
        number = self._numbers.get(swap.pair, len(swaps))
        before = swaps[number:]
        swaps[number : number + 1] = [swap.counted(self._accesses)]
        if not self._has_lowered():
            swaps[number:] = before
            return False
        if old is not None:
            self._lanes.give_back(old)
        self._lanes.take(swap)
        self._numbers[swap.pair] = number
        self._swaps[number : number + 1] = [swap]
        return True

    def _accept_recomputation(self, entry: Recomputed) -> bool:
        """Keep a recomputation, and the ones that it brings forward, if that lowers the peak."""
        schedule, before = self._schedule, self._schedule.recomputed
        after = collective([*before, entry], self._rules)
        if reads_what_is_away(after, self._numbers, self._rules):
            return False
        schedule.recomputed = after
        if not self._has_lowered():
            schedule.recomputed = before
            return False
        self._dropped.add((entry.tensor, entry.drop))
        return True

    def _has_lowered(self) -> bool:
        """Find the peak anew; False, and nothing changes, unless it is smaller, or as large but later."""
        found, old = self._analysis.find(self._schedule), self._peak
        if (found.size_bytes, -found.time) >= (old.size_bytes, -old.time):
            return False
        self._peak = found
        return True


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


def reads_what_is_away(
    entries: Iterable[Recomputed], pairs: Iterable[AccessPair], rules: Recomputability
) -> bool:
    """Return True if a recomputation needs a tensor while it is swapped out."""
    away: dict[int, list[AccessPair]] = {}
    for pair in pairs:
        away.setdefault(pair.tensor, []).append(pair)
    return any(
        pair.evicted < entry.use < pair.use
        for entry in entries
        for source in sources(entry, rules)
        for pair in away.get(source, ())
    )
