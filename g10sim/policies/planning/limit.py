"""Limits of planning: the time that it takes, and trial iterations of designs among which it chooses."""

from __future__ import annotations

import time
from math import floor, inf
from statistics import fmean

from g10sim.policies.interface import PolicyPerJob, Trials
from g10sim.policies.interface.parameters import Declared, parameter


class Limited(Declared):
    """The parameter of policies whose planning may be limited."""

    planning_limit: float | None = parameter(default=None, ge=0)
    """CPU seconds after which planning of a job ends with the best so far: the plan then depends on the
    computer, and the note of the results says so. None: no limit."""


class TimeLimit:
    """CPU seconds that planning may take from now on; None: as many as it takes."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds, self.was_reached = seconds, False
        self._end = inf if seconds is None else time.process_time() + seconds

    def is_over(self) -> bool:
        """Return whether no time is left, and remember it."""
        self.was_reached = self.was_reached or (self._end < inf and time.process_time() >= self._end)
        return self.was_reached

    @property
    def note(self) -> str:
        """Say that planning ended early; else nothing."""
        return f"planning ended at its limit of {self.seconds:g} s" if self.was_reached else ""


def speed(design: PolicyPerJob, trials: Trials, to_beat: float = 0.0, *, until_steady: bool = False) -> float:
    """Return the mean over jobs of ideal over actual time; 0 where the design cannot run them.

    A trial ends once that cannot come to the speed ``to_beat`` any more: it is no less than the truth then,
    and less than that.
    """
    clock = trials.system.gpu.clock
    ideal = [sum(job.trace.durations_cycles(clock)) for job in trials.workload.jobs]
    at_most = [floor(cycles / to_beat) for cycles in ideal] if to_beat else []
    cycles = trials.cycles(design, until_steady=until_steady, at_most=at_most)
    if cycles is None:
        return 0.0
    # Where one group of GPUs stands for all, its jobs are the first ones, or like them.
    return fmean(alone / took if took else 1.0 for alone, took in zip(ideal, cycles, strict=False))
