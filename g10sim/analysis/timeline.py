"""Start times of kernels if no kernel ever waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from g10sim.trace.model import Trace

if TYPE_CHECKING:
    import numpy.typing as npt

Integers: TypeAlias = "npt.NDArray[np.int64]"
Floats: TypeAlias = "npt.NDArray[np.float64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Numbers: TypeAlias = "npt.NDArray[Any]"
"""Integers or floats, or integers of Python where they may be too large for those of numpy."""


def prefix_sums(values: Numbers) -> Numbers:
    """Add up the first 0, 1, ... values: one more sum than values."""
    sums = np.zeros(len(values) + 1, dtype=values.dtype)
    values.cumsum(out=sums[1:])
    return sums


def kernel_durations(trace: Trace, clock_hz: int) -> Integers:
    """Duration of every kernel in cycles."""
    return np.array(trace.durations_cycles(clock_hz), dtype=np.int64)


def kernel_starts(trace: Trace, clock_hz: int) -> Integers:
    """Start of every kernel and the end of the last one, in cycles: one more entry than kernels."""
    return prefix_sums(kernel_durations(trace, clock_hz))


def kernel_at(starts: Integers, time: int) -> int:
    """Kernel running at a time (cycles), by bisection; the first or last one outside the iteration.

    A kernel runs from its start until just before its end, so one without duration never runs.
    """
    found = int(np.searchsorted(starts, time, side="right")) - 1
    return min(max(found, 0), len(starts) - 2)
