"""Kernel times that depart from those of the trace, by one random factor per kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from g10sim.config.variation import VariationSpec
from g10sim.trace.model import FaultProfile, Kernel, Trace


def perturb(trace: Trace, variation: VariationSpec, seed: int, job: int = 0) -> Trace:
    """Return the trace with the duration and the fault profile of every kernel times its random factor.

    Equal arguments give equal traces; ``job`` (position in the workload) tells jobs of one seed apart.
    One seed with another magnitude draws the same departures, scaled (where normal ones are not truncated).
    Times are rounded to the trace's time base; one that is positive stays so.
    """
    factors = draw_factors(variation, len(trace.kernels), seed, job)
    kernels = tuple(map(_perturbed, trace.kernels, factors.tolist()))
    return replace(trace, kernels=kernels)


def draw_factors(variation: VariationSpec, count: int, seed: int, job: int = 0) -> npt.NDArray[np.float64]:
    """Draw one factor per kernel, all of them between 0 and 2, from a generator of their own."""
    generator = np.random.default_rng((seed, job))
    if variation.distribution == "uniform":
        departures = variation.magnitude * generator.uniform(-1.0, 1.0, count)
    else:
        departures = variation.magnitude * generator.standard_normal(count)
        while (outside := np.abs(departures) >= 1.0).any():
            departures[outside] = variation.magnitude * generator.standard_normal(int(outside.sum()))
    return 1.0 + departures


def _perturbed(kernel: Kernel, factor: float) -> Kernel:
    profile = kernel.fault_profile
    if profile is not None:
        profile = FaultProfile(
            _scaled(profile.outputs_faulting, factor), _scaled(profile.all_faulting, factor)
        )
    return replace(kernel, duration=_scaled(kernel.duration, factor), fault_profile=profile)


def _scaled(ticks: int, factor: float) -> int:
    return max(1, round(ticks * factor)) if ticks else 0
