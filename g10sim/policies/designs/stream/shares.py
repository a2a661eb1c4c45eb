"""Shares of tensors that leave after each use: some pages of every one, or all of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.footprint import working_set_bytes
from g10sim.analysis.timeline import Integers
from g10sim.analysis.vitality import InactivePeriod, inactive_periods
from g10sim.policies.interface.machine import PlannedMachine
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.trace.model import Trace

_LEAST_ABSENCE = 0.05
"""Share of an iteration for which a tensor that leaves is not used, at least."""


def page_shares(
    trace: Trace, machine: PlannedMachine, demand: Demand, window_bytes: int
) -> dict[InactivePeriod, int]:
    """Return the bytes of tensors, in whole pages, that are elsewhere in their inactive periods.

    Every tensor that is idle for long leaves with equally many bytes, small ones with all: enough that no
    kernel lacks room, and ``window_bytes`` are free for what comes in ahead, as far as that can be. Nothing
    leaves for a period in which no kernel lacks room.
    """
    lack = demand.live_bytes - machine.gpu_bytes // machine.page_bytes * machine.page_bytes
    lack = np.where(lack > 0, lack + window_bytes, 0)
    starts = np.concatenate([[0], demand.cycles.cumsum()])
    least, lacking = _LEAST_ABSENCE * starts[-1], Occupancy(lack)
    periods = [
        period
        for period in inactive_periods(trace)
        if period.cycles(starts) >= least and lacking.most(period.start, _end(period, trace)) > 0
    ]
    sizes = machine.sizes(trace)
    absent = _Absent(trace, periods, np.array([sizes[period.tensor] for period in periods], dtype=np.int64))
    page = machine.page_bytes
    fewest, most = 0, max((sizes[period.tensor] for period in periods), default=0) // page
    while fewest < most:
        middle = (fewest + most) // 2
        if (absent.bytes(middle * page) >= lack).all():
            most = middle
        else:
            fewest = middle + 1
    return {period: min(sizes[period.tensor], most * page) for period in periods if most}


class _Absent:
    """Bytes that are elsewhere during each kernel if tensors leave with at most this number of bytes each."""

    def __init__(self, trace: Trace, periods: Sequence[InactivePeriod], sizes: Integers) -> None:
        self._sizes, self._kernels = sizes, len(trace.kernels)
        self._starts = np.array([period.start for period in periods], dtype=np.int64)
        self._ends = np.array([_end(period, trace) for period in periods], dtype=np.int64)

    def bytes(self, most_bytes: int) -> Integers:
        """Return them by kernel."""
        changes = np.zeros(2 * self._kernels + 1, dtype=np.int64)
        moved = np.minimum(self._sizes, most_bytes)
        np.add.at(changes, self._starts, moved)
        np.subtract.at(changes, self._ends, moved)
        sums = changes.cumsum()
        both: Integers = sums[: self._kernels] + sums[self._kernels : -1]
        return both


def _end(period: InactivePeriod, trace: Trace) -> int:
    return period.end + (len(trace.kernels) if period.start >= period.end else 0)


def whole_tensors(
    trace: Trace, machine: PlannedMachine, demand: Demand, keep_bytes: int | None
) -> dict[InactivePeriod, int]:
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
    return {period: sizes[period.tensor] for period in inactive_periods(trace) if period.tensor in leaving}


def _kept(trace: Trace, lasting: Sequence[int], sizes: Sequence[int], keep_bytes: int) -> set[int]:
    """Return what stays: as many of those that kernels write as fit, others spread over the iteration."""
    written = {tensor for kernel in trace.kernels for tensor in kernel.outputs}
    order = sorted(lasting, key=lambda tensor: (trace.uses[tensor][0], tensor))
    stays, left = set[int](), keep_bytes
    for tensor in order:
        if tensor in written and sizes[tensor] <= left:
            left -= sizes[tensor]
            stays.add(tensor)
    others = [tensor for tensor in order if tensor not in written]
    total, passed, kept = sum(sizes[tensor] for tensor in others), 0, 0
    for tensor in others:
        passed += sizes[tensor]
        if kept + sizes[tensor] <= left * passed // total:
            kept += sizes[tensor]
            stays.add(tensor)
    return stays


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
