"""G10: migrations planned at compile time from tensor vitality."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import BLUE, Look
from g10sim.policies.base import JointPolicy
from g10sim.policies.g10_planning.draft import PlannerOptions, PlanningParameters
from g10sim.policies.g10_planning.planner import plan_g10
from g10sim.policies.g10_planning.tuned import unified_memory_factor
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import planned_machines
from g10sim.policies.registry import register_policy
from g10sim.trace.workload import Job, Workload


@register_policy
class G10(PlannerOptions, JointPolicy):
    """Smart tensor migrations: the whole iteration is planned before it runs.

    Tensor vitality analysis finds the inactive periods of all tensors. The planner evicts, again and again,
    the tensor whose period relieves memory pressure most, to the tier that does it best; prefetches it at
    the latest safe time, and earlier where memory is free; and allocates and frees the others ahead of time.
    The unified memory carries the plan out; what it misses is fetched on demand.

    The plan is made for kernel times without stalls. The published planner, with its peculiarities, is
    ``compat.planner: published``.
    """

    name = "g10"
    label = "G10"
    look = Look(BLUE)
    paper = "Zhang et al., G10: Enabling An Efficient Unified GPU Memory and Storage Architecture, MICRO 2023"
    reference_plan = "prefetch_guide.config.gz"

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; they share links, host memory, SSD, and GPUs that they are on together, evenly."""
        machines = planned_machines(workload, system, behaviour)
        return tuple(
            plan_g10(job.trace, machine, self._parameters(job, system, behaviour))
            for job, machine in zip(workload.jobs, machines, strict=True)
        )

    def _parameters(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> PlanningParameters:
        is_published = behaviour.planner == "published"
        return PlanningParameters(
            **self.parameters_of(PlannerOptions),
            planner=behaviour.planner,
            memory_factor=unified_memory_factor(job.trace, system) if is_published else 1.0,
        )
