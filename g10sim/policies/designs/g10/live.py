"""Planning by the bytes that are alive.

The idea is the G10 paper's (section 4.3): again and again evict the tensor whose inactive period relieves
memory pressure most, as early as the links allow, and prefetch it as late as they allow. Where it departs
from the published planner:

* *Pressure.* Only what is alive counts: tensors before their birth and after their death take no memory.
* *Destination.* The relief of a period is what its own destination achieves with the budget that is left on
  the links that tiers share; the one that relieves more is taken. Of equals it is the one with the shortest
  copies there and back, latency included, unless memories below the GPU's cannot hold all that exceeds it:
  their room is scarce then, and what an SSD hides as well goes there, until they can hold the rest.
  (Published: relief is judged by the SSD's budget alone, which comes first, so that planning ends when the
  SSD is busy, though the host is not.)
* *The border of the iteration.* Periods of persistent tensors that cross it are treated like all others:
  budget, host, prefetching.
* *Space for newborn tensors* is counted from birth; asking for it ahead happens where memory is free.
* *Eager prefetches* count the prefetched tensor itself.
* *Pace*, with more than one of ``pacing_rounds``. Where memory pressure cannot be relieved in the time that
  kernels take, the GPU will wait, and while it waits the links move more. The planner adds these stalls to
  the kernel times and plans again, until pressure is relieved or no longer shrinks, neither the highest nor
  all together. Plans for the unstalled
  time leave the links idle later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from g10sim.analysis.footprint import unmoved_bytes, working_set_bytes
from g10sim.analysis.pools.operations import stays_of
from g10sim.analysis.timeline import Flags, Floats, Integers, kernel_durations
from g10sim.policies.designs.g10.draft import Draft, PlannedEviction, PlanningParameters, allocation_kernel
from g10sim.policies.interface import PlannedMachine, PlannedTier
from g10sim.policies.planning.choice import Standing, nested
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.occupancy import Budget, Occupancy
from g10sim.policies.planning.timeline import Absence, Timeline, absences, spans_of
from g10sim.trace.model import Trace

# Pressure that stays after planning counts as relieved below this share of GPU memory.
_RELIEVED = 0.002
# A round must lower the highest pressure by 3%, or the sum of all without raising that, or more time would
# not help either.
_PROGRESS = 0.97
# Share of the pressure beyond host memory that is reckoned to cross the SSD's own channel. The rest finds
# host memory free at another time. Between 0.15 and 0.3 the plans are equally good; 1 overestimates stalls.
_SSD_SHARE = 0.25
# Costs of tiers: what is to be spared costs more than any copy.
_DEAR, _NEVER = 2**60, 2**62


def plan_live(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Plan one iteration of a trace."""
    durations = kernel_durations(trace, machine.clock_hz)
    sizes = machine.sizes(trace)
    base = unmoved_bytes(trace, sizes)
    candidates = [absence for absence in absences(trace, sizes) if absence.end - absence.start > 1]
    capacity = machine.gpu_bytes * parameters.memory_factor
    floor = np.maximum(working_set_bytes(trace), capacity)
    time = TimeLimit(parameters.planning_limit)
    least = inf, inf
    for _ in range(parameters.pacing_rounds):
        selection = _Selection(candidates, base, durations, machine, parameters, time)
        selection.choose()
        pressure = np.maximum(selection.occupancy.bytes - floor, 0)
        left = float(pressure.max(initial=0)), float(pressure.sum())
        if not _is_progress(left, least):
            break
        best, least = selection, left
        if left[0] <= _RELIEVED * capacity or time.is_over():
            break
        durations = durations + _expected_stalls(pressure, base, selection)
    _allocate(trace, best)
    if parameters.eager_prefetch:
        best.evictions = _eager(best)
    if parameters.demand_evictions:
        _evict_for_demand(trace, best)
    return best


def _is_progress(left: tuple[float, float], before: tuple[float, float]) -> bool:
    """Return True if enough more was relieved than before for another round to be worth it.

    Both are bytes that planning could not relieve: of the kernel that lacks most, and of all together.
    """
    (highest, total), (highest_before, total_before) = left, before
    is_lower = highest <= highest_before * _PROGRESS
    return is_lower or (highest <= highest_before and total <= total_before * _PROGRESS)


class _Selection(Draft):
    """Greedy choice of evictions for given kernel times.

    Every choice lowers budgets and occupancy, so a period's benefit only shrinks. Nor is it ever more than
    that of a period around it of as many bytes and with the same tiers: until that one is taken it waits.
    Per cost it may grow when a cheaper tier becomes the best one, and then counts at once.
    """

    def __init__(
        self,
        candidates: Sequence[Absence],
        base: Integers,
        durations: Integers,
        machine: PlannedMachine,
        parameters: PlanningParameters,
        time: TimeLimit,
    ) -> None:
        target = machine.gpu_bytes * parameters.memory_factor * parameters.memory_target
        super().__init__(base.copy(), Timeline(durations), machine, target, time)
        self.used = {tier.name: Occupancy(np.zeros_like(durations)) for tier in machine.tiers}
        self.out = Budget(durations, machine.out_rate, {t.name: t.write_rate for t in machine.tiers})
        self.into = Budget(durations, machine.in_rate, {t.name: t.read_rate for t in machine.tiers})
        self._ranking = parameters.ranking
        self._off_ssds = Occupancy(base.copy())
        starts, ends, sizes = spans = spans_of(candidates)
        cycles = self.timeline.lap_times(ends) - self.timeline.lap_times(starts)
        # Of periods that relieve as much, those with more bytes x time come first: more than 64 bits hold.
        order = np.argsort(-cycles.astype(object) * sizes, kind="stable")
        self._candidates = [candidates[number] for number in order]
        self._starts, self._ends, self._sizes = spans[:, order]
        self._copied = np.array([absence.out_bytes for absence in self._candidates], dtype=np.int64)
        self._costs = self._tier_costs(cycles[order], parameters.safety_margin)
        self._best: Integers = np.zeros((4, len(candidates)), dtype=np.int64)

    def _tier_costs(self, cycles: Integers, safety_margin: float) -> list[Integers]:
        """Return what each candidate costs in each tier, ``_NEVER`` where it is too short for that."""
        machine, costs = self.machine, []
        sizes, place = np.unique(self._sizes, return_inverse=True)
        for tier in machine.tiers:
            least = [machine.migration_cycles(size, tier) for size in sizes.tolist()]
            fits = cycles > safety_margin * np.array(least)[place]
            if tier.kind != "ssd":
                fits &= self._sizes <= tier.capacity_bytes
            cost = np.array([tier.both_cycles(size) for size in sizes.tolist()], dtype=np.int64)
            costs.append(np.where(fits, cost[place], _NEVER))
        return costs

    def _spares_memory(self) -> bool:
        """Return True if the memories below the GPU's cannot hold all above the target that is on no SSD."""
        room = sum(tier.capacity_bytes for tier in self.machine.tiers if tier.kind == "memory")
        return self._off_ssds.peak_bytes - self.target_bytes > room

    def choose(self) -> None:
        """Evict until the estimate is within the target or nothing relieves pressure any more."""
        first, standing = self._worths(np.arange(len(self._candidates))), Standing()
        self._waiting = self._by_container(np.flatnonzero(first))
        self._freed = self._waiting.pop(-1, [])
        while self.occupancy.peak_bytes > self.target_bytes and not self.time.is_over():
            standing.add(self._freed, first[self._freed])
            self._freed = []
            number = standing.best(self._worths)
            if self._freed:
                continue
            if number is None:
                break
            _, tier, out_by, prefetch = self._best[:, number].tolist()
            self.evict(self._candidates[number], self.machine.tiers[tier], out_by, prefetch)
            standing.remove_best()
            self._freed = self._waiting.pop(number, [])

    def _by_container(self, numbers: Integers) -> dict[int, list[int]]:
        """Return the candidates that wait for another one, by that one; -1: for none."""
        if self._ranking != "benefit":
            return {-1: numbers.tolist()}
        fits = [costs[numbers] < _NEVER for costs in self._costs]
        kinds = np.stack([self._sizes[numbers], self._copied[numbers], *fits])
        _, kind = np.unique(kinds, axis=1, return_inverse=True)
        return nested(numbers, kind.ravel(), self._starts[numbers], self._ends[numbers])

    def _worths(self, numbers: Integers) -> Floats:
        """Work out again what candidates are worth: bytes x cycles of relief, or that per cost.

        The cost is the time of both transfers on idle links (G10 paper, section 4.3).
        """
        sizes, found = self._sizes[numbers], self._windows(numbers)
        self._best[:, numbers] = found
        reliefs, places, *_ = found
        if self._ranking == "benefit":
            ranks: Floats = reliefs.astype(np.float64) * sizes
            return ranks
        tiers = self.machine.tiers
        each = zip(reliefs.tolist(), sizes.tolist(), places.tolist(), strict=True)
        return np.array([relief * size / tiers[place].both_cycles(size) for relief, size, place in each])

    def _windows(self, numbers: Integers) -> list[Integers]:
        """Return what each candidate's best tier achieves, of equals the cheapest.

        That is cycles of relief, the place of the tier, and the kernels by which it is out and fetched.
        """
        starts, ends, sizes = self._starts[numbers], self._ends[numbers], self._sizes[numbers]
        best: list[Integers] = [np.zeros_like(starts) for _ in range(4)]
        relief, cost = best[0], np.zeros_like(starts)
        memory_cost = _DEAR if self._spares_memory() else 0
        for place, tier in enumerate(self.machine.tiers):
            out_by = self.out.finish(starts, self._copied[numbers], tier.name)
            prefetch = self.into.latest_start(ends, sizes, tier.name)
            found = self.occupancy.over_cycles(out_by + 1, prefetch)
            costs = self._costs[place][numbers]
            costs += 0 if tier.kind == "ssd" else memory_cost
            better = (found > relief) | ((found == relief) & (costs < cost))
            better &= costs < _NEVER
            if tier.kind != "ssd":
                self._leave_out_full(place, better, numbers)
            for kept, new in zip(best, (found, np.full_like(starts, place), out_by, prefetch), strict=True):
                kept[better] = new[better]
            cost[better] = costs[better]
        return best

    def _leave_out_full(self, place: int, wanted: Flags, numbers: Integers) -> None:
        """Want a tier no more, now or later, that lacks room for a tensor while it is away.

        Those that wait for such a candidate, and find room themselves, wait no longer.
        """
        tier, costs = self.machine.tiers[place], self._costs[place]
        used = self.used[tier.name]

        def lacks_room(number: int) -> bool:
            most = used.most(int(self._starts[number]), int(self._ends[number]))
            return most + int(self._sizes[number]) > tier.capacity_bytes

        larger = self._sizes[numbers] > tier.capacity_bytes - used.peak_bytes
        full = list(filter(lacks_room, numbers[wanted & larger].tolist()))
        for one in full:
            costs[one] = _NEVER
            waiting = self._waiting.pop(one, [])
            self._waiting[one] = list(filter(lacks_room, waiting))
            self._freed += set(waiting) - set(self._waiting[one])
            full += self._waiting[one]
        wanted &= costs[numbers] < _NEVER

    def evict(self, absence: Absence, tier: PlannedTier, out_by: int, prefetch: int) -> None:
        """Plan an eviction, and use up what it takes of links and tier."""
        super().evict(absence, tier, out_by, prefetch)
        size, name = absence.size_bytes, tier.name
        self.out.debit(absence.start, absence.out_bytes, name)
        self.into.debit(prefetch, size, name)
        self.used[name].add(absence.start, absence.end, size)
        if tier.kind == "ssd":
            self._off_ssds.add(out_by + 1, prefetch, -size)


def _expected_stalls(pressure: Integers, base: Integers, selection: _Selection) -> Integers:
    """Cycles that the GPU will wait at each kernel for pressure that planning could not relieve.

    What rises above all earlier pressure has to leave before the kernel can run; what exceeds all later
    pressure can come back only after it. It crosses the SSD's channel as far as memory below the GPU's cannot
    hold all that is away then; what is on its way out or in counts once, as it has yet to leave or is back.
    """
    machine = selection.machine
    ssd = machine.ssd
    room = sum(tier.capacity_bytes for tier in machine.tiers if tier.kind == "memory")
    on_ssds = sum(selection.used[tier.name].bytes for tier in machine.tiers if tier.kind != "memory")
    away = base - selection.occupancy.bytes + pressure
    beyond = np.clip(away - on_ssds - room, 0, pressure)
    to_memory = pressure - beyond
    rest = 1 - _SSD_SHARE
    leaving = to_memory / machine.out_rate + beyond * (rest / machine.out_rate + _SSD_SHARE / ssd.write_rate)
    returning = to_memory / machine.in_rate + beyond * (rest / machine.in_rate + _SSD_SHARE / ssd.read_rate)
    before = np.diff(np.maximum.accumulate(leaving), prepend=0.0)
    after = np.diff(np.maximum.accumulate(returning[::-1]), prepend=0.0)[::-1]
    stalls: Integers = np.ceil(before + after).astype(np.int64)
    return stalls


def _allocate(trace: Trace, draft: Draft) -> None:
    """Ask for space ahead of births where memory is free, and give it back at deaths."""
    sizes = draft.machine.sizes(trace)
    for tensor in trace.tensors:
        if tensor.persistent or not trace.uses[tensor.id]:
            continue
        birth, size = trace.births[tensor.id], sizes[tensor.id]
        earliest = allocation_kernel(tensor, birth, draft.timeline, draft.machine)
        kernel = draft.moved_earlier(birth, earliest, size, size)
        draft.allocations.append((kernel, tensor.id))
        draft.frees += [(end, tensor.id) for _, end in stays_of(trace, tensor.id)]


def _eager(draft: Draft) -> list[PlannedEviction]:
    """Move prefetches into memory that is free earlier, the first ones first (G10 paper, section 4.4)."""
    moved = []
    for eviction in sorted(draft.evictions, key=lambda entry: (entry.prefetch or 0, entry.end, entry.tensor)):
        latest, size = eviction.prefetch or 0, eviction.size_bytes
        prefetch = draft.moved_earlier(latest, eviction.out_by + 1, size, size)
        moved.append(replace(eviction, prefetch=prefetch))
    return moved


def _evict_for_demand(trace: Trace, draft: Draft) -> None:
    """Add evictions to the SSD, fetched back on demand, around the kernel with the highest first estimate.

    Periods that cover the kernel and have no eviction yet are taken in order of bytes x time, until the
    estimate at the kernel is below the target (last step of the published planner).
    """
    kernels, pressed, timeline = len(trace.kernels), draft.pressed_kernel, draft.timeline
    every = absences(trace, draft.machine.sizes(trace))
    covering = [one for one in every if (pressed - one.start) % kernels < one.end - one.start]
    covering.sort(key=lambda one: (-one.size_bytes * one.cycles(timeline), one.tensor, one.start))
    draft.evict_on_demand(covering, draft.target_bytes)
