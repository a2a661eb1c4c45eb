"""Plans of the jobs on one GPU while time passes: they come, take other times than predicted, and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from g10sim.policies.designs.tensile.planner import PlannedJobs, TensileOptions, plan_jobs
from g10sim.policies.interface import Evict, Fetch, MigrationPlan, Planned, PlannedMachine, PlannedTier
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule
from g10sim.trace.model import Trace

DRIFT = 0.3
"""Change of a job's time between plans above which all jobs are planned again (authors' program)."""
SMOOTHING = 0.9
"""Weight of measured kernel times against those planned with before (authors' program)."""


def predicted(durations: Sequence[int], error: float, seed: int, job: int) -> tuple[int, ...]:
    """Return kernel times as a predictor would give them that is off by at most a share ``error``.

    Every kernel's time is multiplied by a separate factor, uniform in [1 - error, 1 + error].
    """
    # Varied executions draw from (seed, job); a prediction must not know those factors.
    generator = np.random.default_rng((seed, job, 1))
    factors = 1.0 + error * generator.uniform(-1.0, 1.0, len(durations))
    pairs = zip(durations, factors.tolist(), strict=True)
    return tuple(max(1, round(cycles * factor)) if cycles else 0 for cycles, factor in pairs)


def has_drifted(planned: Sequence[int], measured: Sequence[int], threshold: float = DRIFT) -> bool:
    """Return True if the sum of measured times is off the planned one by more than a share of it."""
    before = sum(planned)
    return abs(sum(measured) - before) > threshold * before


def smoothed(planned: Sequence[int], measured: Sequence[int]) -> tuple[int, ...]:
    """Return the times to plan with next."""
    weight = SMOOTHING
    return tuple(round(weight * new + (1 - weight) * old) for new, old in zip(measured, planned, strict=True))


def spread(measured: Sequence[int], own: Sequence[int]) -> tuple[int, ...]:
    """Return kernel times that are in proportion to the kernels' own and take as long as measured in all.

    Which kernels the slices of other jobs fall into does not repeat; how long an iteration takes does.
    """
    total, alone = sum(measured), sum(own)
    return tuple(cycles * total // alone for cycles in own) if alone else tuple(measured)


@dataclass(eq=False)
class JobGroup:
    """Jobs that are planned together. Plans are made for all at once; each job adopts its own when it can.

    ``times`` are the kernel times, in cycles, that are planned with next; ``_plans`` are not adopted yet.
    """

    traces: Mapping[int, Trace]
    times: dict[int, tuple[int, ...]]
    machine: PlannedMachine
    options: TensileOptions
    target_bytes: int | None
    tier: PlannedTier
    threshold: float | None
    planned: PlannedJobs = field(init=False)
    times_planned: int = 0
    _measured: set[int] = field(default_factory=set)
    _active: list[int] = field(default_factory=list)
    _plans: dict[int, MigrationPlan] = field(default_factory=dict)
    _is_outdated: bool = False

    def join(self, jobs: Sequence[int]) -> None:
        """Plan for jobs that have arrived, and those that are there; one that is there already is none."""
        new = [job for job in jobs if job not in self._active]
        if new:
            self._active = sorted(self._active + new)
            self._is_outdated = True

    def leave(self, job: int) -> None:
        """Plan without a job that has ended."""
        self._active.remove(job)
        self._is_outdated = bool(self._active)

    def observe(self, job: int, measured: Sequence[int]) -> None:
        """Plan again if the times of a job were measured for the first time, or have drifted."""
        if self._are_news(job, measured):
            self._measured.add(job)
            self.times[job] = smoothed(self.times[job], measured)
            self._is_outdated = True

    def _are_news(self, job: int, measured: Sequence[int]) -> bool:
        times = self.times[job]
        if self.threshold is None or tuple(measured) == times:
            return False
        return job not in self._measured or has_drifted(times, measured, self.threshold)

    def is_settled(self, job: int, measured: Sequence[int]) -> bool:
        """Return True if a job has adopted the latest plan, and its times give no reason for another."""
        is_latest = not self._is_outdated and job not in self._plans
        return is_latest and not self._are_news(job, measured)

    def adopt(self, job: int) -> MigrationPlan | None:
        """Return the plan of a job if there is one that it has not adopted yet."""
        if self._is_outdated:
            self._plan()
        return self._plans.pop(job, None)

    def _plan(self) -> None:
        machine, target = self.machine, self.target_bytes
        active = [(self.traces[job], self.times[job]) for job in self._active]
        accesses = [AccessSequence(trace, times, machine.sizes(trace)) for trace, times in active]
        free = machine.gpu_bytes if target is None else min(machine.gpu_bytes, target)
        self.planned = plan_jobs(accesses, self.options, self.tier.rate, free, target)
        for job, schedule in zip(self._active, self.planned.schedules, strict=True):
            self._plans[job] = to_plan(schedule, self.tier.name)
        self.times_planned += 1
        self._is_outdated = False


def to_plan(schedule: JobSchedule, target: str) -> MigrationPlan:
    """Return the plan: drops, allocations, swaps.

    A copy is issued during the kernel that runs when it is to begin, so long after that kernel has started as
    planned: where kernels take other times than expected, the plan drifts by one kernel's error only.
    """
    accesses, copies = schedule.accesses, list[Planned]()
    for swap in schedule.swaps:
        out, back = Evict(swap.tensor, target), Fetch(swap.tensor)
        copies += accesses.planned(swap.out.start, out), accesses.planned(swap.back.start, back)
    return schedule.plan(copies, "tensile")
