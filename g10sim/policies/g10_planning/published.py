"""The published simulator's planner, peculiarities included.

It follows the same steps as :mod:`.paced` without its departures. Its peculiarities:

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

from g10sim.analysis.timeline import Integers, kernel_at
from g10sim.analysis.vitality import InactivePeriod, inactive_periods
from g10sim.policies.g10_planning.channels import Channels
from g10sim.policies.g10_planning.draft import Draft, PlannedAllocation, allocation_kernel, starts_of
from g10sim.policies.g10_planning.machine import PlannedMachine
from g10sim.policies.g10_planning.occupancy import Occupancy, PlannedEviction, kernel_slices
from g10sim.policies.g10_planning.parameters import PlanningParameters
from g10sim.records import Location
from g10sim.trace.model import Trace

# The published planner leaves one and a half times the transfer time before the end of a wrapped period.
_WRAPPED_LEAD = 1.5


def plan_published(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Plan one iteration of a trace."""
    planning = _Planning(trace, machine, parameters)
    planning.allocate()
    planning.choose()
    if parameters.eager_prefetch:
        planning.prefetch_eagerly()
    return Draft(
        evictions=tuple(planning.evictions),
        allocations=tuple(planning.allocations),
        frees=tuple(planning.frees),
        occupancy_bytes=planning.occupancy.bytes,
        durations=planning.durations,
        target_bytes=planning.target_bytes,
        pressed_kernel=planning.pressed_kernel,
    )


class _Planning:
    def __init__(self, trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> None:
        clock = machine.clock_hz
        durations = [trace.duration_cycles(kernel, clock) for kernel in trace.kernels]
        self.durations = np.array(durations, dtype=np.int64)
        self.starts = starts_of(self.durations)
        self.capacity_bytes = machine.gpu_bytes
        self.target_bytes = self.capacity_bytes * parameters.memory_factor * parameters.memory_target
        self.evictions: list[PlannedEviction] = []
        self.allocations: list[PlannedAllocation] = []
        self.frees: list[tuple[int, int]] = []
        self._trace, self._machine = trace, machine
        self._safety_margin = parameters.safety_margin
        self._sizes = [machine.pages_bytes(tensor.size_bytes) for tensor in trace.tensors]
        self._kernels = len(durations)
        self._channels = Channels(self.durations, machine)
        self._host_used_bytes = np.zeros(self._kernels, dtype=np.int64)

    def allocate(self) -> None:
        """Give tensors allocation and free moves until the estimate is within the target."""
        first = self._sizes[0] if self._sizes else 0
        occupancy: Integers = np.full(self._kernels, sum(self._sizes) + first, dtype=np.int64)
        for tensor in self._trace.tensors[1:]:
            if occupancy.max(initial=0) < self.target_bytes:
                break
            if tensor.persistent:
                continue
            birth, death = self._trace.births[tensor.id], self._trace.deaths[tensor.id]
            size = self._sizes[tensor.id]
            kernel = allocation_kernel(tensor, birth, self.starts, self._machine)
            self.allocations.append(PlannedAllocation(tensor.id, size, kernel, birth))
            self.frees.append((death, tensor.id))
            occupancy[:kernel] -= size
            occupancy[death:] -= size
        self.pressed_kernel = int(occupancy.argmax()) if self._kernels else 0
        self.occupancy = Occupancy(occupancy, self.durations, self.capacity_bytes)

    def choose(self) -> None:
        """Evict until the estimate is within the target or no benefit is left while memory is overfull."""
        periods = inactive_periods(self._trace)
        ties = [-period.cycles(self.starts) * self._sizes[period.tensor] for period in periods]
        heap = [(-float("inf"), ties[number], number) for number in range(len(periods))]
        heapq.heapify(heap)
        handled: set[int] = set()
        border_over = self._over_at_border()
        while heap and self.occupancy.peak_bytes > self.target_bytes:
            _, tie, number = heapq.heappop(heap)
            if number in handled:
                continue
            benefit = self._benefit(periods[number])
            entry = (-float(benefit), tie, number)
            if heap and entry > heap[0]:
                heapq.heappush(heap, entry)
                continue
            if benefit <= 0 and self.occupancy.peak_bytes > self.capacity_bytes:
                break
            handled.add(number)
            self._handle(periods[number])
            if border_over and not self._over_at_border():
                border_over = False
                for other, period in enumerate(periods):
                    if period.wraps and other not in handled:
                        heapq.heappush(heap, (-float("inf"), ties[other], other))

    def _over_at_border(self) -> bool:
        return bool(self.occupancy.bytes[0] > self.capacity_bytes)

    def _benefit(self, period: InactivePeriod) -> int:
        size = self._sizes[period.tensor]
        if period.start >= period.end:
            return size * self._wrapped_pressure(period, size / 2 / self._machine.write_rate)
        written = self._channels.out.sums(Location.FLASH)
        read = self._channels.into.sums(Location.FLASH)
        first = int(written.searchsorted(written[period.start] + size / 2)) - 1
        last = int(read.searchsorted(read[period.end] - size / 2, side="right")) - 1
        return size * self.occupancy.over_cycles(max(first, period.start), last)

    def _wrapped_pressure(self, period: InactivePeriod, half_cycles: float) -> int:
        over, starts = self.occupancy.bytes > self.capacity_bytes, self.starts
        first, last = float(starts[period.start]) + half_cycles, float(starts[period.end]) - half_cycles
        pressure = 0
        if first < starts[-1]:
            pressure = self.occupancy.over_cycles(kernel_at(starts, int(first)) + 1, self._kernels)
        if last >= 0:
            stop = kernel_at(starts, int(last))
            pressure += int(np.where(over[1:stop], self.durations[: stop - 1], 0).sum()) if stop > 1 else 0
            if over[0]:
                pressure -= int(starts[-2])
        return pressure

    def _handle(self, period: InactivePeriod) -> None:
        wrapped = period.start >= period.end
        stop = period.end + (self._kernels if wrapped else 0)
        parts = kernel_slices(period.start, stop, self._kernels)
        pressed = any((self.occupancy.bytes[part] > self.target_bytes).any() for part in parts)
        if stop - period.start <= 1 or not pressed:
            return
        place = self._place(period, wrapped)
        if place is None:
            return
        out_by, prefetch = self._wrapped_window(period) if wrapped else self._window(period, place)
        if prefetch <= out_by:
            return
        size = self._sizes[period.tensor]
        if not wrapped:
            self._channels.out.debit(period.start, size, place)
            self._channels.into.debit(prefetch, size, place)
            if place is Location.HOST:
                self._host_used_bytes[period.start : period.end] += size
        self.occupancy.change(out_by + 1, prefetch, -size)
        self.evictions.append(
            PlannedEviction(
                tensor=period.tensor,
                size_bytes=size,
                start=period.start,
                end=stop,
                host=place is Location.HOST,
                out_by=out_by,
                prefetch=prefetch,
                wraps=wrapped,
            )
        )

    def _place(self, period: InactivePeriod, wrapped: bool) -> Location | None:
        size = self._sizes[period.tensor]
        cycles = period.cycles(self.starts)
        to_ssd = self._machine.transfer_cycles(size, Location.FLASH)
        if cycles > self._safety_margin * to_ssd:
            if wrapped or not self._has_host_room(period, size):
                return Location.FLASH
            until = kernel_at(self.starts, int(self.starts[period.start]) + int(to_ssd))
            budget = self._channels.out.free_bytes(Location.FLASH)[period.start : until]
            return Location.FLASH if (budget > 0).any() else Location.HOST
        to_host = self._machine.transfer_cycles(size, Location.HOST)
        if wrapped or cycles <= self._safety_margin * to_host or not self._has_host_room(period, size):
            return None
        return Location.HOST

    def _has_host_room(self, period: InactivePeriod, size: int) -> bool:
        used = int(self._host_used_bytes[period.start : period.end].max(initial=0))
        return used + size <= self._machine.host_bytes

    def _window(self, period: InactivePeriod, place: Location) -> tuple[int, int]:
        size = self._sizes[period.tensor]
        out, into = self._channels.out.sums(place), self._channels.into.sums(place)
        out_by = int(out.searchsorted(out[period.start] + size)) - 1
        prefetch = int(into.searchsorted(into[period.end] - size, side="right")) - 1
        return out_by, prefetch

    def _wrapped_window(self, period: InactivePeriod) -> tuple[int, int]:
        cycles = self._machine.transfer_cycles(self._sizes[period.tensor], Location.FLASH)
        length = int(self.starts[-1])
        finish = float(self.starts[period.start]) + cycles
        lead = float(self.starts[period.end]) - _WRAPPED_LEAD * cycles
        out_by = kernel_at(self.starts, int(finish % length)) + (self._kernels if finish >= length else 0)
        return out_by, kernel_at(self.starts, int(lead % length)) + (self._kernels if lead >= 0 else 0)

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
            self.occupancy.change(prefetch, eviction.prefetch, eviction.size_bytes)
            self.evictions[number] = replace(eviction, prefetch=prefetch)
