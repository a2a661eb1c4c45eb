"""Uncertainty of the times of a machine: factors by which they may be off."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from g10sim.config.quantities import Number, Spec

_MOST = 1000
"""Farthest that times may be off: rates of all allowed machines stay above 0."""


def _around_one(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    if not 1 / _MOST <= low <= 1 <= high <= _MOST:
        raise ValueError(
            f"found {list(span)}; allowed: a factor from {1 / _MOST:g} to 1, and one from 1 to {_MOST}"
        )
    return span


Span = Annotated[tuple[Number, Number], AfterValidator(_around_one)]
CERTAIN = (1.0, 1.0)


class UncertaintySpec(Spec):
    """Factors by which times may be off, [lowest, highest]: 1.25 is a quarter slower than simulated.

    Every cell is also run at four corners, kernels and all that moves data each at their lowest or highest
    factors, and ``draws`` times with factors that are drawn by the seed of the run: one for each class of
    operators, one for links, drives and page faults each.
    """

    kernels: Span = CERTAIN
    """times of kernels"""
    links: Span = CERTAIN
    """times of bytes on links, and of starting copies"""
    drives: Span = CERTAIN
    """times of bytes on drives, and of accesses"""
    faults: Span = CERTAIN
    """times of handling page faults"""
    draws: int = Field(default=4, strict=True, ge=0, le=64)
    """cells in addition to the four corners"""
    sources: dict[str, str] = Field(default_factory=dict)
    """where factors come from, by key"""
