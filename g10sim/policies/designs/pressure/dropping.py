"""Tensors that are dropped and computed again, as many as save most time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf

import numpy as np

from g10sim.analysis.bound.closed_form import least_cycles
from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.bound.machine import BoundMachine, BoundTier, RateLimit
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.vitality import inactive_periods
from g10sim.grouping import grouped
from g10sim.policies.designs.pressure.forecast import Dropped, Forecast, dropped_bytes, with_reruns
from g10sim.policies.designs.pressure.traffic import copied_cycles
from g10sim.policies.interface import PlannedMachine

_TRIALS = 128
"""Numbers of drops that are compared, at most: at even distances, from none to all."""
_TIMED = 4
"""Parts of these, between which copies are timed at first; the times of others lie between."""
_SLACK = 0.01
"""Drops beyond the best number leave the links room, which the closed form takes for granted, for this share
of the time, and of what drops save."""


def machine_of(planned: PlannedMachine) -> BoundMachine:
    """Return the limits and tiers that a planner counts on: the link in each direction, and each tier's."""
    clock = planned.clock_hz
    rates = [("link in", planned.link_rate), ("link out", planned.link_rate)]
    stores = []
    for tier in planned.tiers:
        number = len(rates)
        rates += [(f"{tier.name} read", tier.read_rate), (f"{tier.name} write", tier.write_rate)]
        stores.append(BoundTier(tier.name, tier.capacity_bytes, (0, number), (1, number + 1)))
    limits = tuple(RateLimit(name, max(1, int(rate * clock))) for name, rate in rates)
    return BoundMachine(planned.gpu_bytes, planned.page_bytes, clock, limits, tuple(stores))


def chosen_drops(demand: Demand, planned: PlannedMachine, keeps_copies: bool = False) -> tuple[Dropped, ...]:
    """Return what to drop, as long as it helps, where host memory ``keeps_copies`` of what comes in or not.

    First is what frees most bytes for most cycles per cycle of computing again.

    A number of drops costs the time of a simple schedule of all copies, or of the closed form, which no
    schedule can beat, if that is longer. Memory is free while a tensor is dropped, and the kernel that needs
    it again takes longer by its producers, which need room for what they make. The number is the largest that
    costs within 1% of the lowest, with at least 99% of what the lowest saves, or none where none costs less;
    and no smaller than the one that the closed form alone gives. What a kernel reads that runs again is kept,
    unless dropping it as well saves more than 1%.
    """
    rules = Recomputability(demand.trace, chains=True)
    candidates = _candidates(rules, demand, planned)
    machine = machine_of(planned).reduced(demand.peak_bytes)

    def chosen(drops: Sequence[Dropped], most_cycles: float = inf) -> tuple[float, tuple[Dropped, ...]]:
        """Return the cost of the best number of drops, and these; no drops where it is above a number."""
        numbers = *range(0, len(drops), -(-len(drops) // _TRIALS) or 1), len(drops)
        tried = {number: chained(rules, drops[:number]) for number in numbers}
        left = {number: _with_drops(demand, dropped) for number, dropped in tried.items()}
        bounds = {number: least_cycles(demand, machine) for number, demand in left.items()}
        if min(bounds.values()) >= most_cycles:
            return inf, ()

        def copied(number: int) -> float:
            forecast = Forecast(demand, planned, tried[number])
            cycles = left[number].cycles.tolist()
            return copied_cycles(forecast, planned, cycles, keeps_copies)

        costs = _costs(bounds, copied)
        most = max(_most(bounds, bounds), _most(costs, bounds))
        return min(costs.values()), chained(rules, drops[:most])

    alone = _with_sources_kept(candidates)
    least, kept = chosen(alone)
    if len(alone) == len(candidates):
        return kept
    most_cycles = (1 - _SLACK) * least
    cost, drops = chosen(candidates, most_cycles)
    return drops if cost < most_cycles else kept


def _costs(bounds: Mapping[int, float], copied: Callable[[int], float]) -> dict[int, float]:
    """Return what each number of drops costs, of those that have bounds.

    Copies are timed for numbers at even distances, and at ever smaller ones next to the cheapest and the
    largest that costs within 1% of it. Numbers whose bound is above that are not timed, except for 0.
    """
    numbers = sorted(bounds)
    last, times = len(numbers) - 1, dict[int, float]()
    places = {*range(0, last + 1, -(-last // _TIMED) or 1), last}
    limit = inf
    for finer in (2, 4, 8, 16, 32):
        for place in sorted(places - times.keys(), key=lambda place: (place > 0, bounds[numbers[place]])):
            bound = bounds[numbers[place]]
            if bound <= limit or not place:
                times[place] = copied(numbers[place])
                limit = min(limit, (1 + _SLACK) * max(bound, times[place]))
        known = sorted(times)
        copies = np.interp(range(last + 1), known, [times[place] for place in known]).tolist()
        costs = [max(bounds[number], copies[i]) for i, number in enumerate(numbers)]
        limit, step = (1 + _SLACK) * min(costs), -(-last // (_TIMED * finer))
        for best in costs.index(min(costs)), max(i for i, cost in enumerate(costs) if cost <= limit):
            places |= {max(0, best - step), min(last, best + step)}
    return dict(zip(numbers, costs, strict=True))


def _most(costs: Mapping[int, float], bounds: Mapping[int, float]) -> int:
    """Return the largest number of drops whose cost and bound are next to those of the best."""
    best = min(costs, key=lambda number: costs[number])
    slack = _SLACK * min(bounds[best], costs[0] - costs[best])
    most, bound = costs[best] + slack, bounds[best] + slack
    return max(number for number in costs if costs[number] <= most and bounds[number] <= bound) if best else 0


def _with_sources_kept(drops: Iterable[Dropped]) -> list[Dropped]:
    """Leave out, from first to last, what others are computed from again, and what is computed from them."""
    dropped, sources, kept = set[int](), set[int](), []
    for drop in drops:
        if drop.tensor not in sources and not dropped.intersection(drop.sources):
            dropped.add(drop.tensor)
            sources.update(drop.sources)
            kept.append(drop)
    return kept


def chained(rules: Recomputability, drops: Sequence[Dropped]) -> tuple[Dropped, ...]:
    """Let each tensor come back before the first kernel for which others are made again from it, or with it.

    Left out is what would come back at once.
    """
    found = {drop.tensor: drop for drop in drops}
    for tensor in sorted(found, key=lambda tensor: -found[tensor].producers[-1].id):
        drop = found[tensor]
        if drop.end <= drop.start:
            del found[tensor]
            continue
        for other in (*drop.sources, *drop.results):
            used = found.get(other)
            if used is not None and used.start <= drop.end < used.end:
                found[other] = replace(used, end=drop.end, producers=rules.chain(other, drop.end))
    return tuple(found.values())


def _with_drops(demand: Demand, drops: Sequence[Dropped]) -> Demand:
    """Return what is alive, and how long kernels take, where tensors are dropped."""
    live = demand.live_bytes - dropped_bytes(demand, drops)
    return replace(demand, live_bytes=live, cycles=with_reruns(demand.cycles, drops))


def _candidates(rules: Recomputability, demand: Demand, planned: PlannedMachine) -> list[Dropped]:
    """Return drops that cost less than moving out and back, the cheapest per byte and idle time first.

    Each is over the longest inactive period of a tensor within the iteration.
    """
    tier, found, cycles = planned.tiers[0], [], demand.cycles.tolist()
    elapsed = [0, *accumulate(cycles)]
    periods = grouped((one.tensor, one) for one in inactive_periods(demand.trace) if not one.wraps)
    for own in periods.values():
        period = max(own, key=lambda one: one.end - one.start)
        size, cost = demand.sizes[period.tensor], 0
        copies = size / tier.write_rate + size / tier.read_rate
        for producer in rules.each_of_chain(period.tensor, period.end):
            cost += cycles[producer.id]
            if cost >= copies:
                break  # mostly after a few kernels, of perhaps as many as the iteration has
        if cost < copies and not rules.problem(period.tensor, period.start):
            idle = max(1, elapsed[period.end] - elapsed[period.start])
            producers = rules.chain(period.tensor, period.end)
            drop = Dropped(period.tensor, period.start, period.end, producers)
            found.append((cost / (size * idle), period.start - period.end, period.tensor, drop))
    return [drop for *_, drop in sorted(found, key=lambda entry: entry[:3])]
