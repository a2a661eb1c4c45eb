"""Shares of tensors that leave after each use: some pages of every one, or all of some."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.footprint import working_set_bytes
from g10sim.analysis.timeline import prefix_sums
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.planning.fitting import fitting
from g10sim.policies.planning.occupancy import bytes_of_spans
from g10sim.policies.planning.timeline import Absence, Timeline, absences, spans_of
from g10sim.trace.model import Trace

_LEAST_ABSENCE = 0.05
"""Share of an iteration for which a tensor that leaves is not used, at least."""


def page_shares(
    trace: Trace, machine: PlannedMachine, demand: Demand, window_bytes: int
) -> dict[Absence, int]:
    """Return the bytes of tensors, in whole pages, that are elsewhere in their inactive periods.

    Every tensor that is idle for long leaves with equally many bytes, small ones with all: enough that no
    kernel lacks room, and ``window_bytes`` are free for what comes in ahead, as far as that can be. Nothing
    leaves for a period in which no kernel lacks room.
    """
    lack = demand.live_bytes - machine.gpu_bytes // machine.page_bytes * machine.page_bytes
    lack = np.where(lack > 0, lack + window_bytes, 0)
    timeline, page = Timeline(demand.cycles), machine.page_bytes
    found = absences(trace, machine.sizes(trace))
    starts, ends, sizes = spans_of(found)
    lengths = timeline.lap_times(ends) - timeline.lap_times(starts)
    lacking = prefix_sums(np.tile(lack > 0, 2).astype(np.int64))
    leaves = (lengths >= _LEAST_ABSENCE * timeline.period) & (lacking[ends] > lacking[starts])
    sizes = sizes * leaves

    def is_enough(pages: int) -> bool:
        shares = np.minimum(sizes, pages * page)
        return bool((bytes_of_spans(starts, ends, shares, timeline.num_kernels) >= lack).all())

    most = page * bisect_left(range(int(sizes.max(initial=0)) // page), True, key=is_enough)
    shares = np.minimum(sizes, most).tolist()
    return {absence: share for absence, share in zip(found, shares, strict=True) if share}


def whole_tensors(
    trace: Trace, machine: PlannedMachine, demand: Demand, keep_bytes: int | None
) -> dict[Absence, int]:
    """Return the inactive periods of the persistent tensors that leave after every use, with their sizes.

    ``keep_bytes`` of persistent tensors stay, first those that kernels write. None: what fits next to all
    others and two working sets, as what the next kernel needs comes in while one computes.
    """
    sizes = machine.sizes(trace)
    lasting = [tensor.id for tensor in trace.tensors if tensor.persistent and trace.uses[tensor.id]]
    if keep_bytes is None and demand.peak_bytes <= machine.gpu_bytes:
        return {}
    if keep_bytes is None:
        others = demand.peak_bytes - demand.lasting_bytes
        keep_bytes = machine.gpu_bytes - others - 2 * int(working_set_bytes(trace).max(initial=0))
    leaving = set(lasting) - _kept(trace, lasting, sizes, keep_bytes)
    return {absence: absence.size_bytes for absence in absences(trace, sizes) if absence.tensor in leaving}


def _kept(trace: Trace, lasting: Sequence[int], sizes: Sequence[int], keep_bytes: int) -> set[int]:
    """Return what stays: as many of those that kernels write as fit, others spread over the iteration."""
    order = sorted(lasting, key=lambda tensor: (trace.uses[tensor][0], tensor))
    stays = fitting((tensor for tensor in order if tensor in trace.written), sizes, keep_bytes)
    left = keep_bytes - sum(stays.values())
    others = [tensor for tensor in order if tensor not in trace.written]
    total, passed, kept = sum(sizes[tensor] for tensor in others), 0, 0
    for tensor in others:
        passed += sizes[tensor]
        if kept + sizes[tensor] <= left * passed // total:
            kept += sizes[tensor]
            stays[tensor] = sizes[tensor]
    return set(stays)


def located(trace: Trace, device_map: Mapping[str, str]) -> dict[int, str]:
    """Return the tiers of persistent tensors that a device map does not leave on the GPU.

    The longest start of a name counts, whole parts between dots only; an empty one is a start of all.
    """
    found = dict[int, str]()
    for tensor in trace.tensors:
        starts = [one for one in device_map if not one or f"{tensor.name}.".startswith(f"{one}.")]
        place = device_map[max(starts, key=len)] if starts and tensor.persistent else "gpu"
        if place != "gpu" and trace.uses[tensor.id]:
            found[tensor.id] = place
    return found
