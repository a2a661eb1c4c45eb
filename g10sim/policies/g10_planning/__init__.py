"""The planner of G10, also used by the direct-storage designs that share its plan."""

from g10sim.policies.g10_planning.draft import Draft, PlanningParameters
from g10sim.policies.g10_planning.planner import draft_g10, plan_g10

__all__ = ["Draft", "PlanningParameters", "draft_g10", "plan_g10"]
