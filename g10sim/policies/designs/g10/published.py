"""The published simulator's planner, peculiarities included.

It follows the same steps as :mod:`.live` without its departures. Its peculiarities:

* Occupancy starts with the first tensor counted twice; tensors are given allocation and free moves in
  order of id from the second one, only until the estimate is within the target everywhere.
* The benefit of a period is bytes x time beyond full GPU memory between the kernels where half of the tensor
  has left and where half has to be back, both by the SSD's budget alone (:mod:`.published_links`).
* Tensors go to the SSD if the period is long enough for it; to the host if no write budget is left during
  the transfer and the host has room during all kernels. A transfer within one kernel counts as finding none.
* A period that is too short for the SSD books host memory even where the links leave no time to use it. One
  that is too short for the host, too, stays in the list.
* Periods that cross the border of the iteration go by time alone, use no budget, always go to the SSD if long
  enough, and are not prefetched eagerly. Their benefit counts all kernels between two uses, and after the
  border each kernel's time for the one after it, which makes it negative while kernel 0 is over the limit.
* Eager prefetches look at the estimate without the tensor itself.

Planning ends with the target, when each period has had its turn, or when the best one has had it already. The
order of equals (equal benefit; equal bytes x time if there is a benefit) is that of an unstable sort that
starts from the order of the round before; so is the order of the moves of one kernel
(:mod:`g10sim.policies.designs.g10.sort_order`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from g10sim.analysis.timeline import Flags, Floats, Integers, kernel_durations, prefix_sums
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.g10.draft import Draft, PlanningParameters, allocation_kernel
from g10sim.policies.designs.g10.published_links import Direction
from g10sim.policies.designs.g10.sort_order import introsorted
from g10sim.policies.interface import Evict, Fetch, Free, MigrationPlan, Planned, PlannedMachine, PlannedTier
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.timeline import Absence, Timeline, absences, spans_of
from g10sim.trace.model import Trace

# Evictions on demand go on until the estimate at the kernel is below this share of the target.
_SHARE_OF_TARGET = 0.9


def plan_published(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Plan one iteration of a trace.

    Raises UnsupportedError for tiers that the published planner does not know.
    """
    if [tier.kind for tier in machine.tiers] not in (["memory", "ssd"], ["ssd"]):
        found = f"'published' with tiers {', '.join(tier.name for tier in machine.tiers)}"
        raise UnsupportedError.at("compat.planner", found, "with host memory and an SSD")
    planning = _Planning(trace, machine, parameters)
    planning.choose()
    planning.prefetch(eagerly=parameters.eager_prefetch)
    if parameters.demand_evictions:
        planning.evict_for_demand()
    return planning


class _Planning(Draft):
    """Numbers are those of inactive periods, in the order in which the vitality analysis finds them."""

    def __init__(self, trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> None:
        durations = kernel_durations(trace, machine.clock_hz)
        target = int(parameters.memory_factor * int(parameters.memory_target * machine.gpu_bytes))
        timeline = Timeline(durations)
        occupancy, self._hints = _allocated(trace, machine, timeline, target)
        time = TimeLimit(parameters.planning_limit)
        super().__init__(occupancy, timeline, machine, target, time)
        self._found: list[Planned] = []
        self._parameters, self._margin, self._kernels = parameters, parameters.safety_margin, len(durations)
        self._ssd = machine.ssd
        no_host = PlannedTier("host", "memory", 0, machine.link_rate, machine.link_rate)
        self._host = next((tier for tier in machine.tiers if tier.kind == "memory"), no_host)
        self._host_used = Occupancy(np.zeros_like(durations))
        # Microseconds as in the published simulator, since rounding decides what is equal.
        self._cycles_per_us = per_us = machine.clock_hz / 1e6
        lap = durations / per_us
        self._times = np.concatenate([[0.0], np.cumsum(np.concatenate([lap, lap]))])
        elapsed = np.diff(self._times[: self._kernels + 1])
        link = machine.link_rate * per_us
        self._out = Direction(elapsed, link, self._ssd.write_rate * per_us)
        self._into = Direction(elapsed, link, self._ssd.read_rate * per_us)
        self._set_up_periods(absences(trace, machine.sizes(trace)))

    def _set_up_periods(self, periods: tuple[Absence, ...]) -> None:
        self._periods = periods
        self._order = list(range(len(periods)))
        self._starts, self._ends, sizes = spans_of(periods)
        self._sizes: Floats = sizes.astype(np.float64)
        self._halves = sizes // 2
        wraps = np.array([period.wraps for period in periods], dtype=np.bool_)
        self._within, self._around = np.flatnonzero(~wraps), np.flatnonzero(wraps)
        self._lengths = self._times[self._ends] - self._times[self._starts]
        self._ties = -self._lengths * self._sizes
        by_cost = self._parameters.ranking == "benefit_per_cost"
        costs = [self._ssd.both_cycles(period.size_bytes) if by_cost else 1 for period in periods]
        self._costs = np.array(costs, dtype=np.int64)

    def choose(self) -> None:
        """Evict until the estimate is within the target or the best period has had its turn."""
        is_handled, evictions = np.zeros(len(self._periods), dtype=np.bool_), -1
        as_published = self._parameters.published_order
        may_stop = not self._parameters.demand_evictions
        for _ in self._periods:
            if self.occupancy.peak_bytes <= self.target_bytes or self.time.is_over():
                break
            if len(self.evictions) > evictions:
                benefits, evictions = self._benefits(), len(self.evictions)
            benefits = np.where(is_handled, 0.0, benefits)
            best = self._first(benefits) if as_published else self._longest(benefits, is_handled)
            if best is None or is_handled[best]:
                break
            is_handled[best] = self._handle(best) or not as_published
            if not is_handled[best] and may_stop and (benefits == benefits[best]).sum() == 1:
                break  # It would be the best for ever.

    def _first(self, benefits: Floats) -> int:
        """Return the period with the most benefit that the published simulator's sort puts first."""
        self._order = introsorted(self._order, -benefits, np.where(benefits != 0, self._ties, 0))
        return self._order[0]

    def _longest(self, benefits: Floats, is_handled: Flags) -> int | None:
        """Return that with the most bytes x time, or None without benefit while memory is overfull."""
        most = benefits.max()
        if most <= 0 and self.occupancy.peak_bytes > self.machine.gpu_bytes:
            return None
        equals = np.flatnonzero(benefits == most)
        ties = np.where(is_handled[equals], np.inf, self._ties[equals])
        return int(equals[ties.argmin()])

    def _benefits(self) -> Floats:
        over, ends = self.occupancy.bytes > self.machine.gpu_bytes, self._ends
        sums = prefix_sums(np.where(over, self.timeline.durations, 0))
        late = prefix_sums(np.where(over[1:], self.timeline.durations[:-1], 0))
        cycles = np.empty(len(ends), dtype=np.int64)
        within, around = self._within, self._around
        first = self._out.ssd.finish(self._starts[within], self._halves[within])
        last = self._into.ssd.latest_start(ends[within], self._halves[within])
        cycles[within] = np.where(last > first, sums[last] - sums[first], 0)
        back = ends[around] - self._kernels
        beyond = late[np.maximum(back - 1, 0)] - int(over[0]) * self.timeline.period
        cycles[around] = sums[-1] - sums[self._starts[around]] + np.where(back > 0, beyond, 0)
        return self._sizes * cycles / self._costs

    def _handle(self, number: int) -> bool:
        """Evict the tensor of a period if that helps; return False if the period stays in the list."""
        period, length = self._periods[number], self._lengths[number]
        pressed = self.occupancy.most(period.start, period.end) > self.target_bytes
        if period.end - period.start <= 1 or not pressed:
            return True
        size = period.size_bytes
        has_room = self._host_used.peak_bytes <= self._host.capacity_bytes - size
        evict = self._evict_by_time if period.wraps else self._evict_by_budget
        if length > self._margin * self._copy_time(size, self._ssd):
            if period.wraps or not has_room or self._finds_budget(period):
                evict(period, self._ssd)
            elif evict(period, self._host):
                self._host_used.add(period.start, period.end, size)
            return True
        if length <= self._margin * self._copy_time(size, self._host):
            return False
        if has_room:
            evict(period, self._host)
            self._host_used.add(period.start, period.end, size)
        return True

    def _copy_time(self, size: int, tier: PlannedTier) -> float:
        return self.machine.migration_cycles(size, tier) / self._cycles_per_us

    def _finds_budget(self, period: Absence) -> bool:
        """Return True if the SSD has write budget before the kernel in which a transfer could end."""
        until = self._times[period.start] + self._copy_time(period.size_bytes, self._ssd)
        return not self._out.ssd.is_full[period.start : self._kernel_at(until)].all()

    def _kernel_at(self, time: float) -> int:
        return int(self._times.searchsorted(time, side="right")) - 1

    def _evict_by_budget(self, period: Absence, tier: PlannedTier) -> bool:
        to_ssd, size = tier is self._ssd, period.size_bytes
        out, into = ((way.ssd if to_ssd else way.link) for way in (self._out, self._into))
        out_by, prefetch = int(out.finish(period.start, size)), int(into.latest_start(period.end, size))
        if prefetch <= out_by:
            return False
        self._evict(period, tier, out_by, prefetch)
        for way, kernel in ((self._into, prefetch), (self._out, period.start)):
            (way.take_for_ssd if to_ssd else way.take_for_host)(kernel, size)
        return True

    def _evict_by_time(self, period: Absence, tier: PlannedTier) -> bool:
        """Evict and prefetch as if the links were idle, with the margin's rest before the next use."""
        copy_time = self._copy_time(period.size_bytes, tier)
        out_by = self._kernel_at(self._times[period.start] + copy_time)
        prefetch = self._kernel_at(self._times[period.end] - (self._margin - 1) * copy_time)
        if prefetch == period.start:
            return False
        self._evict(period, tier, out_by, prefetch)
        self._found.append(Planned(prefetch % self._kernels, Fetch(period.tensor)))
        return True

    def _evict(self, period: Absence, tier: PlannedTier, out_by: int, prefetch: int) -> None:
        self._found.append(Planned(period.start, Evict(period.tensor, tier.name)))
        self.evict(period, tier, out_by, prefetch)

    def prefetch(self, *, eagerly: bool) -> None:
        """Prefetch within the iteration, the first ones first; eagerly: earlier where memory is free."""
        latest = [eviction.prefetch or 0 for eviction in self.evictions]
        within = [number for number, eviction in enumerate(self.evictions) if not eviction.wraps]
        for number in introsorted(within, latest):
            eviction, kernel = self.evictions[number], latest[number]
            if eagerly:
                kernel = self.moved_earlier(kernel, eviction.out_by + 1, eviction.size_bytes, 1)
            self.evictions[number] = replace(eviction, prefetch=kernel)
            self._found.append(Planned(kernel, Fetch(eviction.tensor)))

    def evict_for_demand(self) -> None:
        """Add evictions to the SSD, fetched back on demand, around the kernel of the highest first estimate.

        Periods within the iteration that cover the kernel and have no eviction yet are taken in order of
        bytes x time, until the estimate at the kernel is well below the target.
        """
        periods = (self._periods[number] for number in introsorted(self._order, self._ties))
        covering = (one for one in periods if not one.wraps and one.start <= self.pressed_kernel < one.end)
        for period in self.evict_on_demand(covering, _SHARE_OF_TARGET * self.target_bytes):
            self._found.append(Planned(period.start, Evict(period.tensor, self._ssd.name)))

    def plan(self, trace: Trace, *, tensor_hints: bool = True) -> MigrationPlan:
        """Sort the moves by kernel."""
        found = [*(self._hints if tensor_hints else ()), *self._found]
        order = introsorted(range(len(found)), [planned.kernel for planned in found])
        return MigrationPlan(tuple(found[number] for number in order), "g10, published planner")


def _allocated(
    trace: Trace, machine: PlannedMachine, timeline: Timeline, target: float
) -> tuple[Integers, list[Planned]]:
    """Give tensors allocation and free moves until the estimate, the first result, is within the target."""
    sizes = machine.sizes(trace)
    occupancy: Integers = np.full(len(trace.kernels), sum(sizes) + sum(sizes[:1]), dtype=np.int64)
    moves = list[Planned]()
    for tensor in trace.tensors[1:]:
        if occupancy.max(initial=0) <= target:
            break
        if tensor.persistent:
            continue
        kernel = allocation_kernel(tensor, trace.births[tensor.id], timeline, machine)
        death = trace.deaths[tensor.id]
        moves += [Planned(kernel, Fetch(tensor.id)), Planned(death, Free(tensor.id))]
        occupancy[:kernel] -= sizes[tensor.id]
        occupancy[death:] -= sizes[tensor.id]
    return occupancy, moves
