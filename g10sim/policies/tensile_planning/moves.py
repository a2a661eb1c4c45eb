"""From a schedule to the moves of a migration plan."""

from __future__ import annotations

import math
from collections.abc import Iterator

from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.policies.tensile_planning.peak import PeakAnalysis
from g10sim.policies.tensile_planning.schedule import JobSchedule, Swap
from g10sim.records import Location


def to_plan(
    schedule: JobSchedule, analysis: PeakAnalysis, target: Location, allocation_rate: float, planner: str
) -> MigrationPlan:
    """Return the plan: allocations, swaps, drops.

    Tensors get their memory when they are made, or as much earlier as that takes at ``allocation_rate``
    bytes/cycle where the peak does not rise by it.

    A copy is issued during the kernel that runs when it is to begin, so long after that kernel has started as
    planned: where kernels take other times than expected, the plan drifts by one kernel's error only.
    """
    moves = [*_allocations(schedule, analysis, allocation_rate), *_drops(schedule)]
    for swap in schedule.swaps:
        moves += _copies(schedule, swap, target)
    moves.sort(key=lambda move: (move.kernel, move.delay_cycles))
    return MigrationPlan(tuple(moves), planner)


def _allocations(schedule: JobSchedule, analysis: PeakAnalysis, rate: float) -> Iterator[PlannedMove]:
    accesses, trace = schedule.accesses, schedule.accesses.trace
    times, levels = analysis.levels(schedule)
    peak_bytes = int(levels.max())
    for kernel in trace.kernels:
        made = [
            tensor
            for tensor in kernel.tensors
            if not trace.tensors[tensor].persistent and trace.births[tensor] == kernel.id
        ]
        size, start = sum(accesses.sizes[tensor] for tensor in made), accesses.interval(kernel.id).start
        early = max(0, start - math.ceil(size / rate))
        issue = min(accesses.kernel_at(early), kernel.id)
        delay = early - accesses.interval(issue).start
        low, high = times.searchsorted(early, side="right") - 1, times.searchsorted(start)
        fits = int(levels[max(0, low) : high].max(initial=0)) + size <= peak_bytes
        for tensor in made:
            if issue < kernel.id and fits:
                yield PlannedMove(issue, tensor, Location.GPU, delay_cycles=delay)
            yield PlannedMove(kernel.id, tensor, Location.GPU)


def _drops(schedule: JobSchedule) -> Iterator[PlannedMove]:
    for entry in schedule.recomputed:
        yield PlannedMove(entry.drop, entry.tensor, Location.NONE, recompute=True)


def _copies(schedule: JobSchedule, swap: Swap, target: Location) -> Iterator[PlannedMove]:
    accesses = schedule.accesses
    for time, place in ((swap.out.start, target), (swap.back.start, Location.GPU)):
        time %= accesses.period
        kernel = accesses.kernel_at(time)
        delay = time - accesses.interval(kernel).start
        yield PlannedMove(kernel, swap.tensor, place, delay_cycles=delay)
