"""The number of iterations that jobs run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.run import AUTO, most_iterations
from g10sim.errors import ConfigError
from g10sim.records import IterationRecord
from g10sim.trace.workload import Workload


class Iterations:
    """Number of iterations of replicas: ``most``, or fewer if all jobs ``until_steady`` are steady.

    They all run equally many, so that none has shared links to itself in the end.
    """

    def __init__(self, most: int, until_steady: Collection[int] = ()) -> None:
        self._count, self._begun = most, 0
        self._steady = dict.fromkeys(until_steady, False)
        self.are_joint = len(self._steady) > 1

    def has(self, iteration: int) -> bool:
        """Return whether a job that has come to an iteration, counted from 0, is to run it."""
        if iteration >= self._count:
            return False
        self._begun = max(self._begun, iteration + 1)
        return True

    def ended(self, record: IterationRecord) -> None:
        """Take note of an iteration: once all jobs are steady, none begins what no other has begun."""
        if record.job in self._steady:
            self._steady[record.job] = bool(record.steady)
            if all(self._steady.values()):
                self._count = min(self._count, self._begun)


def are_replicas(workload: Workload) -> bool:
    """Return whether there is one job, or all are alike and on their own GPUs."""
    jobs = workload.jobs
    apart = len({job.gpu for job in jobs}) == len(jobs)
    return apart and len({(id(job.trace), job.iterations, job.arrival_cycles) for job in jobs}) == 1


def with_numbers(workload: Workload, behaviour: BehaviourSpec) -> Workload:
    """Return the workload with a number of iterations where ``auto`` stands for one.

    Raises ConfigError for ``auto`` with jobs that differ: these come and go, and none need ever be steady.
    """
    if all(job.iterations != AUTO for job in workload.jobs):
        return workload
    if not are_replicas(workload):
        raise ConfigError(
            "iterations: found auto beside other jobs than replicas on GPUs of their own; allowed: a number "
            "of iterations for each job"
        )
    if behaviour.reported_iteration != "fastest":
        return workload
    counted = (replace(job, iterations=most_iterations(job.iterations, behaviour)) for job in workload.jobs)
    return replace(workload, jobs=tuple(counted))


def shortened(workload: Workload, iterations: int, *, keeps_auto: bool = False) -> Workload:
    """Return the workload with at most some iterations of each job; ``keeps_auto``: unless it is auto."""

    def number(given: int | Literal["auto"]) -> int | Literal["auto"]:
        if given == AUTO:
            return AUTO if keeps_auto else iterations
        return min(given, iterations)

    jobs = (replace(job, iterations=number(job.iterations)) for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))
