"""Tensors that are dropped and computed again, as many as bring the bound down most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from g10sim.analysis.bound.closed_form import closed_form
from g10sim.analysis.bound.demand import Demand
from g10sim.analysis.bound.machine import Limit, Machine, Store
from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.vitality import InactivePeriod, inactive_periods
from g10sim.policies.planning.machine import PlannedMachine
from g10sim.trace.model import Kernel, Trace

_TRIALS = 128
"""Numbers of drops that are compared, at most."""
_SLACK = 0.01
"""Drops beyond the best number leave the links room, which the closed form takes for granted, for this share
of the time, and of what drops save."""


@dataclass(frozen=True)
class Dropped:
    """A tensor without contents from kernel ``start`` on, which ``producer`` makes again before ``end``."""

    tensor: int
    start: int
    end: int
    producer: Kernel


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

    The number of drops is the largest with a closed form within 1% of the lowest, and with at least 99% of
    what the lowest saves, or none where none lowers it; memory is free there while a tensor is dropped, and
    the kernel that needs it again takes longer by its producer. What a kernel reads that runs again is kept,
    unless dropping it as well lowers the closed form by more than 1%.
    """
    candidates = _candidates(trace, demand, planned)
    machine = machine_of(planned).reduced(demand.peak_bytes)

    def chosen(drops: Sequence[Dropped]) -> tuple[int, tuple[Dropped, ...]]:
        step = -(-len(drops) // _TRIALS) or 1
        numbers = [*range(0, len(drops), step), len(drops)]
        costs = {
            number: _bound(demand, machine, _chained(drops[:number]), planned, trace) for number in numbers
        }
        lowest = min(costs.values())
        enough = lowest + _SLACK * min(lowest, costs[0] - lowest)
        most = max(number for number in numbers if costs[number] <= enough)
        return lowest, () if costs[0] == lowest else _chained(drops[:most])

    alone, kept = chosen(_with_sources_kept(candidates))
    chained, drops = chosen(candidates)
    return drops if chained < (1 - _SLACK) * alone else kept


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


def _bound(
    demand: Demand, machine: Machine, drops: Sequence[Dropped], planned: PlannedMachine, trace: Trace
) -> int:
    sizes = planned.sizes(trace)
    live, cycles = demand.live_bytes.copy(), demand.cycles.copy()
    for drop in drops:
        live[drop.start : drop.end] -= sizes[drop.tensor]
    for producer, end in {(drop.producer.id, drop.end) for drop in drops}:
        cycles[end] += demand.cycles[producer]
    return closed_form(replace(demand, live_bytes=live, cycles=cycles), machine, steady=False).cycles


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
            found.append((cost / size, period.tensor, drop))
    return [drop for *_, drop in sorted(found, key=lambda entry: entry[:2])]


def _longest_periods(trace: Trace) -> list[InactivePeriod]:
    """Return the longest inactive period of every tensor within the iteration."""
    longest: dict[int, InactivePeriod] = {}
    for period in inactive_periods(trace):
        known = longest.get(period.tensor)
        if not period.wraps and (known is None or period.end - period.start > known.end - known.start):
            longest[period.tensor] = period
    return list(longest.values())
