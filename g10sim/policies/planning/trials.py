"""Trial iterations of designs among which a policy chooses."""

from __future__ import annotations

from statistics import fmean

from g10sim.policies.interface import PolicyPerJob, Trials


def speed(design: PolicyPerJob, trials: Trials, *, until_steady: bool = False) -> float:
    """Return the mean over jobs of ideal over actual time; 0 where the design cannot run them."""
    cycles = trials.cycles(design, until_steady=until_steady)
    if cycles is None:
        return 0.0
    ideal = (sum(job.trace.durations_cycles(trials.system.gpu.clock)) for job in design.workload.jobs)
    return fmean(alone / took if took else 1.0 for alone, took in zip(ideal, cycles, strict=True))
