"""Tensors that are dropped and computed again, as many as save most time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from g10sim.analysis.bound.closed_form import closed_form
from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.bound.machine import Limit, Machine, Store
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.vitality import InactivePeriod, inactive_periods
from g10sim.policies.designs.pressure.forecast import Dropped, Forecast
from g10sim.policies.designs.pressure.traffic import least_cycles
from g10sim.policies.planning.machine import PlannedMachine
from g10sim.trace.model import Trace

_TRIALS = 128
"""Numbers of drops that are compared, at most."""
_TIMED = 16
"""Numbers of drops for which copies are timed, at most; the times of others lie between."""
_SLACK = 0.01
"""Drops beyond the best number leave the links room, which the closed form takes for granted, for this share
of the time, and of what drops save."""


def machine_of(planned: PlannedMachine) -> Machine:
    """Return the limits and tiers that a planner counts on: the link in each direction, and each tier's."""
    clock = planned.clock_hz
    rates = [("link in", planned.link_rate), ("link out", planned.link_rate)]
    stores = []
    for tier in planned.tiers:
        number = len(rates)
        rates += [(f"{tier.name} read", tier.read_rate), (f"{tier.name} write", tier.write_rate)]
        stores.append(Store(tier.name, tier.capacity_bytes, (0, number), (1, number + 1)))
    limits = tuple(Limit(name, max(1, int(rate * clock))) for name, rate in rates)
    return Machine(planned.gpu_bytes, planned.page_bytes, clock, limits, tuple(stores))


def chosen_drops(trace: Trace, demand: Demand, planned: PlannedMachine) -> tuple[Dropped, ...]:
    """Return what to drop: first what frees most bytes per cycle of computing again, as long as it helps.

    A number of drops costs what lies half-way between the closed form, which no schedule can beat, and the
    time of a simple schedule of all copies, if that is longer. Memory is free while a tensor is dropped, and
    the kernel that needs it again takes longer by its producer. The number is the largest that costs within
    1% of the lowest, with at least 99% of what the lowest saves, or none where none costs less; and no
    smaller than the one that the closed form alone gives. What a kernel reads that runs again is kept, unless
    dropping it as well saves more than 1%.
    """
    candidates, sizes = _candidates(trace, demand, planned), planned.sizes(trace)
    machine = machine_of(planned).reduced(demand.peak_bytes)

    def chosen(drops: Sequence[Dropped]) -> tuple[float, tuple[Dropped, ...]]:
        bounds, copied = {}, {}
        timed = set(_numbers(len(drops), _TIMED))
        for number in sorted({*_numbers(len(drops), _TRIALS), *timed}):
            tried = _chained(drops[:number])
            left = _with_drops(demand, tried, sizes)
            bounds[number] = closed_form(left, machine, steady=False).cycles
            if number in timed:
                forecast = Forecast(trace, planned, demand, tried)
                copied[number] = least_cycles(trace, forecast, planned, left.cycles.tolist())
        between = np.interp([*bounds], [*copied], [*copied.values()]).tolist()
        costs = {
            number: (bound + max(bound, copies)) / 2
            for (number, bound), copies in zip(bounds.items(), between, strict=True)
        }
        most = max(_most(bounds, bounds), _most(costs, bounds))
        return min(costs.values()), _chained(drops[:most])

    alone, kept = chosen(_with_sources_kept(candidates))
    chained, drops = chosen(candidates)
    return drops if chained < (1 - _SLACK) * alone else kept


def _most(costs: Mapping[int, float], bounds: Mapping[int, float]) -> int:
    """Return the largest number of drops whose cost and bound are next to those of the best."""
    best = min(costs, key=lambda number: costs[number])
    slack = _SLACK * min(bounds[best], costs[0] - costs[best])
    most, bound = costs[best] + slack, bounds[best] + slack
    return max(number for number in costs if costs[number] <= most and bounds[number] <= bound) if best else 0


def _numbers(most: int, trials: int) -> list[int]:
    """Return some numbers of drops at even distances, from none to all."""
    return [*range(0, most, -(-most // trials) or 1), most]


def _with_sources_kept(drops: Iterable[Dropped]) -> list[Dropped]:
    """Leave out, from first to last, what others are computed from again, and what is computed from them."""
    dropped, sources, kept = set[int](), set[int](), []
    for drop in drops:
        if drop.tensor not in sources and not dropped.intersection(drop.producer.inputs):
            dropped.add(drop.tensor)
            sources.update(drop.producer.inputs)
            kept.append(drop)
    return kept


def _chained(drops: Sequence[Dropped]) -> tuple[Dropped, ...]:
    """Let each tensor come back before the first kernel that reads it again, to compute others again, too.

    Left out is what would come back at once.
    """
    found = {drop.tensor: drop for drop in drops}
    for tensor in sorted(found, key=lambda tensor: -found[tensor].producer.id):
        drop = found[tensor]
        if drop.end <= drop.start:
            del found[tensor]
            continue
        for source in drop.producer.inputs:
            read = found.get(source)
            if read is not None and read.start <= drop.end < read.end:
                found[source] = replace(read, end=drop.end)
    return tuple(found.values())


def _with_drops(demand: Demand, drops: Sequence[Dropped], sizes: Sequence[int]) -> Demand:
    """Return what is alive, and how long kernels take, where tensors are dropped."""
    live, cycles = demand.live_bytes.copy(), demand.cycles.copy()
    for drop in drops:
        live[drop.start : drop.end] -= sizes[drop.tensor]
    for producer, end in {(drop.producer.id, drop.end) for drop in drops}:
        cycles[end] += demand.cycles[producer]
    return replace(demand, live_bytes=live, cycles=cycles)


def _candidates(trace: Trace, demand: Demand, planned: PlannedMachine) -> list[Dropped]:
    """Return drops that cost less than moving the tensor out and back, the cheapest per byte first."""
    rules, sizes = Recomputability(trace), planned.sizes(trace)
    tier, found = planned.tiers[0], []
    for period in _longest_periods(trace):
        producer = rules.producer(period.tensor, period.start)
        if producer is None or rules.problem(period.tensor, period.start):
            continue
        size, cost = sizes[period.tensor], int(demand.cycles[producer.id])
        if cost < size / tier.write_rate + size / tier.read_rate:
            drop = Dropped(period.tensor, period.start, period.end, producer)
            found.append((cost / size, period.start - period.end, period.tensor, drop))
    return [drop for *_, drop in sorted(found, key=lambda entry: entry[:3])]


def _longest_periods(trace: Trace) -> list[InactivePeriod]:
    """Return the longest inactive period of every tensor within the iteration."""
    longest: dict[int, InactivePeriod] = {}
    for period in inactive_periods(trace):
        known = longest.get(period.tensor)
        if not period.wraps and (known is None or period.end - period.start > known.end - known.start):
            longest[period.tensor] = period
    return list(longest.values())
