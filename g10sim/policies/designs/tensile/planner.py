"""The greedy planner: one tensor after another, of those that are there at the peak that there is then."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise, repeat
from typing import Literal

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.config.effects import Effect
from g10sim.policies.interface.parameters import Share, parameter
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.limit import Limited, TimeLimit
from g10sim.policies.planning.swapping.peak import Accounting, Peak, PeakAnalysis, choose_recomputation
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule, Recomputed, Swap

Relieves = Callable[[list[Swap]], bool]
"""Returns True for a tensor's swaps that are of use at the peak."""


def swap_within(
    schedule: JobSchedule, tensor: int, last_access: int, length: int, relieves: Relieves = bool
) -> list[Swap]:
    """Plan swaps of a tensor in an iteration: out as early as possible, in as late as possible.

    It leaves between its first access and ``last_access``, the time of the last access before the peak, and
    comes back for its next one; where it cannot, or where that does not ``relieve`` the peak, it is tried
    again after that access. Between later accesses it leaves again where there is time for both copies.
    Transfers take ``length`` cycles, those of frozen tensors out next to none; the channels of the schedule
    are taken for them. Empty: impossible.
    """
    times = schedule.accesses.times
    for place, (before, after) in enumerate(pairwise(schedule.accesses.uses[tensor]), 1):
        window = Interval(times[before + 1], min(times[after], last_access))
        swap = schedule.take(tensor, window, length, after)
        if swap is not None:
            again = _swap_again(schedule, tensor, place, length)
            found = _relieving(schedule, [swap, *again], relieves)
            if found:
                return found
    return []


def swap_across(schedule: JobSchedule, tensor: int, length: int, relieves: Relieves = bool) -> list[Swap]:
    """Plan the absence of a persistent tensor from its last use to its first one in the next iteration.

    The copy out may run over the end of the iteration; the copy in is within the next one. Empty: impossible,
    or of no use at the peak.
    """
    accesses = schedule.accesses
    uses = accesses.uses[tensor]
    if not uses:
        return []
    first, last = accesses.interval(uses[0]).start, accesses.interval(uses[-1]).end
    swap = schedule.take(tensor, Interval(last, accesses.period + first), length, uses[0])
    return _relieving(schedule, [] if swap is None else [swap], relieves)


def _swap_again(schedule: JobSchedule, tensor: int, place: int, length: int) -> Iterator[Swap]:
    """Take channels for swaps between later accesses of a tensor, wherever there is room."""
    times = schedule.accesses.times
    for before, after in pairwise(schedule.accesses.uses[tensor][place:]):
        swap = schedule.take(tensor, Interval(times[before + 1], times[after]), length, after)
        if swap is not None:
            yield swap


def _relieving(schedule: JobSchedule, swaps: list[Swap], relieves: Relieves) -> list[Swap]:
    """Return swaps, or give them back if they are of no use at the peak."""
    if relieves(swaps):
        return swaps
    for unwanted in swaps:
        schedule.give_back(unwanted)
    return []


class Residents(PeakAnalysis):
    """The peak of one job, and which tensors are there at a time."""

    def __init__(self, schedule: JobSchedule, accounting: Accounting) -> None:
        self._away = array("q")
        """Three numbers for each absence that is planned: its tensor, beginning and end."""
        super().__init__(schedule, accounting)
        tensors, begins, ends = self._lifetimes()
        by_size = np.lexsort((tensors, -np.array(self._accesses.sizes, dtype=np.int64)[tensors]))
        self._tensors, self._begins, self._ends = tensors[by_size], begins[by_size], ends[by_size]

    def add(self, entry: Swap | Recomputed) -> None:
        """Count what is planned."""
        super().add(entry)
        self.note_absence(entry)

    def note_absence(self, entry: Swap | Recomputed) -> None:
        """Remember when what is planned, and counted already, takes its tensor away."""
        for part in self.absence(entry):
            self._away.extend((entry.tensor, *part))

    def is_away(self, swaps: list[Swap], time: int) -> bool:
        """Return True if one of a tensor's swaps takes it away at a time."""
        parts = (part for swap in swaps for part in self.absence(swap))
        return any(part.start + self._later <= time < part.end for part in parts)

    def last_access(self, peak: Peak) -> int:
        """Return when the last kernel with inputs starts before a peak; physically, or with it."""
        return self._accesses.last_input_access(peak.time - self._later)

    def residents(self, time: int) -> Integers:
        """Return the tensors that are there at a time, largest first."""
        tensors, starts, ends = np.array(self._away).reshape(-1, 3).T
        has_left = np.zeros(len(self._accesses.sizes), dtype=np.bool_)
        has_left[tensors[(starts + self._later <= time) & (time < ends)]] = True
        found: Integers = self._tensors[(self._begins <= time) & (time < self._ends + self._later)]
        found = found[~has_left[found]]
        once: Integers = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return once


Channels = Literal["divided", "per_job", "shared"]

_SHARED = Effect(
    lambda run, policy: run.shares_gpus, "with jobs that share a GPU", "jobs are planned one by one"
)


class TensileOptions(Limited):
    """Parameters of the planner that users may choose."""

    across_iterations: bool = parameter(default=True, published="true, paper")
    """Keep persistent tensors away across the border of the iteration."""
    recomputation: bool = parameter(default=True, published="true, paper")
    """Recompute tensors when no swap lowers the peak any more."""
    channels: Channels = parameter(default="divided", published="per_job, authors' program", effect=_SHARED)
    """``divided``: the copies of each job come one after another, at the rate that those of other jobs leave;
    ``per_job``: at the whole rate; ``shared``: those of all jobs come one after another."""
    duplex: bool = parameter(default=False, published="false, authors' program")
    """Plan copies out and in at the same time."""
    accounting: Accounting = parameter(default="physical", published="published, authors' program")
    """``physical``: memory is taken when a copy in begins and free when a copy out has ended;
    ``published``: the other way round."""
    swap_share: Share = parameter(default=1.0)
    """Most tensors of a job that are swapped within iterations, as a share of all its tensors."""


_LEAST_ROUNDS = 100
_LEAST_DROP = 0.0005


class _JobPlanner:
    """The schedule of one job as it grows."""

    def __init__(self, schedule: JobSchedule, options: TensileOptions, bytes_per_cycle: float) -> None:
        self.schedule, self._rate = schedule, bytes_per_cycle
        accesses = schedule.accesses
        self.analysis = Residents(schedule, options.accounting)
        self._rules = Recomputability(accesses.trace)
        count = len(accesses.sizes)
        # Channels only fill up: what was impossible at a peak remains so. Times are those of the last one.
        self._failed, self._stays = np.full((2, count), -1, dtype=np.int64)
        self._may_swap = np.ones(count, dtype=np.bool_)
        lasting = np.array(accesses.trace.lasting, dtype=np.bool_)
        self._may_stay_away = lasting & options.across_iterations
        self._quota = int(options.swap_share * count)
        self.peak = self.analysis.peak

    def candidates(self) -> Iterator[tuple[_JobPlanner, int, bool, bool]]:
        """Yield this planner, a tensor at the peak, and whether it may be away across the border, and within.

        The largest tensors come first.
        """
        time = self.peak.time
        found = self.analysis.residents(time)
        may_fit = (self._failed[found] != time) & (self._quota > 0)
        within = self._may_swap[found] & may_fit
        across = self._may_stay_away[found] & (self._stays[found] != time)
        chosen = within | across
        return zip(repeat(self), *(part[chosen].tolist() for part in (found, across, within)))

    def try_swap(self, tensor: int, *, across: bool) -> bool:
        """Try to swap a tensor within the iteration, or a persistent one across its border."""
        schedule, length = self.schedule, self.schedule.accesses.copy_cycles(tensor, self._rate)
        if across:
            tried, may_swap = self._stays, self._may_stay_away
            swaps = swap_across(schedule, tensor, length, self._relieves)
        else:
            tried, may_swap = self._failed, self._may_swap
            last = self.analysis.last_access(self.peak)
            swaps = swap_within(schedule, tensor, last, length, self._relieves)
            self._quota -= bool(swaps)
        tried[tensor] = self.peak.time
        may_swap[tensor] &= not swaps
        schedule.swaps.extend(swaps)
        for swap in swaps:
            self.analysis.add(swap)
        return bool(swaps)

    def try_recomputation(self) -> bool:
        """Try to drop a tensor at the peak and compute it again, if that lowers the peak."""
        residents = self.analysis.residents(self.peak.time)
        for entry in choose_recomputation(self.schedule, self._rules, self.peak, residents):
            if self.analysis.lowers(self.analysis.spans(entry)):
                self.analysis.note_absence(entry)
                self.schedule.recomputed.append(entry)
                self._may_swap[entry.tensor] = False
                return True
        return False

    def _relieves(self, swaps: list[Swap]) -> bool:
        return self.analysis.is_away(swaps, self.peak.time)


@dataclass(frozen=True)
class PlannedJobs:
    """Schedules of jobs that share a GPU, and the sum of their peaks before and after planning, in bytes."""

    schedules: tuple[JobSchedule, ...]
    unplanned_peak_bytes: int
    peak_bytes: int
    time: TimeLimit


def plan_jobs(
    jobs: Sequence[AccessSequence],
    options: TensileOptions,
    bytes_per_cycle: float,
    free_bytes: int,
    target_bytes: int | None = None,
) -> PlannedJobs:
    """Plan jobs that share a GPU, whose copies move ``bytes_per_cycle`` each way together.

    As the jobs' iterations are not in step, the sum of their peaks counts, and the tensors at any of these
    are candidates, largest first. After every swap the peaks are found again. Only when no swap is possible
    any more, and the sum is at least ``free_bytes``, a tensor is recomputed. Planning ends when neither
    helps, when the sum is within a target, or when after 100 rounds none of the last two lowered it by 0.05%.
    """
    shared = Channel(), Channel()
    if options.channels == "divided":
        bytes_per_cycle *= _share_of_link(len(jobs), duplex=options.duplex)
    planners = []
    for accesses in jobs:
        channels = shared if options.channels == "shared" else (Channel(), Channel())
        schedule = JobSchedule(accesses, channels[0], channels[1] if options.duplex else channels[0])
        planners.append(_JobPlanner(schedule, options, bytes_per_cycle))
    sums, time = [_sum_of_peaks(planners)], TimeLimit(options.planning_limit)
    while not _is_enough(sums, target_bytes) and not time.is_over():
        if not _swap_one(planners):
            recomputes = options.recomputation and sums[-1] >= free_bytes
            progress = [planner.try_recomputation() for planner in planners if recomputes]
            if not any(progress):
                break
        for planner in planners:
            planner.peak = planner.analysis.peak
        sums.append(_sum_of_peaks(planners))
    schedules = tuple(planner.schedule for planner in planners)
    return PlannedJobs(schedules, sums[0], sums[-1], time)


def _share_of_link(jobs: int, *, duplex: bool) -> float:
    """Return the share of a direction's rate that one of several jobs can count on while it copies.

    A job whose copies out and in exclude each other copies half of the time in each direction: one that
    copies meets half of the others there, and has 1 / (1 + (jobs - 1) / 2). With both directions at once it
    meets all others. Either way the copies of all jobs fit on the link.
    """
    others = jobs - 1
    return 1 / (1 + (others if duplex else others / 2))


def _is_enough(sums: list[int], target_bytes: int | None) -> bool:
    if target_bytes is not None and sums[-1] <= target_bytes:
        return True
    if len(sums) <= _LEAST_ROUNDS:
        return False
    return max(sums[-3] - sums[-2], sums[-2] - sums[-1]) < _LEAST_DROP * sums[-1]


def _sum_of_peaks(planners: list[_JobPlanner]) -> int:
    return sum(planner.peak.size_bytes for planner in planners)


def _swap_one(planners: list[_JobPlanner]) -> bool:
    """Swap the largest tensor that can be, and on the way whatever can stay away across iterations."""
    candidates = [planner.candidates() for planner in planners]
    swapped = False
    for planner, tensor, across, within in merge(
        *candidates, key=lambda one: -one[0].schedule.accesses.sizes[one[1]]
    ):
        if across and planner.try_swap(tensor, across=True):
            swapped = True
        elif within and planner.try_swap(tensor, across=False):
            return True
    return swapped
