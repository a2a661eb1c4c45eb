"""G10: migrations planned at compile time from tensor vitality."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.looks import BLUE, Look
from g10sim.policies.base import JointPolicy, PolicyView
from g10sim.policies.g10_planning.draft import PlannerOptions, PlanningParameters
from g10sim.policies.g10_planning.planner import draft_g10, to_plan
from g10sim.policies.g10_planning.recovery import Recovery
from g10sim.policies.moves import Move
from g10sim.policies.parameters import Count, parameter
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.planning.machine import planned_machines
from g10sim.policies.registry import register_policy
from g10sim.trace.workload import Workload


@register_policy
class G10(PlannerOptions, JointPolicy):
    """Smart tensor migrations: the whole iteration is planned before it runs.

    Tensor vitality analysis finds the inactive periods of all tensors. The planner evicts, again and again,
    the tensor whose period relieves memory pressure most for the bandwidth that it takes, to the SSD or
    the host; prefetches it at the latest safe time, and earlier where memory is free; and allocates and
    frees the others ahead of time. The unified memory carries the plan out; what it misses is fetched on
    demand.

    The default method plans in the time that the GPU will really take, with the stalls that it
    expects, and treats all periods, destinations and budgets alike; the published planner, with its
    peculiarities, is ``method: published``.
    """

    name = "g10"
    label = "G10"
    look = Look(BLUE)
    paper = "Zhang et al., G10: Enabling An Efficient Unified GPU Memory and Storage Architecture, MICRO 2023"
    reference_plan = "prefetch_guide.config.gz"

    recovery_look_ahead: Count = parameter(default=128, published="0, published simulator")
    """Kernels ahead of which tensors are fetched back that left the GPU against the plan; 0: page faults do
    it."""

    def _set_up(self) -> None:
        self._planning = PlanningParameters(**self.parameters_of(PlannerOptions))
        self._recoveries: tuple[Recovery, ...] = ()

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; they share links, host memory, SSD, and GPUs that they are on together, evenly."""
        plans, recoveries = [], []
        machines = planned_machines(workload, system, behaviour)
        for job, machine in zip(workload.jobs, machines, strict=True):
            draft = draft_g10(job.trace, machine, self._planning)
            plans.append(to_plan(draft, job.trace, self._planning))
            kernels = [kernel.tensors for kernel in job.trace.kernels]
            recoveries.append(Recovery(draft, kernels, system.gpu.memory))
        self._recoveries = tuple(recoveries)
        return tuple(plans)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Fetch back what left the GPU against the plan."""
        if not self.recovery_look_ahead or view.job >= len(self._recoveries):
            return ()
        return self._recoveries[view.job].prefetches(view, self.recovery_look_ahead)
