"""From a trace and a system to a migration plan."""

from __future__ import annotations

from g10sim.policies.g10_planning.draft import Draft, PlannedEviction, PlanningParameters, absences
from g10sim.policies.g10_planning.live import plan_live
from g10sim.policies.g10_planning.published import plan_published
from g10sim.policies.moves import Evict, Fetch, Free, TensorMove
from g10sim.policies.plan import MigrationPlan, Planned
from g10sim.policies.planning.machine import PlannedMachine
from g10sim.trace.model import Trace

# Published simulator: until the estimate at that kernel is below 90% of the target.
_SHARE_OF_TARGET = 0.9


def plan_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> MigrationPlan:
    """Plan the migrations of one iteration of a trace."""
    return to_plan(draft_g10(trace, machine, parameters), trace, parameters)


def draft_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Work out a plan together with the estimates behind it (see :class:`.draft.Draft`)."""
    plan = plan_published if parameters.planner == "published" else plan_live
    draft = plan(trace, machine, parameters)
    if parameters.demand_evictions:
        is_published = parameters.planner == "published"
        add_demand_evictions(trace, draft, _SHARE_OF_TARGET if is_published else 1.0)
    return draft


def add_demand_evictions(trace: Trace, draft: Draft, share: float) -> None:
    """Add evictions to the SSD, fetched back on demand, around the kernel with the highest first estimate.

    Periods that cover the kernel and have no eviction yet are taken in order of bytes x time, until the
    estimate at the kernel is below a ``share`` of the target (last pass of the published planner for the
    direct-storage designs).
    """
    kernels, pressed, timeline = len(trace.kernels), draft.pressed_kernel, draft.timeline
    ssd = draft.machine.ssd
    evicted = {(eviction.tensor, eviction.start) for eviction in draft.evictions}
    covering = [
        absence
        for absence in absences(trace, draft.machine)
        if any(pressed in range(absence.start - lap, absence.end - lap) for lap in (0, kernels))
        and (absence.tensor, absence.start) not in evicted
    ]
    covering.sort(
        key=lambda absence: (-absence.size_bytes * absence.cycles(timeline), absence.tensor, absence.start)
    )
    for absence in covering:
        if draft.occupancy.bytes[pressed] < share * draft.target_bytes:
            break
        if not draft.has_room(ssd, absence):
            continue
        draft.used[ssd.name].add(absence.start, absence.end, absence.size_bytes)
        draft.occupancy.add(absence.start, absence.end, -absence.size_bytes)
        draft.evictions.append(
            PlannedEviction(**vars(absence), tier=ssd, out_by=absence.start, prefetch=None)
        )


def to_plan(draft: Draft, trace: Trace, parameters: PlanningParameters) -> MigrationPlan:
    """Put the moves of a draft in issue order.

    Within a kernel the live planner frees first, then evicts, then prefetches and allocates what is needed
    first; the published one keeps the order in which its steps find the moves.
    """
    kernels = len(trace.kernels)
    moves: list[tuple[int, int, int, TensorMove]] = []

    if parameters.tensor_hints:
        moves += [(kernel, 0, 0, Free(tensor)) for kernel, tensor in draft.frees]
        moves += [(made.kernel, 2, made.birth, Fetch(made.tensor)) for made in draft.allocations]
    for eviction in draft.evictions:
        move = Evict(eviction.tensor, eviction.tier.name)
        moves.append((eviction.start, 1, eviction.out_by, move))
        if eviction.prefetch is not None:
            ahead = eviction.end - eviction.prefetch
            kernel = eviction.prefetch % kernels
            moves.append((kernel, 2, kernel + ahead, Fetch(eviction.tensor)))
    if parameters.planner == "published":
        planned = (Planned(kernel, move) for kernel, *_, move in moves)
        return MigrationPlan.ordered(planned, "g10, published planner")
    ordered = sorted(moves, key=lambda entry: (entry[0], entry[1], entry[2], entry[3].tensor))
    planned = (Planned(kernel, move) for kernel, *_, move in ordered)
    return MigrationPlan(tuple(planned), "g10, live planner")
