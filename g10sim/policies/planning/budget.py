"""Transfer budgets: how many bytes one direction of a link can still move while each kernel runs.

Kernels are counted on over the border of the iteration: kernel n + k is kernel k of the next iteration,
which has the same budget. Prefix sums answer by bisection when a transfer would end or must begin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from g10sim.analysis.timeline import Integers

Bytes: TypeAlias = npt.NDArray[np.float64]

# Budgets are sums of floats: a thousandth of a byte is rounding.
_TOLERANCE = 1e-3


class Budget:
    """One direction of the GPU's link, and the channels of the tiers that go over it.

    A transfer uses up both; the free budget of a tier is never more than the link's. Rates are bytes/cycle,
    by name of the tier. ``free_bytes`` are those of each kernel on the way to or from a tier, ``sums`` their
    prefix sums, one more than kernels; both are read only.
    """

    def __init__(self, durations: Integers, link_rate: float, rates: Mapping[str, float]) -> None:
        cycles: Bytes = durations.astype(np.float64)
        self._link: Bytes = cycles * link_rate
        self.free_bytes = {tier: cycles * min(rate, link_rate) for tier, rate in rates.items()}
        self.num_kernels = len(durations)
        self._sum()

    def _sum(self) -> None:
        free = self.free_bytes.items()
        self.sums = {tier: np.concatenate([[0.0], np.cumsum(one)]) for tier, one in free}

    def finish(self, start: int, size_bytes: float, tier: str) -> int:
        """Kernel during which a transfer ends that may begin with kernel ``start``.

        Three iterations on where an iteration's budget is not enough.
        """
        sums, kernels = self.sums[tier], self.num_kernels
        begin, lap = _without_lap(start, kernels)
        wanted = float(sums[begin]) + size_bytes
        if wanted > sums[-1]:
            wanted, lap = wanted - float(sums[-1]), lap + kernels
        if wanted > sums[-1]:
            return 3 * kernels
        return max(start, int(sums.searchsorted(wanted - _TOLERANCE)) - 1 + lap)

    def latest_start(self, end: int, size_bytes: float, tier: str) -> int:
        """Last kernel with which a transfer can begin and end before kernel ``end``; -1 for none."""
        sums, kernels = self.sums[tier], self.num_kernels
        stop, lap = _without_lap(end, kernels)
        wanted = float(sums[stop]) - size_bytes
        if wanted < 0 and lap:
            wanted, lap = wanted + float(sums[-1]), lap - kernels
        if wanted < 0:
            return -1
        return min(end - 1, int(sums.searchsorted(wanted + _TOLERANCE, side="right")) - 1 + lap)

    def debit(self, start: int, size_bytes: float, tier: str) -> None:
        """Use up budget for a transfer, from kernel ``start`` on, for at most one iteration."""
        path = self.free_bytes[tier]
        kernel, left = start % self.num_kernels, float(size_bytes)
        for begin, stop in ((kernel, self.num_kernels), (0, kernel)):
            if left <= _TOLERANCE or begin == stop:
                continue
            sums = np.cumsum(path[begin:stop])
            last = min(int(sums.searchsorted(left)) + 1, stop - begin)
            used = path[begin : begin + last].copy()
            used[-1] -= max(0.0, float(sums[last - 1]) - left)
            left -= float(used.sum())
            self._take(slice(begin, begin + last), used, tier)
        self._sum()

    def _take(self, kernels: slice, used: Bytes, tier: str) -> None:
        self._link[kernels] = np.maximum(self._link[kernels] - used, 0.0)
        self.free_bytes[tier][kernels] -= used
        for free in self.free_bytes.values():
            free[kernels] = np.minimum(free[kernels], self._link[kernels])


def _without_lap(kernel: int, num_kernels: int) -> tuple[int, int]:
    """Split a kernel counted on over the border into (kernel of an iteration, first of that iteration)."""
    lap = num_kernels if kernel > num_kernels else 0
    return kernel - lap, lap
