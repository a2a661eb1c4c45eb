"""Transfer budgets of the published simulator's planner, peculiarities included.

They count whole bytes: of what a kernel has left, a fraction of a byte counts as one. Traffic to the SSD uses
the link's budget too. Where other traffic fills the link, the SSD has nothing left either; what it takes
beyond the link's rate less the SSD's is charged to the SSD, all of it again with every transfer that ends in
that kernel.
"""

from __future__ import annotations

import numpy as np

from g10sim.analysis.timeline import Flags, Floats, Integers, prefix_sums


class ByteBudget:
    """Bytes that can still move during each kernel; where it is full, all of its capacity is used."""

    def __init__(self, capacity_bytes: Floats) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes: Floats = np.zeros_like(capacity_bytes)
        self.is_full: Flags = np.zeros(len(capacity_bytes), dtype=np.bool_)
        self._sum()

    def _sum(self) -> None:
        self._sums = prefix_sums(np.ceil(self.capacity_bytes - self.used_bytes).astype(np.int64))

    def finish(self, starts: Integers | int, sizes: Integers | int) -> Integers:
        """Kernels during which transfers end that begin with ``starts``; the last one if they do not."""
        found: Integers = self._sums.searchsorted(self._sums[starts] + sizes) - 1
        return np.minimum(found, len(self.is_full) - 1)

    def latest_start(self, ends: Integers | int, sizes: Integers | int) -> Integers:
        """Last kernels with which transfers can begin and end before ``ends``; 0 if they cannot."""
        found: Integers = self._sums.searchsorted(self._sums[ends] - sizes, side="right") - 1
        return np.maximum(found, 0)

    def take(self, start: int, size_bytes: int) -> tuple[slice, Floats, Flags]:
        """Use up budget from kernel ``start`` on; return of which kernels, how much, and which that fills."""
        last = int(self.finish(start, size_bytes))
        kernels = slice(start, last + 1)
        taken: Floats = self.capacity_bytes[kernels] - self.used_bytes[kernels]
        fills: Flags = ~self.is_full[kernels]
        left = size_bytes - int(self._sums[last] - self._sums[start])
        if fills[-1] and left + self.used_bytes[last] <= self.capacity_bytes[last]:
            taken[-1], fills[-1] = left, False
        self.charge(kernels, taken, fills)
        return kernels, taken, fills

    def charge(self, kernels: slice, taken: Floats, fills: Flags) -> None:
        """Count bytes as used, and some of the kernels as full."""
        used = self.used_bytes[kernels] + taken
        self.used_bytes[kernels] = np.where(fills, self.capacity_bytes[kernels], used)
        self.is_full[kernels] |= fills
        self._sum()


class Direction:
    """One direction of the GPU's link, and the SSD's share of it. Rates are bytes/microsecond."""

    def __init__(self, microseconds: Floats, link_rate: float, ssd_rate: float) -> None:
        self.link, self.ssd = (ByteBudget(microseconds * link_rate), ByteBudget(microseconds * ssd_rate))

    def take_for_ssd(self, start: int, size_bytes: int) -> None:
        """Use up budget for a transfer to or from the SSD, from kernel ``start`` on."""
        kernels, taken, _ = self.ssd.take(start, size_bytes)
        used, capacity = self.link.used_bytes[kernels] + taken, self.link.capacity_bytes[kernels]
        self.link.charge(kernels, taken, (taken > 0) & (used >= capacity))

    def take_for_host(self, start: int, size_bytes: int) -> None:
        """Use up budget for a transfer to or from the host, from kernel ``start`` on."""
        kernels, taken, fills = self.link.take(start, size_bytes)
        last = kernels.stop - 1
        charged: Floats = np.zeros_like(taken)
        if taken[-1] > 0 and not fills[-1]:
            spare = self.link.capacity_bytes[last] - self.ssd.capacity_bytes[last]
            charged[-1] = max(0.0, self.link.used_bytes[last] - spare)
            fills[-1] = self.ssd.used_bytes[last] + charged[-1] >= self.ssd.capacity_bytes[last]
        self.ssd.charge(kernels, charged, fills)
