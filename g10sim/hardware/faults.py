"""Cost of page faults."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

from g10sim.config.system import PageFaultSpec, SystemSpec, published_drive
from g10sim.trace.model import FaultProfile
from g10sim.units import PICOSECONDS_PER_SECOND

# Rate that the published simulator assumes for a side whose profiled durations do not differ
# (its hidden constant; bytes per millisecond).
_UNPROFILED_BYTES_PER_MS = 1.0630044e9


class FaultCount:
    """Pages of one side (inputs or outputs) of a kernel, and those that fault by the place they lie at."""

    __slots__ = ("at", "pages")

    def __init__(self, at: list[int], pages: int = 0) -> None:
        self.at, self.pages = at, pages

    @property
    def faulting(self) -> int:
        """Pages that fault."""
        return sum(self.at)


def fault_batches(size_bytes: int, page_bytes: int, fault: PageFaultSpec) -> int:
    """Batches in which the driver handles the faults of consecutive bytes: see ``PageFaultSpec``."""
    blocks, rest = divmod(size_bytes, fault.group)
    leaf = max(1, min(fault.leaf, fault.group) // page_bytes)
    batches = partial(_block_batches, leaf=leaf, batch=fault.batch, threshold=fault.threshold)
    return blocks * batches(-(-fault.group // page_bytes)) + batches(-(-rest // page_bytes))


@cache
def _block_batches(pages: int, leaf: int, batch: int | None, threshold: float) -> int:
    """Batches for the first ``pages`` of a block, of which ever more from the start are there."""
    if batch is None:
        return min(pages, 1)
    there = batches = 0
    while there < pages:
        there = -(-(there + batch) // leaf) * leaf
        subtree = 2 * leaf
        while subtree < 2 * pages:
            start = (there - 1) // subtree * subtree
            if there - start > threshold * subtree:
                there = start + subtree
            subtree *= 2
        batches += 1
    return batches


def demand_rate(size_bytes: int, bandwidth: int, latency_ps: int, waits: int) -> int:
    """Rate at which demanded pages of one tensor arrive on an idle link, in bytes/second.

    They wait that often for ``latency_ps`` and are sent at ``bandwidth`` (bytes/second): rate = size /
    (waits * latency + size / bandwidth).
    """
    waiting_ps = waits * latency_ps
    sending_ps = -(-size_bytes * PICOSECONDS_PER_SECOND // bandwidth)
    return max(1, size_bytes * PICOSECONDS_PER_SECOND // (waiting_ps + sending_ps))


def one_after_another(rate: int, other: int) -> int:
    """Rate of bytes that move at one rate and then at another (bytes/second), the harmonic sum of both."""
    return max(1, rate * other // (rate + other))


class ProfiledFaultCost:
    """Closed form of the published G10 simulator for a kernel's time beyond its duration.

    With r the share of a side's pages that fault, q the share of those on flash, and S the side's bytes:
    time = max over {flash, host} of the sum over both sides of (r * q * S / B_flash) or
    (r * (1 - q) * S / B_host). B_host comes from the profiled durations in whole seconds (an integer
    division there) or is unlimited; B_flash = B_host * fault latency / (fault latency + flash latency), at
    most the SSD's rate; B_host is at most what flash leaves of the link. Where that leaves nothing, the
    host's term is infinite and the time is 0, or it is 0/0 and only flash counts. Where a fault has no
    latency, flash's term is infinite and the time is 0.

    ``ticks_per_second`` are those of profiled durations.
    """

    def __init__(self, system: SystemSpec, ticks_per_second: int) -> None:
        fault_us = system.page_fault.latency / 1e6
        ssd = published_drive(system)
        flash_us = ssd.latency / 1e6
        self._page_bytes = system.gpu.page_size
        self._flash_share = fault_us / (fault_us + flash_us) if fault_us + flash_us else 1.0
        self._link = system.pcie.inward / 1000
        self._read = ssd.read_bandwidth / 1000
        self._cycles_per_ms = system.gpu.clock / 1000
        self._clock, self._ticks = system.gpu.clock, ticks_per_second

    def cycles(
        self, duration: int, profile: FaultProfile | None, inputs: FaultCount, outputs: FaultCount
    ) -> int:
        """Return the cycles that faults add; durations in cycles, counts in pages."""
        if not inputs.faulting and not outputs.faulting:
            return 0
        sides = (inputs, outputs)
        sizes = [side.pages * self._page_bytes for side in sides]
        gaps = zip(sizes, self._profiled_differences_ms(duration, profile), strict=True)
        host = [size / gap if gap else _UNPROFILED_BYTES_PER_MS for size, gap in gaps]
        flash = [
            min(rate * self._flash_share, self._read) if side.at[-1] else 0.0
            for rate, side in zip(host, sides, strict=True)
        ]
        left = self._link - max(flash)
        flash_ms = host_ms = 0.0
        for side, size, flash_rate, host_rate in zip(sides, sizes, flash, host, strict=True):
            share = side.faulting / side.pages if side.pages else 0.0
            on_flash = side.at[-1] / side.faulting if side.faulting else 0.0
            if side.at[-1]:
                flash_ms += _ieee_divide(share * on_flash * size, flash_rate)
            host_ms += _ieee_divide(share * (1 - on_flash) * size, min(host_rate, left))
        slowest_ms = host_ms if flash_ms < host_ms else flash_ms
        return int(slowest_ms * self._cycles_per_ms) if math.isfinite(slowest_ms) else 0

    def _profiled_differences_ms(self, duration: int, profile: FaultProfile | None) -> Sequence[int]:
        if profile is None:
            return 0, 0
        some = profile.outputs_faulting // self._ticks
        return (profile.all_faulting // self._ticks - some) * 1000, (some - duration // self._clock) * 1000


def _ieee_divide(dividend: float, divisor: float) -> float:
    """Divide as floating-point hardware does: 0/0 is not a number, x/0 is infinite."""
    if divisor:
        return dividend / divisor
    return math.inf if dividend else math.nan
