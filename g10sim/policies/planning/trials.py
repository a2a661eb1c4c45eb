"""Trial iterations of designs among which a policy chooses."""

from __future__ import annotations

from math import floor
from statistics import fmean

from g10sim.policies.interface import PolicyPerJob, Trials


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
