"""From a trace and a system to a migration plan."""

from __future__ import annotations

from collections.abc import Collection

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.g10_planning.demand import demand_evictions
from g10sim.policies.g10_planning.draft import Draft
from g10sim.policies.g10_planning.machine import planned_machine
from g10sim.policies.g10_planning.paced import plan_paced
from g10sim.policies.g10_planning.parameters import PlanningParameters
from g10sim.policies.g10_planning.published import plan_published
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location
from g10sim.trace.model import Trace


def plan_g10(
    trace: Trace,
    system: SystemSpec,
    parameters: PlanningParameters | None = None,
    behaviour: BehaviourSpec | None = None,
    *,
    gpus: Collection[int] = (0,),
    gpu: int = 0,
) -> MigrationPlan:
    """Plan the migrations of one iteration of a trace on ``gpu``, while all of ``gpus`` are at work."""
    parameters = parameters or PlanningParameters()
    draft = draft_g10(trace, system, parameters, behaviour, gpus=gpus, gpu=gpu)
    return to_plan(draft, trace, parameters)


def draft_g10(
    trace: Trace,
    system: SystemSpec,
    parameters: PlanningParameters | None = None,
    behaviour: BehaviourSpec | None = None,
    *,
    gpus: Collection[int] = (0,),
    gpu: int = 0,
    neighbours: int = 1,
) -> Draft:
    """Work out a plan together with the estimates behind it (see :class:`.draft.Draft`)."""
    parameters, behaviour = parameters or PlanningParameters(), behaviour or BehaviourSpec()
    machine = planned_machine(system, behaviour, gpus, gpu, neighbours)
    if parameters.method == "published":
        draft = plan_published(trace, machine, parameters)
    else:
        draft = plan_paced(trace, machine, parameters)
    return demand_evictions(trace, draft, machine) if parameters.demand_evictions else draft


def to_plan(draft: Draft, trace: Trace, parameters: PlanningParameters) -> MigrationPlan:
    """Put the moves of a draft in issue order.

    Within a kernel the paced method frees first, then evicts, then prefetches and allocates what is needed
    first; the published one keeps the order in which its steps find the moves.
    """
    kernels = len(trace.kernels)
    moves: list[tuple[int, int, int, PlannedMove]] = []

    def add(kernel: int, step: int, deadline: int, tensor: int, target: Location) -> None:
        moves.append((kernel, step, deadline, PlannedMove(kernel, tensor, target)))

    if parameters.tensor_hints:
        for kernel, tensor in draft.frees:
            add(kernel, 0, 0, tensor, Location.NONE)
        for allocation in draft.allocations:
            add(allocation.kernel, 2, allocation.birth, allocation.tensor, Location.GPU)
    for eviction in draft.evictions:
        place = Location.HOST if eviction.host else Location.FLASH
        add(eviction.start, 1, eviction.out_by, eviction.tensor, place)
        if eviction.prefetch is not None:
            ahead = eviction.end - eviction.prefetch
            kernel = eviction.prefetch % kernels
            add(kernel, 2, kernel + ahead, eviction.tensor, Location.GPU)
    if parameters.method == "published":
        return MigrationPlan.ordered((move for *_, move in moves), "g10, published method")
    ordered = sorted(moves, key=lambda entry: (entry[0], entry[1], entry[2], entry[3].tensor))
    return MigrationPlan(tuple(move for *_, move in ordered), "g10, paced method")
