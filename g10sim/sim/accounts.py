"""Who owns each cycle of a kernel's time."""

from __future__ import annotations

from collections.abc import Iterable

from g10sim.hardware.memory import GpuMemory
from g10sim.records import StallReason


def reason_for_waiting(memory: GpuMemory) -> StallReason:
    """Return what the waiting kernel waits for, the slowest kind first."""
    queues = memory.queues
    if queues.fault_flash:
        return StallReason.FAULT_FLASH
    if queues.fault_host:
        return StallReason.FAULT_HOST
    if queues.fault_absent:
        return StallReason.FIRST_TOUCH
    leaving = (*queues.evict_flash, *queues.evict_host)
    if any(run.tensor in memory.needed for run in leaving):
        return StallReason.EVICTION
    return StallReason.LATE_PREFETCH


class WaitLog:
    """Waiting of one kernel as (reason, cycles), in order of time."""

    def __init__(self, spans: Iterable[tuple[StallReason, int]] = ()) -> None:
        self._spans = list(spans)

    def add(self, reason: StallReason, cycles: int) -> None:
        """Append waiting time."""
        if cycles:
            self._spans.append((reason, cycles))

    def charge(self, stall_cycles: int, rest: StallReason) -> tuple[tuple[StallReason, int], ...]:
        """Give ``stall_cycles`` owners: the waiting from its start, then ``rest``.

        Waiting beyond the stall overlapped with computing and has no owner here. The result sums to
        ``stall_cycles`` exactly, each reason once, in order of reasons.
        """
        owned: dict[StallReason, int] = {}
        left = stall_cycles
        for reason, cycles in (*self._spans, (rest, stall_cycles)):
            share = min(cycles, left)
            if share:
                owned[reason] = owned.get(reason, 0) + share
                left -= share
        return tuple(sorted(owned.items()))
