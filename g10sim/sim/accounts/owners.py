"""Owners of each cycle of a kernel's time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from g10sim.hardware.memory import Residency
from g10sim.records import Location, StallReason


@cache
def fault_reason(place: str) -> StallReason:
    """Return the reason of a stall for pages demanded from a place of this name."""
    return StallReason.FIRST_TOUCH if place == Location.NONE.name else StallReason.fault(place.lower())


def reason_for_waiting(memory: Residency) -> StallReason:
    """Return what the waiting kernel waits for, the slowest kind first."""
    queues, needed = memory.queues, memory.needed
    if (place := memory.faults_from) is not None:
        return fault_reason(place.name)
    if not memory.leaving.keys().isdisjoint(needed):
        return StallReason.EVICTION
    # Neither faults nor leaves what is needed: all of it that moves is fetched from tiers, or mapped.
    mapped = sum([run.count for run in queues.prefetch[Location.NONE] if run.tensor in needed])
    is_all = mapped and mapped == sum(map(memory.moving.__getitem__, needed))
    return StallReason.MAPPING if is_all else StallReason.LATE_PREFETCH


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
