"""The hybrid of swaps and recomputations that brings one job's memory peak down to a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.capuchin_planning.pairs import AccessPair, pairs_over
from g10sim.policies.capuchin_planning.recomputing import collective, reads_what_is_away
from g10sim.policies.capuchin_planning.swaps import GuidedSwap, Lanes
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.peak import PeakAnalysis
from g10sim.policies.swap_planning.recomputing import recomputation_over
from g10sim.policies.swap_planning.schedule import JobSchedule, Recomputed


@dataclass(frozen=True)
class Parameters:
    """What to plan for: memory in bytes, the link's rate in bytes/cycle, the smallest tensor in bytes."""

    target_bytes: int
    bytes_per_cycle: float
    least_bytes: int = 0
    recomputation: bool = True


@dataclass(frozen=True)
class Planned:
    """What was chosen for one job, and its memory peak before and after, in bytes."""

    schedule: JobSchedule
    analysis: PeakAnalysis
    swaps: tuple[GuidedSwap, ...]
    unplanned_peak_bytes: int
    peak_bytes: int
    target_bytes: int

    @property
    def recomputed(self) -> list[Recomputed]:
        """What is dropped and recomputed."""
        return self.schedule.recomputed

    @property
    def is_enough(self) -> bool:
        """Whether the peak is within the target."""
        return self.peak_bytes <= self.target_bytes


def plan_job(accesses: AccessSequence, parameters: Parameters) -> Planned:
    """Choose swaps and recomputations until the memory peak is within the target, or none is left.

    At every peak, of the tensors that are there and are used before and after it: the one with the longest
    free time whose swap nothing waits for; without one, the swap or recomputation that saves most memory for
    the time that it costs (MSPS). The peak is found anew after each.
    """
    return _Planner(accesses, parameters).plan()


class _Planner:
    def __init__(self, accesses: AccessSequence, parameters: Parameters) -> None:
        self._accesses, self._parameters = accesses, parameters
        self._lanes = Lanes(accesses)
        self._schedule = JobSchedule(accesses, self._lanes.out, self._lanes.back)
        self._analysis = PeakAnalysis(accesses, "physical")
        self._rules = Recomputability(accesses.trace)
        self._swaps: list[GuidedSwap] = []
        self._exposed: set[tuple[int, int, int]] = set()
        self._taken: set[tuple[int, int]] = set()
        self._peak = self._analysis.find(self._schedule)

    def plan(self) -> Planned:
        before, target = self._peak.size_bytes, self._parameters.target_bytes
        while self._peak.size_bytes > target and self._lower():
            pass
        swaps, after = tuple(self._swaps), self._peak.size_bytes
        return Planned(self._schedule, self._analysis, swaps, before, after, target)

    def _lower(self) -> bool:
        """Make the peak smaller, or leave it for a later one of the same size; False: it cannot be."""
        kernel = self._accesses.kernel_at(self._peak.time)
        rate, least = self._parameters.bytes_per_cycle, self._parameters.least_bytes
        found = pairs_over(self._accesses, self._peak.residents, kernel, rate, least)
        pairs = [pair for pair in found if (pair.tensor, pair.evicted) not in self._taken]
        return self._swap_hidden(pairs, kernel) or self._choose_cheapest(pairs, kernel)

    def _swap_hidden(self, pairs: list[AccessPair], kernel: int) -> bool:
        for pair in pairs:
            if pair.free_time < 0:
                return False
            # Lanes only fill up: what was impossible at this peak remains so.
            known = pair.tensor, pair.evicted, kernel
            swap = None if known in self._exposed else self._lanes.hidden(pair, kernel)
            if swap is not None and self._accept_swap(swap):
                return True
            self._exposed.add(known)
        return False

    def _choose_cheapest(self, pairs: list[AccessPair], kernel: int) -> bool:
        options: list[tuple[float, int, GuidedSwap | Recomputed]] = [
            *self._exposed_swaps(pairs, kernel),
            *self._recomputations(),
        ]
        for _, _, choice in sorted(options, key=lambda option: (-option[0], option[1])):
            if self._accept(choice):
                return True
        return False

    def _accept(self, choice: GuidedSwap | Recomputed) -> bool:
        if isinstance(choice, GuidedSwap):
            return self._accept_swap(choice)
        return self._accept_recomputation(choice)

    def _exposed_swaps(self, pairs: list[AccessPair], kernel: int) -> Iterator[tuple[float, int, GuidedSwap]]:
        for pair in pairs:
            swap = self._lanes.exposed(pair, kernel)
            if swap is not None:
                yield pair.size_bytes / max(1, swap.overhead_cycles), pair.tensor, swap

    def _recomputations(self) -> Iterator[tuple[float, int, Recomputed]]:
        if not self._parameters.recomputation:
            return
        accesses, chosen = self._accesses, {entry.tensor for entry in self._schedule.recomputed}
        for tensor in self._peak.residents:
            if tensor in chosen or accesses.sizes[tensor] < self._parameters.least_bytes:
                continue
            entry = recomputation_over(self._schedule, self._rules, self._peak, tensor)
            producer = None if entry is None else self._rules.producer(tensor, entry.drop)
            if entry is not None and producer is not None and (tensor, entry.drop - 1) not in self._taken:
                time = accesses.interval(producer.id)
                yield accesses.sizes[tensor] / max(1, time.end - time.start), tensor, entry

    def _accept_swap(self, swap: GuidedSwap) -> bool:
        schedule = self._schedule
        if reads_what_is_away(schedule.recomputed, [swap.pair], self._rules):
            return False
        schedule.swaps.append(swap.counted(self._accesses))
        if not self._has_lowered():
            schedule.swaps.pop()
            return False
        self._lanes.take(swap)
        self._swaps.append(swap)
        self._taken.add((swap.pair.tensor, swap.pair.evicted))
        return True

    def _accept_recomputation(self, entry: Recomputed) -> bool:
        schedule, before = self._schedule, self._schedule.recomputed
        after = collective([*before, entry], self._rules)
        if reads_what_is_away(after, [swap.pair for swap in self._swaps], self._rules):
            return False
        schedule.recomputed = after
        if not self._has_lowered():
            schedule.recomputed = before
            return False
        self._taken.add((entry.tensor, entry.drop - 1))
        return True

    def _has_lowered(self) -> bool:
        """Find the peak anew; False, and nothing changes, unless it is smaller, or as large but later."""
        found, old = self._analysis.find(self._schedule), self._peak
        if (found.size_bytes, -found.time) >= (old.size_bytes, -old.time):
            return False
        self._peak = found
        return True
