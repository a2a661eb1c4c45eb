"""Transfer budgets: how many bytes one direction of a link can still move while each kernel runs.

Kernels are counted on over the border of the iteration: kernel n + k is kernel k of the next iteration,
which has the same budget. Prefix sums answer by bisection when a transfer would end or must begin.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from g10sim.analysis.timeline import Floats, Integers, Numbers, prefix_sums


class Budget:
    """One direction of the GPU's link, and the channels of the tiers that go over it.

    A transfer uses up both; the free budget of a tier is never more than the link's. Rates are bytes/cycle,
    by name of the tier. ``free_bytes`` are those of each kernel on the way to or from a tier; read only.
    """

    def __init__(self, durations: Integers, link_rate: float, rates: Mapping[str, float]) -> None:
        cycles: Floats = durations.astype(np.float64)
        unit = 2.0 ** (np.ceil(np.log2(cycles.sum() * link_rate + 1)) - 51)  # so that sums of it are exact
        self._link: Floats = np.rint(cycles * link_rate / unit) * unit
        self.free_bytes = {
            tier: np.rint(cycles * min(rate, link_rate) / unit) * unit for tier, rate in rates.items()
        }
        self.num_kernels = len(durations)
        self._sums = {tier: prefix_sums(free) for tier, free in self.free_bytes.items()}

    def finish(self, starts: Integers, sizes_bytes: Integers, tier: str) -> Integers:
        """Kernels during which transfers end that may begin with kernels ``starts``.

        Three iterations on where an iteration's budget is not enough.
        """
        sums, kernels = self._sums[tier], self.num_kernels
        begins, laps = _without_laps(starts, kernels)
        wanted, total = sums[begins] + sizes_bytes, sums[-1]
        is_next = wanted > total
        wanted, laps = np.where(is_next, wanted - total, wanted), np.where(is_next, laps + kernels, laps)
        found = np.maximum(starts, sums.searchsorted(wanted) - 1 + laps)
        return np.where(wanted > total, 3 * kernels, found)

    def latest_start(self, ends: Integers, sizes_bytes: Integers, tier: str) -> Integers:
        """Last kernels with which transfers can begin and end before kernels ``ends``; -1 for none."""
        sums, kernels = self._sums[tier], self.num_kernels
        stops, laps = _without_laps(ends, kernels)
        wanted = sums[stops] - sizes_bytes
        is_before = (wanted < 0) & (laps > 0)
        wanted = np.where(is_before, wanted + sums[-1], wanted)
        laps = np.where(is_before, laps - kernels, laps)
        found = np.minimum(ends - 1, sums.searchsorted(wanted, "right") - 1 + laps)
        return np.where(wanted < 0, -1, found)

    def debit(self, start: int, size_bytes: float, tier: str) -> None:
        """Use up budget for a transfer, from kernel ``start`` on, for at most one iteration."""
        path, sums = self.free_bytes[tier], self._sums[tier]
        kernel, left = start % self.num_kernels, float(size_bytes)
        for begin, stop in ((kernel, self.num_kernels), (0, kernel)):
            if left <= 0 or begin == stop:
                continue
            last = min(int(sums.searchsorted(sums[begin] + left)), stop)
            used = path[begin:last].copy()
            used[-1] -= max(0.0, float(sums[last] - sums[begin]) - left)
            left -= float(used.sum())
            self._take(slice(begin, last), used, tier)

    def _take(self, kernels: slice, used: Floats, tier: str) -> None:
        link = self._link[kernels] = np.maximum(self._link[kernels] - used, 0.0)
        for name, free in self.free_bytes.items():
            left = np.minimum(free[kernels] - (used if name == tier else 0.0), link)
            move_sums(self._sums[name], kernels, left - free[kernels])
            free[kernels] = left


def move_sums(sums: Numbers, part: slice, changes: Numbers) -> None:
    """Let sums of the first 0, 1, ... values follow changes of a part of them; all sums have to be exact."""
    changed = changes.cumsum()
    sums[part.start + 1 : part.stop + 1] += changed
    sums[part.stop + 1 :] += changed[-1]


def _without_laps(kernels: Integers, num_kernels: int) -> tuple[Integers, Integers]:
    """Split kernels counted on over the border into (kernels of an iteration, first of that iteration)."""
    laps = np.where(kernels > num_kernels, num_kernels, 0)
    return kernels - laps, laps
