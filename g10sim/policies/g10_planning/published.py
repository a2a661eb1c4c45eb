"""The published simulator's planner, peculiarities included.

It follows the same steps as :mod:`.live` without its departures. Its peculiarities:

* Occupancy starts with the first tensor counted twice; tensors are given allocation and free moves in
  order of id from the second one, only until the estimate is within the target everywhere.
* The benefit of a period is bytes x time beyond full GPU memory between the kernels where half of the tensor
  has left and where half has to be back, both by the SSD's budget alone.
* Tensors go to the SSD if the period is long enough for it; to the host if no write budget is left during
  the transfer. A transfer within one kernel counts as finding none.
* Periods that cross the border of the iteration go by time alone, use no budget, always go to the SSD
  and are not prefetched eagerly. Their benefit after the border counts each kernel's time for the one after
  it, which makes it negative while kernel 0 is over the limit.
* Eager prefetches look at the estimate without the tensor itself.

Where the published planner's order depends on an unstable sort (equal benefits, equal prefetch kernels), the
period with more bytes x time, then the lower tensor id comes first. When no benefit is left while memory is
overfull, planning ends.
"""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np

from g10sim.analysis.timeline import Integers, kernel_durations
from g10sim.analysis.vitality import inactive_periods
from g10sim.errors import UnsupportedError
from g10sim.policies.g10_planning.draft import (
    Absence,
    Draft,
    PlannedAllocation,
    PlanningParameters,
    absences,
    allocation_kernel,
    rank,
    target_bytes,
)
from g10sim.policies.planning.machine import PlannedMachine, PlannedTier
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace

# The published planner leaves one and a half times the transfer time before the end of a wrapped period.
_WRAPPED_LEAD = 1.5


def plan_published(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Plan one iteration of a trace.

    Raises UnsupportedError for tiers that the published planner does not know.
    """
    if [tier.kind for tier in machine.tiers] not in (["memory", "ssd"], ["ssd"]):
        found = ", ".join(tier.name for tier in machine.tiers)
        raise UnsupportedError(
            f"compat.planner: found 'published' with tiers {found}; allowed: with host memory and an SSD"
        )
    planning = _Planning(trace, machine, parameters)
    planning.choose()
    if parameters.eager_prefetch:
        planning.prefetch_eagerly()
    return planning


class _Planning(Draft):
    def __init__(self, trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> None:
        durations, target = kernel_durations(trace, machine.clock_hz), target_bytes(machine, parameters)
        occupancy, allocations = _allocated(trace, machine, Timeline(durations), target)
        super().__init__(occupancy, durations, machine, target, machine.gpu_bytes)
        self.allocations = allocations
        self.frees = [(trace.deaths[allocation.tensor], allocation.tensor) for allocation in allocations]
        self._trace, self._kernels = trace, len(durations)
        self._safety_margin, self._ranking = parameters.safety_margin, parameters.ranking
        self._ssd = machine.ssd
        self._host = machine.memory if machine.memory.kind == "memory" else None

    def choose(self) -> None:
        """Evict until the estimate is within the target or no benefit is left while memory is overfull."""
        periods = absences(self._trace, self.machine)
        crossing = [number for number, p in enumerate(inactive_periods(self._trace)) if p.wraps]
        ties = [-period.cycles(self.timeline) * period.size_bytes for period in periods]
        heap = [(-float("inf"), ties[number], number) for number in range(len(periods))]
        heapq.heapify(heap)
        handled: set[int] = set()
        border_over = self._over_at_border()
        while heap and self.occupancy.peak_bytes > self.target_bytes:
            _, tie, number = heapq.heappop(heap)
            if number in handled:
                continue
            benefit = self._benefit(periods[number])
            entry = (-rank(benefit, periods[number].size_bytes, self._ssd, self._ranking), tie, number)
            if heap and entry > heap[0]:
                heapq.heappush(heap, entry)
                continue
            if benefit <= 0 and self.occupancy.peak_bytes > self.machine.gpu_bytes:
                break
            handled.add(number)
            self._handle(periods[number])
            if border_over and not self._over_at_border():
                border_over = False
                for other in crossing:
                    if other not in handled:
                        heapq.heappush(heap, (-float("inf"), ties[other], other))

    def _over_at_border(self) -> bool:
        return bool(self.occupancy.bytes[0] > self.machine.gpu_bytes)

    def _benefit(self, period: Absence) -> int:
        size = period.size_bytes
        if period.wraps:
            return size * self._wrapped_pressure(period, size / 2 / self._ssd.write_rate)
        first, last = self._window(period, self._ssd, size / 2)
        return size * self.occupancy.over_cycles(max(first, period.start), last)

    def _wrapped_pressure(self, period: Absence, half_cycles: float) -> int:
        over, timeline = self.occupancy.bytes > self.machine.gpu_bytes, self.timeline
        first = float(timeline.times[period.start]) + half_cycles
        last = float(timeline.times[period.end - self._kernels]) - half_cycles
        pressure = 0
        if first < timeline.period:
            pressure = self.occupancy.over_cycles(timeline.kernel_at(int(first)) + 1, self._kernels)
        if last >= 0:
            stop = timeline.kernel_at(int(last))
            before = timeline.durations[: max(0, stop - 1)]
            pressure += int(np.where(over[1 : len(before) + 1], before, 0).sum())
            if over[0]:
                pressure -= timeline.times[-2]
        return pressure

    def _handle(self, period: Absence) -> None:
        pressed = self.occupancy.most(period.start, period.end) > self.target_bytes
        if period.end - period.start <= 1 or not pressed:
            return
        tier = self._tier(period)
        if tier is None:
            return
        if period.wraps:
            out_by, prefetch = self._wrapped_window(period)
        else:
            out_by, prefetch = self._window(period, tier, period.size_bytes)
        if prefetch > out_by:
            self.evict(period, tier, out_by, prefetch, takes_budget=not period.wraps)

    def _tier(self, period: Absence) -> PlannedTier | None:
        size = period.size_bytes
        cycles = period.cycles(self.timeline)
        host = None if period.wraps else self._host
        if host is not None and not self.has_room(host, period):
            host = None
        to_ssd = self.machine.migration_cycles(size, self._ssd)
        if cycles > self._safety_margin * to_ssd:
            if host is None:
                return self._ssd
            until = self.timeline.kernel_at(self.timeline.times[period.start] + int(to_ssd))
            budget = self.out.free_bytes[self._ssd.name][period.start : until]
            return self._ssd if (budget > 0).any() else host
        if host is None:
            return None
        return host if cycles > self._safety_margin * self.machine.migration_cycles(size, host) else None

    def _window(self, period: Absence, tier: PlannedTier, size: float) -> tuple[int, int]:
        """Return when so many bytes of a tensor have left, and when as many have to start back."""
        out, into = self.out.sums[tier.name], self.into.sums[tier.name]
        out_by = int(out.searchsorted(out[period.start] + size)) - 1
        prefetch = int(into.searchsorted(into[period.end] - size, side="right")) - 1
        return out_by, prefetch

    def _wrapped_window(self, period: Absence) -> tuple[int, int]:
        cycles = self.machine.migration_cycles(period.size_bytes, self._ssd)
        timeline, length = self.timeline, self.timeline.period
        finish = float(timeline.times[period.start]) + cycles
        lead = float(timeline.times[period.end - self._kernels]) - _WRAPPED_LEAD * cycles
        out_by = timeline.kernel_at(int(finish % length)) + (self._kernels if finish >= length else 0)
        return out_by, timeline.kernel_at(int(lead % length)) + (self._kernels if lead >= 0 else 0)

    def prefetch_eagerly(self) -> None:
        """Move prefetches earlier, those with the earliest kernel first, while memory is under the target."""
        order = sorted(range(len(self.evictions)), key=lambda number: self.evictions[number].prefetch or 0)
        for number in order:
            eviction = self.evictions[number]
            if eviction.wraps or eviction.prefetch is None:
                continue
            prefetch = eviction.prefetch
            while prefetch - 1 > eviction.out_by and self.occupancy.bytes[prefetch - 1] < self.target_bytes:
                prefetch -= 1
            self.occupancy.add(prefetch, eviction.prefetch, eviction.size_bytes)
            self.evictions[number] = replace(eviction, prefetch=prefetch)


def _allocated(
    trace: Trace, machine: PlannedMachine, timeline: Timeline, target: float
) -> tuple[Integers, list[PlannedAllocation]]:
    """Give tensors allocation and free moves until the estimate, the first result, is within the target."""
    sizes = machine.sizes(trace)
    occupancy: Integers = np.full(len(trace.kernels), sum(sizes) + sum(sizes[:1]), dtype=np.int64)
    allocations = []
    for tensor in trace.tensors[1:]:
        if occupancy.max(initial=0) < target:
            break
        if tensor.persistent:
            continue
        birth = trace.births[tensor.id]
        kernel = allocation_kernel(tensor, birth, timeline, machine)
        allocations.append(PlannedAllocation(tensor.id, kernel, birth))
        occupancy[:kernel] -= sizes[tensor.id]
        occupancy[trace.deaths[tensor.id] :] -= sizes[tensor.id]
    return occupancy, allocations
