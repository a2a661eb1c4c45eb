"""From a trace and a system to a migration plan."""

from __future__ import annotations

from g10sim.policies.designs.g10.draft import Draft, PlanningParameters
from g10sim.policies.designs.g10.live import plan_live
from g10sim.policies.designs.g10.published import plan_published
from g10sim.policies.interface import MigrationPlan, Planned, PlannedMachine
from g10sim.policies.interface.moves import Evict, Fetch, Free, TensorMove
from g10sim.trace.model import Trace


def plan_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> MigrationPlan:
    """Plan the migrations of one iteration of a trace."""
    return to_plan(draft_g10(trace, machine, parameters), trace, parameters)


def draft_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Work out a plan together with the estimates behind it (see :class:`.draft.Draft`)."""
    plan = plan_published if parameters.planner == "published" else plan_live
    return plan(trace, machine, parameters)


def to_plan(draft: Draft, trace: Trace, parameters: PlanningParameters) -> MigrationPlan:
    """Put the moves of a draft in issue order.

    Within a kernel the live planner frees first, then evicts, then prefetches and allocates what is needed
    first.
    """
    if draft.moves is not None:
        return MigrationPlan(draft.moves, "g10, published planner")
    kernels = len(trace.kernels)
    moves: list[tuple[int, int, int, TensorMove]] = []

    if parameters.tensor_hints:
        moves += [(kernel, 0, 0, Free(tensor)) for kernel, tensor in draft.frees]
        moves += [(kernel, 2, trace.births[tensor], Fetch(tensor)) for kernel, tensor in draft.allocations]
    for eviction in draft.evictions:
        move = Evict(eviction.tensor, eviction.tier.name)
        moves.append((eviction.start, 1, eviction.out_by, move))
        if eviction.prefetch is not None:
            ahead = eviction.end - eviction.prefetch
            kernel = eviction.prefetch % kernels
            moves.append((kernel, 2, kernel + ahead, Fetch(eviction.tensor)))
    ordered = sorted(moves, key=lambda entry: (entry[0], entry[1], entry[2], entry[3].tensor))
    planned = (Planned(kernel, move) for kernel, *_, move in ordered)
    return MigrationPlan(tuple(planned), "g10, live planner")
