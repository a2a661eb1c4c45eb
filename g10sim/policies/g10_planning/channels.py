"""Transfer budgets: how many bytes each channel can still move while each kernel runs.

Kernels are counted on over the border of the iteration: kernel n + k is kernel k of the next iteration,
which has the same budget. Prefix sums answer by bisection when a transfer would end or must begin.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from g10sim.analysis.timeline import Integers
from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.records import Location

Bytes: TypeAlias = npt.NDArray[np.float64]

# Budgets are sums of floats: a thousandth of a byte is rounding.
_TOLERANCE = 1e-3


class Direction:
    """One direction of the GPU's link, and the SSD's channel that goes over it.

    SSD traffic uses up both; the SSD's free budget is never more than the link's.
    """

    def __init__(self, durations: Integers, link_rate: float, ssd_rate: float) -> None:
        cycles: Bytes = durations.astype(np.float64)
        self._link: Bytes = cycles * link_rate
        self._ssd: Bytes = cycles * min(ssd_rate, link_rate)
        self.num_kernels = len(durations)
        self._sum()

    def _sum(self) -> None:
        self._link_sums, self._ssd_sums = prefix_sums(self._link), prefix_sums(self._ssd)

    def sums(self, place: Location) -> Bytes:
        """Prefix sums of the free bytes on the way to or from a place, one more than kernels."""
        return self._ssd_sums if place is Location.FLASH else self._link_sums

    def free_bytes(self, place: Location) -> Bytes:
        """Free bytes of each kernel on the way to or from a place (read only)."""
        return self._ssd if place is Location.FLASH else self._link

    def finish(self, start: int, size_bytes: float, place: Location) -> int:
        """Kernel during which a transfer ends that may begin with kernel ``start``.

        Three iterations on where an iteration's budget is not enough.
        """
        sums, kernels = self.sums(place), self.num_kernels
        begin, lap = divmod_lap(start, kernels)
        wanted = float(sums[begin]) + size_bytes
        if wanted > sums[-1]:
            wanted, lap = wanted - float(sums[-1]), lap + kernels
        if wanted > sums[-1]:
            return 3 * kernels
        return max(start, int(sums.searchsorted(wanted - _TOLERANCE)) - 1 + lap)

    def latest_start(self, end: int, size_bytes: float, place: Location) -> int:
        """Last kernel with which a transfer can begin and end before kernel ``end``; -1 for none."""
        sums, kernels = self.sums(place), self.num_kernels
        stop, lap = divmod_lap(end, kernels)
        wanted = float(sums[stop]) - size_bytes
        if wanted < 0 and lap:
            wanted, lap = wanted + float(sums[-1]), lap - kernels
        if wanted < 0:
            return -1
        return min(end - 1, int(sums.searchsorted(wanted + _TOLERANCE, side="right")) - 1 + lap)

    def debit(self, start: int, size_bytes: float, place: Location) -> None:
        """Use up budget for a transfer, from kernel ``start`` on, for at most one iteration."""
        path = self._ssd if place is Location.FLASH else self._link
        kernel, left = start % self.num_kernels, float(size_bytes)
        for begin, stop in ((kernel, self.num_kernels), (0, kernel)):
            if left <= _TOLERANCE or begin == stop:
                continue
            sums = np.cumsum(path[begin:stop])
            last = min(int(sums.searchsorted(left)) + 1, stop - begin)
            used = path[begin : begin + last].copy()
            used[-1] -= max(0.0, float(sums[last - 1]) - left)
            left -= float(used.sum())
            self._take(slice(begin, begin + last), used, place)
        self._sum()

    def _take(self, kernels: slice, used: Bytes, place: Location) -> None:
        self._link[kernels] = np.maximum(self._link[kernels] - used, 0.0)
        if place is Location.FLASH:
            self._ssd[kernels] -= used
        self._ssd[kernels] = np.minimum(self._ssd[kernels], self._link[kernels])


class Channels:
    """Budgets of both directions: ``out`` of the GPU and ``into`` it."""

    def __init__(self, durations: Integers, machine: PlannedMachine) -> None:
        self.out = Direction(durations, machine.link_rate, machine.write_rate)
        self.into = Direction(durations, machine.link_rate, machine.read_rate)


def prefix_sums(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Add up the first 0, 1, ... values: one more sum than values."""
    sums = np.zeros(len(values) + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def divmod_lap(kernel: int, num_kernels: int) -> tuple[int, int]:
    """Split a kernel counted on over the border into (kernel of an iteration, first of that iteration)."""
    lap = num_kernels if kernel > num_kernels else 0
    return kernel - lap, lap
