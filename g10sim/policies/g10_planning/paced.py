"""Planning in the time that the GPU will really take.

The idea is the G10 paper's (section 4.3): again and again evict the tensor whose inactive period relieves
memory pressure most, to the SSD or to the host, as early as the links allow, and prefetch it as late
as they allow. Where it departs from the published planner:

* *Pace.* Where memory pressure cannot be relieved in the time that kernels take, the GPU will wait, and
  while it waits the links move more. The planner adds these stalls to the kernel times and plans again,
  until pressure is relieved or no longer shrinks. Plans for the unstalled time leave the links idle later.
  Where the links would need longer than the kernels, it does not: evicting more would only move more.
* *Destination.* The relief of a period is what its own destination achieves with the budget that is left;
  the one that relieves more is taken, the SSD at a tie. (Published: relief is judged by the SSD's
  budget alone, so that planning ends when the SSD is busy, though the host is not.)
* *The border of the iteration.* Periods of persistent tensors that cross it are treated like all others:
  budget, host, prefetching.
* *Space for newborn tensors* is counted from birth; asking for it ahead happens where memory is free.
* *Eager prefetches* count the prefetched tensor itself.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.analysis.vitality import inactive_periods
from g10sim.analysis.working_set import working_set_bytes
from g10sim.policies.g10_planning.channels import Channels
from g10sim.policies.g10_planning.draft import (
    Draft,
    PlannedAllocation,
    allocation_kernel,
    late_uses,
    starts_of,
)
from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.policies.g10_planning.occupancy import Occupancy, PlannedEviction, kernel_slices
from g10sim.policies.g10_planning.parameters import PlanningParameters
from g10sim.records import Location
from g10sim.trace.model import Trace

# Pressure that stays after planning counts as relieved below this share of GPU memory.
_RELIEVED = 0.002
# A round must lower the highest pressure by 3%, or more time would not help either.
_PROGRESS = 0.97
# Share of the pressure beyond host memory that is reckoned to cross the SSD's own channel. The rest finds
# host memory free at another time. Between 0.15 and 0.3 the plans are equally good; 1 overestimates stalls.
_SSD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class _Candidate:
    tensor: int
    size_bytes: int
    start: int
    end: int
    wraps: bool


@dataclass(frozen=True, slots=True)
class _Window:
    relief_cycles: int
    place: Location
    out_by: int
    prefetch: int


def plan_paced(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Plan one iteration of a trace."""
    clock = machine.clock_hz
    durations = np.array([trace.duration_cycles(kernel, clock) for kernel in trace.kernels], dtype=np.int64)
    base = _unmoved_occupancy(trace, machine)
    candidates = _candidates(trace, machine)
    capacity = machine.gpu_bytes * parameters.memory_factor
    floor = np.maximum(working_set_bytes(trace), capacity)
    kernel_cycles = int(durations.sum())
    best: tuple[float, _Selection] | None = None
    for _ in range(parameters.pacing_rounds):
        selection = _Selection(base, durations, machine, parameters)
        selection.choose(candidates)
        pressure = np.maximum(selection.occupancy.bytes - floor, 0)
        highest = float(pressure.max(initial=0))
        if best is not None and (highest > best[0] * _PROGRESS or selection.link_cycles > kernel_cycles):
            break
        best = (highest, selection)
        if highest <= _RELIEVED * capacity:
            break
        durations = durations + _expected_stalls(pressure, selection.host_free_bytes, machine)
    if best is None:
        raise ValueError(f"pacing_rounds: found {parameters.pacing_rounds}; allowed: at least 1")
    pressed = int(base.argmax()) if len(base) else 0
    return _finished(trace, best[1], machine, parameters, pressed)


def _unmoved_occupancy(trace: Trace, machine: PlannedMachine) -> Integers:
    changes = np.zeros(len(trace.kernels) + 1, dtype=np.int64)
    for tensor in trace.tensors:
        if not trace.uses[tensor.id]:
            continue
        size = machine.pages_bytes(tensor.size_bytes)
        birth = 0 if tensor.persistent else trace.births[tensor.id]
        changes[birth] += size
        changes[trace.deaths[tensor.id]] -= size
        for kernel in late_uses(trace, tensor.id):
            changes[kernel] += size
            changes[kernel + 1] -= size
    return np.cumsum(changes[:-1])


def _candidates(trace: Trace, machine: PlannedMachine) -> tuple[_Candidate, ...]:
    kernels = len(trace.kernels)
    found = []
    for period in inactive_periods(trace):
        crosses = period.start >= period.end
        end = period.end + (kernels if crosses else 0)
        if end - period.start > 1:
            size = machine.pages_bytes(trace.tensors[period.tensor].size_bytes)
            found.append(_Candidate(period.tensor, size, period.start, end, crosses))
    return tuple(found)


class _Selection:
    """Greedy choice of evictions for given kernel times.

    Every choice lowers budgets and occupancy, so a period's benefit only shrinks: a heap of outdated
    benefits, evaluated again when they come to the top, yields the largest.
    """

    def __init__(
        self, base: Integers, durations: Integers, machine: PlannedMachine, parameters: PlanningParameters
    ) -> None:
        self.durations = durations
        self.starts = starts_of(durations)
        self.target_bytes = machine.gpu_bytes * parameters.memory_factor * parameters.memory_target
        self.occupancy = Occupancy(base.copy(), durations, self.target_bytes)
        self.host_free_bytes = np.full(len(durations), machine.host_bytes, dtype=np.int64)
        self.evictions: list[PlannedEviction] = []
        self._channels = Channels(durations, machine)
        self._machine = machine
        self._safety_margin = parameters.safety_margin

    @property
    def link_cycles(self) -> float:
        """Cycles that the busiest channel needs for all evictions, or for all returns."""
        machine = self._machine
        flash = sum(eviction.size_bytes for eviction in self.evictions if not eviction.host)
        both = sum(eviction.size_bytes for eviction in self.evictions)
        return max(both / machine.link_rate, flash / min(machine.write_rate, machine.read_rate))

    def choose(self, candidates: tuple[_Candidate, ...]) -> None:
        """Evict until the estimate is within the target or nothing relieves pressure any more."""
        heap = [
            (-float("inf"), -self._cycles(candidate) * candidate.size_bytes, number)
            for number, candidate in enumerate(candidates)
        ]
        heapq.heapify(heap)
        places: list[tuple[Location, ...] | None] = [None] * len(candidates)
        while heap and self.occupancy.peak_bytes > self.target_bytes:
            _, tie, number = heapq.heappop(heap)
            candidate = candidates[number]
            if places[number] is None:
                places[number] = self._safe_places(candidate)
            window = self._best_window(candidate, places[number] or ())
            if window is None:
                continue
            entry = (-float(window.relief_cycles) * candidate.size_bytes, tie, number)
            if heap and entry > heap[0]:
                heapq.heappush(heap, entry)
            else:
                self._take(candidate, window)

    def _cycles(self, candidate: _Candidate) -> int:
        kernels = len(self.durations)
        length = int(self.starts[min(candidate.end, kernels)] - self.starts[candidate.start])
        return length + int(self.starts[max(0, candidate.end - kernels)])

    def _safe_places(self, candidate: _Candidate) -> tuple[Location, ...]:
        """Where the period is long enough to go and return from; the SSD first."""
        cycles, size = self._cycles(candidate), candidate.size_bytes
        places = (Location.FLASH, Location.HOST) if size <= self._machine.host_bytes else (Location.FLASH,)
        margin = self._safety_margin
        return tuple(
            place for place in places if cycles > margin * self._machine.transfer_cycles(size, place)
        )

    def _best_window(self, candidate: _Candidate, places: tuple[Location, ...]) -> _Window | None:
        best, relief = None, 0
        for place in places:
            window = self._window(candidate, place)
            if window.relief_cycles > relief and self._has_room(candidate, place):
                best, relief = window, window.relief_cycles
        return best

    def _window(self, candidate: _Candidate, place: Location) -> _Window:
        size = candidate.size_bytes
        out_by = self._channels.out.finish(candidate.start, size, place)
        prefetch = self._channels.into.latest_start(candidate.end, size, place)
        relief = self.occupancy.over_cycles(out_by + 1, prefetch) if prefetch > out_by + 1 else 0
        return _Window(relief, place, out_by, prefetch)

    def _has_room(self, candidate: _Candidate, place: Location) -> bool:
        if place is Location.FLASH:
            return True
        free = self.host_free_bytes
        parts = kernel_slices(candidate.start, candidate.end, len(free))
        return all(int(free[part].min()) >= candidate.size_bytes for part in parts)

    def _take(self, candidate: _Candidate, window: _Window) -> None:
        size, host = candidate.size_bytes, window.place is Location.HOST
        self._channels.out.debit(candidate.start, size, window.place)
        self._channels.into.debit(window.prefetch, size, window.place)
        self.occupancy.change(window.out_by + 1, window.prefetch, -size)
        if host:
            for part in kernel_slices(candidate.start, candidate.end, len(self.host_free_bytes)):
                self.host_free_bytes[part] -= size
        self.evictions.append(
            PlannedEviction(
                tensor=candidate.tensor,
                size_bytes=size,
                start=candidate.start,
                end=candidate.end,
                host=host,
                out_by=window.out_by,
                prefetch=window.prefetch,
                wraps=candidate.wraps,
            )
        )


def _expected_stalls(pressure: Integers, host_free_bytes: Integers, machine: PlannedMachine) -> Integers:
    """Cycles that the GPU will wait at each kernel for pressure that planning could not relieve.

    What rises above all earlier pressure has to leave before the kernel can run; what exceeds all later
    pressure can come back only after it.
    """
    to_host = np.minimum(pressure, np.maximum(host_free_bytes, 0))
    beyond = pressure - to_host
    per_byte = (1 - _SSD_SHARE) / machine.link_rate
    leaving = to_host / machine.link_rate + beyond * (per_byte + _SSD_SHARE / machine.write_rate)
    returning = to_host / machine.link_rate + beyond * (per_byte + _SSD_SHARE / machine.read_rate)
    before = np.diff(np.maximum.accumulate(leaving), prepend=0.0)
    after = np.diff(np.maximum.accumulate(returning[::-1]), prepend=0.0)[::-1]
    stalls: Integers = np.ceil(before + after).astype(np.int64)
    return stalls


def _finished(
    trace: Trace,
    selection: _Selection,
    machine: PlannedMachine,
    parameters: PlanningParameters,
    pressed_kernel: int,
) -> Draft:
    occupancy, target = selection.occupancy, selection.target_bytes
    allocations, frees = [], []
    for tensor in trace.tensors:
        if tensor.persistent or not trace.uses[tensor.id]:
            continue
        birth, size = trace.births[tensor.id], machine.pages_bytes(tensor.size_bytes)
        earliest = allocation_kernel(tensor, birth, selection.starts, machine)
        kernel = _moved_earlier(occupancy, birth, earliest, size, target)
        allocations.append(PlannedAllocation(tensor.id, size, kernel, birth))
        frees.append((trace.deaths[tensor.id], tensor.id))
        frees += [(late + 1, tensor.id) for late in late_uses(trace, tensor.id)]
    evictions = selection.evictions
    if parameters.eager_prefetch:
        evictions = _eager(evictions, occupancy, target)
    return Draft(
        evictions=tuple(evictions),
        allocations=tuple(allocations),
        frees=tuple(frees),
        occupancy_bytes=occupancy.bytes,
        durations=selection.durations,
        target_bytes=target,
        pressed_kernel=pressed_kernel,
    )


def _eager(
    evictions: list[PlannedEviction], occupancy: Occupancy, target_bytes: float
) -> list[PlannedEviction]:
    """Move prefetches into memory that is free earlier, the first ones first (G10 paper, section 4.4)."""
    moved = []
    for eviction in sorted(evictions, key=lambda entry: (entry.prefetch or 0, entry.end, entry.tensor)):
        prefetch = eviction.prefetch
        if prefetch is not None:
            prefetch = _moved_earlier(
                occupancy, prefetch, eviction.out_by + 1, eviction.size_bytes, target_bytes
            )
        moved.append(replace(eviction, prefetch=prefetch))
    return moved


def _moved_earlier(occupancy: Occupancy, kernel: int, earliest: int, size: int, target_bytes: float) -> int:
    """First of the kernels up to ``kernel`` from which on memory is free for a tensor; takes it up."""
    kernels, moved = len(occupancy.bytes), kernel
    room = target_bytes - size
    while moved > earliest and occupancy.bytes[(moved - 1) % kernels] <= room:
        moved -= 1
    if moved < kernel:
        occupancy.change(moved, kernel, size)
    return moved
