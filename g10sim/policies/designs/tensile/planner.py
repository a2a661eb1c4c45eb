"""The greedy planner: one tensor after another, of those that are there at the peak that there is then."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Flags, Integers
from g10sim.config.effects import Effect
from g10sim.policies.interface.parameters import Count, Share, parameter
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.limit import Limit, Limited
from g10sim.policies.planning.swapping.peak import Accounting, PeakAnalysis, choose_recomputation
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule, Recomputed, Swap


def swap_within(
    schedule: JobSchedule,
    tensor: int,
    last_access: int,
    length: int,
    relieves: Callable[[list[Swap]], bool] = bool,
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
            found = [swap, *_swap_again(schedule, tensor, place, length)]
            if relieves(found):
                return found
            for unwanted in found:
                schedule.give_back(unwanted)
    return []


def swap_across(
    schedule: JobSchedule, tensor: int, length: int, relieves: Callable[[list[Swap]], bool] = bool
) -> list[Swap]:
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
    if swap is None or relieves([swap]):
        return [] if swap is None else [swap]
    schedule.give_back(swap)
    return []


def _swap_again(schedule: JobSchedule, tensor: int, place: int, length: int) -> Iterator[Swap]:
    """Take channels for swaps between later accesses of a tensor, wherever there is room."""
    times = schedule.accesses.times
    for before, after in pairwise(schedule.accesses.uses[tensor][place:]):
        swap = schedule.take(tensor, Interval(times[before + 1], times[after]), length, after)
        if swap is not None:
            yield swap


Times = TypeVar("Times", int, Integers)


class Residents(PeakAnalysis):
    """The peak of one job, and which tensors are there at a time."""

    def __init__(self, schedule: JobSchedule, accounting: Accounting) -> None:
        self._away = array("q")
        """Five numbers for all that is planned: its tensor, and beginnings and ends of when that is away."""
        super().__init__(schedule, accounting)
        tensors, begins, ends = self._lifetimes()
        by_size = np.lexsort((tensors, -np.array(self._accesses.sizes, dtype=np.int64)[tensors]))
        self._tensors, self._begins, self._ends = tensors[by_size], begins[by_size], ends[by_size]

    def add(self, entry: Swap | Recomputed) -> None:
        """Count what is planned."""
        super().add(entry)
        parts = self.absence(entry)
        self._away.extend((entry.tensor, *parts[0], *parts[-1]))

    def remove(self, entry: Swap | Recomputed) -> None:
        """Undo the last ``add``."""
        super().remove(entry)
        del self._away[-5:]

    def is_away(self, swaps: list[Swap], time: int) -> bool:
        """Return True if one of a tensor's swaps takes it away at a time."""
        return any(
            bool(self._covers(away.start, away.end, time)) for swap in swaps for away in self.absence(swap)
        )

    def _covers(self, start: Times, end: Times, time: int) -> Flags | bool:
        if self._accounting == "published":
            return (start < time) & (time < end)
        return (start <= time) & (time < end)

    def residents(self, time: int) -> Integers:
        """Return the tensors that are there at a time, largest first."""
        there: Flags = self._begins <= time
        there &= time <= self._ends if self._accounting == "published" else time < self._ends
        tensors, start, end, next_start, next_end = np.array(self._away).reshape(-1, 5).T
        is_away = self._covers(start, end, time) | self._covers(next_start, next_end, time)
        has_left = np.zeros(len(self._accesses.sizes), dtype=np.bool_)
        has_left[tensors[is_away]] = True
        found: Integers = self._tensors[there]
        found = found[~has_left[found]]
        once: Integers = found[np.append(True, found[1:] != found[:-1])[: len(found)]]
        return once


Channels = Literal["divided", "per_job", "shared"]


class PlannerOptions(Limited):
    """Parameters of the planner that users may choose."""

    across_iterations: bool = parameter(default=True, published="true, paper")
    """Keep persistent tensors away across the border of the iteration."""
    recomputation: bool = parameter(default=True, published="true, paper")
    """Recompute tensors when no swap lowers the peak any more."""
    channels: Channels = parameter(
        default="divided",
        published="per_job, authors' program",
        effect=Effect(
            lambda run, policy: run.shares_gpus, "with jobs that share a GPU", "jobs are planned one by one"
        ),
    )
    """``divided``: the copies of each job come one after another, at the rate that those of other jobs leave;
    ``per_job``: at the whole rate; ``shared``: those of all jobs come one after another."""
    duplex: bool = parameter(default=False, published="false, authors' program")
    """Plan copies out and in at the same time."""
    accounting: Accounting = parameter(default="physical", published="published, authors' program")
    """``physical``: memory is taken when a copy in begins and free when a copy out has ended;
    ``published``: the other way round."""
    swap_share: Share = parameter(default=1.0)
    """Most tensors of a job that are swapped within iterations, as a share of all its tensors."""


class PlanningParameters(PlannerOptions):
    """All parameters of ``plan_jobs``."""

    target_bytes: Count | None = parameter(default=None)
    """Planning ends when the sum of the jobs' peaks is within it; None: as low as it goes."""


_LEAST_ROUNDS = 100
_LEAST_DROP = 0.0005


class _JobPlanner:
    """The schedule of one job as it grows."""

    def __init__(self, schedule: JobSchedule, parameters: PlanningParameters, bytes_per_cycle: float) -> None:
        self.schedule, self._parameters, self._rate = schedule, parameters, bytes_per_cycle
        accesses = schedule.accesses
        self.analysis = Residents(schedule, parameters.accounting)
        self._rules = Recomputability(accesses.trace)
        count = len(accesses.sizes)
        # Channels only fill up: what was impossible at a peak remains so. Times are those of the last one.
        self._failed, self._stays = np.full((2, count), -1, dtype=np.int64)
        self._may_swap = np.ones(count, dtype=np.bool_)
        lasting = np.array(accesses.trace.lasting, dtype=np.bool_)
        self._may_stay_away = lasting & parameters.across_iterations
        self._quota = int(parameters.swap_share * len(accesses.sizes))
        self.peak = self.analysis.find()

    def candidates(self) -> list[tuple[int, bool, bool]]:
        """Return tensors at the peak, and for each whether it may be away across the border, and within."""
        time = self.peak.time
        found = self.analysis.residents(time)
        may_fit = (self._failed[found] != time) & (len(self.schedule.swapped) < self._quota)
        within = self._may_swap[found] & may_fit
        across = self._may_stay_away[found] & (self._stays[found] != time)
        chosen = within | across
        return list(zip(*(part[chosen].tolist() for part in (found, across, within)), strict=True))

    def try_across(self, tensor: int) -> bool:
        """Try to keep a persistent tensor away across the border of the iteration."""
        swaps = swap_across(self.schedule, tensor, self._transfer_cycles(tensor), self._relieves)
        self._stays[tensor] = self.peak.time
        self._add(swaps)
        self._may_stay_away[tensor] &= not swaps
        return bool(swaps)

    def try_within(self, tensor: int) -> bool:
        """Try to swap a tensor within the iteration."""
        length, last = self._transfer_cycles(tensor), self.peak.last_access
        swaps = swap_within(self.schedule, tensor, last, length, self._relieves)
        self._failed[tensor] = self.peak.time
        self._add(swaps)
        if swaps:
            self.schedule.swapped.add(tensor)
            self._may_swap[tensor] = False
        return bool(swaps)

    def try_recomputation(self) -> bool:
        """Try to drop a tensor at the peak and compute it again, if that lowers the peak."""
        schedule, before = self.schedule, self.peak
        residents = self.analysis.residents(before.time)
        for entry in choose_recomputation(schedule, self._rules, before, residents):
            self.analysis.add(entry)
            self.peak = self.analysis.find()
            if (self.peak.size_bytes, -self.peak.time) < (before.size_bytes, -before.time):
                schedule.recomputed.append(entry)
                self._may_swap[entry.tensor] = False
                return True
            self.analysis.remove(entry)
        self.peak = before
        return False

    def _add(self, swaps: list[Swap]) -> None:
        self.schedule.swaps.extend(swaps)
        for swap in swaps:
            self.analysis.add(swap)

    def _relieves(self, swaps: list[Swap]) -> bool:
        return self.analysis.is_away(swaps, self.peak.time)

    def _transfer_cycles(self, tensor: int) -> int:
        return self.schedule.accesses.copy_cycles(tensor, self._rate)


@dataclass(frozen=True)
class PlannedJobs:
    """Schedules of jobs that share a GPU, and the sum of their peaks before and after planning, in bytes."""

    schedules: tuple[JobSchedule, ...]
    unplanned_peak_bytes: int
    peak_bytes: int
    time: Limit


def plan_jobs(
    jobs: Sequence[AccessSequence], parameters: PlanningParameters, bytes_per_cycle: float, free_bytes: int
) -> PlannedJobs:
    """Plan jobs that share a GPU, whose copies move ``bytes_per_cycle`` each way together.

    As the jobs' iterations are not in step, the sum of their peaks counts, and the tensors at any of these
    are candidates, largest first. After every swap the peaks are found again. Only when no swap is possible
    any more, and the sum is at least ``free_bytes``, a tensor is recomputed. Planning ends when neither
    helps, when the sum is within the memory target, or when after 100 rounds none of the last two lowered it
    by 0.05%.
    """
    shared = Channel(), Channel()
    if parameters.channels == "divided":
        bytes_per_cycle *= _share_of_link(len(jobs), duplex=parameters.duplex)
    planners = []
    for accesses in jobs:
        channels = shared if parameters.channels == "shared" else (Channel(), Channel())
        schedule = JobSchedule(accesses, channels[0], channels[1] if parameters.duplex else channels[0])
        planners.append(_JobPlanner(schedule, parameters, bytes_per_cycle))
    sums, time = [_sum_of_peaks(planners)], Limit(parameters.planning_limit)
    while not _is_enough(sums, parameters.target_bytes) and not time.is_over():
        if not _swap_one(planners) and not (
            parameters.recomputation and sums[-1] >= free_bytes and _recompute(planners)
        ):
            break
        for planner in planners:
            planner.peak = planner.analysis.find()
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
    candidates = sorted(
        (-planner.schedule.accesses.sizes[tensor], number, tensor, across, within)
        for number, planner in enumerate(planners)
        for tensor, across, within in planner.candidates()
    )
    swapped = False
    for _, number, tensor, across, within in candidates:
        if across and planners[number].try_across(tensor):
            swapped = True
        elif within and planners[number].try_within(tensor):
            return True
    return swapped


def _recompute(planners: list[_JobPlanner]) -> bool:
    """Recompute one tensor of each job."""
    progress = [planner.try_recomputation() for planner in planners]
    return any(progress)
