"""From a schedule to the moves of a migration plan."""

from __future__ import annotations

from collections.abc import Iterator

from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.policies.swap_planning.moves import allocations, drops
from g10sim.policies.swap_planning.peak import PeakAnalysis
from g10sim.policies.swap_planning.schedule import JobSchedule, Swap
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
    moves = [*allocations(schedule, analysis, allocation_rate), *drops(schedule)]
    for swap in schedule.swaps:
        moves += _copies(schedule, swap, target)
    moves.sort(key=lambda move: (move.kernel, move.delay_cycles))
    return MigrationPlan(tuple(moves), planner)


def _copies(schedule: JobSchedule, swap: Swap, target: Location) -> Iterator[PlannedMove]:
    accesses = schedule.accesses
    for time, place in ((swap.out.start, target), (swap.back.start, Location.GPU)):
        time %= accesses.period
        kernel = accesses.kernel_at(time)
        delay = time - accesses.interval(kernel).start
        yield PlannedMove(kernel, swap.tensor, place, delay_cycles=delay)
