"""Estimated bytes on the GPU during each kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from g10sim.analysis.timeline import Integers


@dataclass(frozen=True, slots=True)
class PlannedEviction:
    """A tensor leaves the GPU in an inactive period.

    Issued at kernel ``start``, out by the end of kernel ``out_by``, wanted back at kernel ``end``; its
    prefetch is issued at kernel ``prefetch`` (None: it is fetched on demand). Kernels are counted on over
    the border of the iteration; ``wraps`` marks a period that crosses it.
    """

    tensor: int
    size_bytes: int
    start: int
    end: int
    host: bool
    out_by: int
    prefetch: int | None
    wraps: bool = False


class Occupancy:
    """Estimated occupancy per kernel and how long it exceeds a limit.

    Ranges of kernels are counted on over the border of the iteration.
    """

    def __init__(self, occupancy_bytes: Integers, durations: Integers, limit_bytes: float) -> None:
        self.bytes = occupancy_bytes
        self._durations = durations
        self._limit_bytes = limit_bytes
        self._sum()

    def _sum(self) -> None:
        over = np.where(self.bytes > self._limit_bytes, self._durations, 0)
        self._over_sums = np.zeros(len(over) + 1, dtype=np.int64)
        np.cumsum(over, out=self._over_sums[1:])

    @property
    def peak_bytes(self) -> int:
        """Highest estimate."""
        return int(self.bytes.max(initial=0))

    def over_cycles(self, first: int, stop: int) -> int:
        """Cycles of kernels ``first`` to ``stop`` - 1 during which the estimate exceeds the limit."""
        return self._over_before(stop) - self._over_before(first) if stop > first else 0

    def _over_before(self, kernel: int) -> int:
        kernels = len(self.bytes)
        if kernel <= kernels:
            return int(self._over_sums[kernel])
        return int(self._over_sums[-1]) + int(self._over_sums[kernel - kernels])

    def change(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during kernels ``first`` to ``stop`` - 1."""
        for part in kernel_slices(first, stop, len(self.bytes)):
            self.bytes[part] += size_bytes
        self._sum()


def kernel_slices(first: int, stop: int, num_kernels: int) -> tuple[slice, ...]:
    """Slices of an iteration's kernels for a range that is counted on over its border."""
    if stop <= first:
        return ()
    if first >= num_kernels:
        return (slice(first - num_kernels, stop - num_kernels),)
    if stop <= num_kernels:
        return (slice(first, stop),)
    return (slice(first, num_kernels), slice(0, stop - num_kernels))
