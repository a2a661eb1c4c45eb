"""Kernel times that planning goes by: predicted at first, then measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRIFT = 0.3
"""Change of a job's time between plans above which all jobs are planned again (authors' program)."""
SMOOTHING = 0.9
"""Weight of measured kernel times against those planned with before (authors' program)."""


def predicted(durations: Sequence[int], error: float, seed: int, job: int) -> tuple[int, ...]:
    """Return kernel times as a predictor would give them that is off by at most a share ``error``.

    Every kernel's time is multiplied by a factor of its own, uniform in [1 - error, 1 + error].
    """
    # Varied executions draw from (seed, job); a prediction must not know those factors.
    generator = np.random.default_rng((seed, job, 1))
    factors = 1.0 + error * generator.uniform(-1.0, 1.0, len(durations))
    return tuple(
        max(1, round(cycles * factor)) if cycles else 0
        for cycles, factor in zip(durations, factors.tolist(), strict=True)
    )


def has_drifted(planned: Sequence[int], measured: Sequence[int], threshold: float = DRIFT) -> bool:
    """Whether the sum of measured times differs from that planned with by more than a share of it."""
    before = sum(planned)
    return abs(sum(measured) - before) > threshold * before


def smoothed(planned: Sequence[int], measured: Sequence[int]) -> tuple[int, ...]:
    """Return the times to plan with next."""
    weight = SMOOTHING
    return tuple(round(weight * new + (1 - weight) * old) for new, old in zip(measured, planned, strict=True))
