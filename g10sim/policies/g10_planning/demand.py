"""Evictions without prefetch, for designs that cannot run unless the highest pressure is relieved."""

from __future__ import annotations

from dataclasses import replace

from g10sim.analysis.vitality import inactive_periods
from g10sim.policies.g10_planning.draft import Draft, starts_of
from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.policies.g10_planning.occupancy import PlannedEviction, kernel_slices
from g10sim.trace.model import Trace

# Published simulator: until the estimate at that kernel is below 90% of the target.
_SHARE_OF_TARGET = 0.9


def demand_evictions(trace: Trace, draft: Draft, machine: PlannedMachine) -> Draft:
    """Add evictions to the SSD, fetched back on demand, around the kernel with the highest first estimate.

    Periods that cover the kernel and have no eviction yet are taken in order of bytes x time, until the
    estimate at the kernel is below 90% of the target (last pass of the published planner for the
    direct-storage designs).
    """
    kernels, pressed = len(trace.kernels), draft.pressed_kernel
    starts = starts_of(draft.durations)
    evicted = {(eviction.tensor, eviction.start) for eviction in draft.evictions}
    covering = []
    for period in inactive_periods(trace):
        stop = period.end + (kernels if period.start >= period.end else 0)
        parts = kernel_slices(period.start, stop, kernels)
        covers = any(part.start <= pressed < part.stop for part in parts)
        if covers and (period.tensor, period.start) not in evicted:
            size = machine.pages_bytes(trace.tensors[period.tensor].size_bytes)
            covering.append((-size * period.cycles(starts), period.tensor, size, period.start, stop))
    occupancy = draft.occupancy_bytes.copy()
    added = []
    for _, tensor, size, start, stop in sorted(covering):
        if not kernels or occupancy[pressed] < _SHARE_OF_TARGET * draft.target_bytes:
            break
        for part in kernel_slices(start, stop, kernels):
            occupancy[part] -= size
        added.append(
            PlannedEviction(
                tensor=tensor,
                size_bytes=size,
                start=start,
                end=stop,
                host=False,
                out_by=start,
                prefetch=None,
                wraps=stop > kernels,
            )
        )
    return replace(draft, evictions=(*draft.evictions, *added), occupancy_bytes=occupancy)
