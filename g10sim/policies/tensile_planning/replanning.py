"""Plans of the jobs on one GPU while time passes: they come, take other times than predicted, and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.tensile_planning.moves import to_plan
from g10sim.policies.tensile_planning.parameters import PlanningParameters
from g10sim.policies.tensile_planning.planner import Planned, plan_jobs
from g10sim.policies.tensile_planning.timing import has_drifted, smoothed
from g10sim.records import Location
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class PlannedJob:
    """One job of a group: its trace and the kernel times, in cycles, that are planned with first."""

    trace: Trace
    durations: tuple[int, ...]


class Group:
    """Jobs that are planned together. Plans are made for all at once; each job adopts its own when it can."""

    def __init__(
        self,
        jobs: Mapping[int, PlannedJob],
        machine: PlannedMachine,
        parameters: PlanningParameters,
        target: Location,
        threshold: float | None,
    ) -> None:
        self._jobs, self._machine, self._parameters = jobs, machine, parameters
        self._target, self._threshold = target, threshold
        self._times = {number: job.durations for number, job in jobs.items()}
        self._measured: set[int] = set()
        self._active: list[int] = []
        self._adopted: dict[int, int] = {}
        self._plans: dict[int, MigrationPlan] = {}
        self._is_outdated = False
        self.planned: Planned | None = None
        self.times_planned = 0

    def join(self, jobs: Sequence[int]) -> None:
        """Plan for jobs that have arrived, beside those that are there; one that is there already is none."""
        new = [job for job in jobs if job not in self._active]
        if new:
            self._active = sorted(self._active + new)
            self._is_outdated = True

    def leave(self, job: int) -> None:
        """Plan without a job that has ended."""
        self._active.remove(job)
        self._is_outdated = bool(self._active)

    def observe(self, job: int, measured: Sequence[int]) -> None:
        """Plan anew if the times of a job were measured for the first time, or have drifted."""
        threshold, times = self._threshold, self._times[job]
        if threshold is None or tuple(measured) == times:
            return
        if job in self._measured and not has_drifted(times, measured, threshold):
            return
        self._measured.add(job)
        self._times[job] = smoothed(times, measured)
        self._is_outdated = True

    def adopt(self, job: int) -> MigrationPlan | None:
        """Return the job's plan if there is one that it has not adopted yet."""
        if self._is_outdated:
            self._plan()
        if self._adopted.get(job) == self.times_planned:
            return None
        self._adopted[job] = self.times_planned
        return self._plans[job]

    def has(self, job: int) -> bool:
        """Whether a job has arrived and not ended."""
        return job in self._active

    def _plan(self) -> None:
        machine, target = self._machine, self._target
        rate = machine.link_rate
        if target is Location.FLASH:
            rate = min(machine.read_rate, machine.write_rate)
        accesses = [
            AccessSequence(
                self._jobs[job].trace,
                self._times[job],
                [machine.pages_bytes(tensor.size_bytes) for tensor in self._jobs[job].trace.tensors],
            )
            for job in self._active
        ]
        free = self._parameters.target_bytes
        free = machine.gpu_bytes if free is None else min(free, machine.gpu_bytes)
        self.planned = plan_jobs(accesses, self._parameters, rate, free)
        planned = zip(self._active, self.planned.schedules, self.planned.analyses, strict=True)
        for job, schedule, analysis in planned:
            self._plans[job] = to_plan(schedule, analysis, target, machine.allocation_rate, "tensile")
        self.times_planned += 1
        self._is_outdated = False
