"""The planner of G10, also used by the direct-storage designs that share its plan."""

from g10sim.policies.designs.g10.draft import Draft, PlanningParameters
from g10sim.policies.designs.g10.planner import draft_g10, plan_g10

__all__ = ["Draft", "PlanningParameters", "draft_g10", "plan_g10"]
