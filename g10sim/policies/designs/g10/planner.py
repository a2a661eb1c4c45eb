"""From a trace and a system to a migration plan."""

from __future__ import annotations

from g10sim.policies.designs.g10.draft import Draft, PlanningParameters
from g10sim.policies.designs.g10.live import plan_live
from g10sim.policies.designs.g10.published import plan_published
from g10sim.policies.interface import MigrationPlan, PlannedMachine
from g10sim.trace.model import Trace


def plan_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> MigrationPlan:
    """Plan the migrations of one iteration of a trace."""
    draft = draft_g10(trace, machine, parameters)
    return draft.plan(trace, tensor_hints=parameters.tensor_hints)


def draft_g10(trace: Trace, machine: PlannedMachine, parameters: PlanningParameters) -> Draft:
    """Work out a plan together with the estimates behind it (see :class:`.draft.Draft`)."""
    plan = plan_published if parameters.planner == "published" else plan_live
    return plan(trace, machine, parameters)
