"""G10: migrations planned at compile time from tensor vitality."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Policy
from g10sim.policies.g10_planning.parameters import Method, PlanningParameters
from g10sim.policies.g10_planning.planner import plan_g10
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.trace.workload import Job, Workload


@register_policy
class G10(Policy):
    """Smart tensor migrations: the whole iteration is planned before it runs.

    Tensor vitality analysis finds the inactive periods of all tensors. The planner evicts, again and again,
    the tensor whose period relieves memory pressure most for the bandwidth that it takes, to the SSD or
    the host; prefetches it at the latest safe time, and earlier where memory is free; and allocates and
    frees the others ahead of time. The unified memory carries the plan out; what it misses is fetched on
    demand.

    The default method plans in the time that the GPU will really take, with the stalls that it
    expects, and treats all periods, destinations and budgets alike; the published planner, with its
    peculiarities, is ``method: published``.

    Parameters
    ----------
    method
        ``paced`` or ``published``.
    safety_margin
        Transfer times that an inactive period must last (published simulator: 2.5).
    memory_target
        Share of GPU memory that estimated occupancy may reach (published simulator: 0.99).
    eager_prefetch
        Prefetch earlier than the latest safe time where memory is free (G10 paper, section 4.4).
    pacing_rounds
        Most rounds of planning with the stalls that the round before expects (paced method).
    """

    name = "g10"
    label = "G10"
    paper = "Zhang et al., G10: Enabling An Efficient Unified GPU Memory and Storage Architecture, MICRO 2023"
    reference_plan = "prefetch_guide.config.gz"

    def __init__(
        self,
        *,
        method: Method = "paced",
        safety_margin: float = 2.5,
        memory_target: float = 0.99,
        eager_prefetch: bool = True,
        pacing_rounds: int = 5,
    ) -> None:
        self._planning = PlanningParameters(
            method=method,
            safety_margin=safety_margin,
            memory_target=memory_target,
            eager_prefetch=eager_prefetch,
            pacing_rounds=pacing_rounds,
        )
        self.method = method
        self.safety_margin = safety_margin
        self.memory_target = memory_target
        self.eager_prefetch = eager_prefetch
        self.pacing_rounds = pacing_rounds

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; jobs on several GPUs share links, host memory and SSD evenly."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        return tuple(
            plan_g10(job.trace, system, self._planning, behaviour, gpus=gpus, gpu=job.gpu)
            for job in workload.jobs
        )

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan:
        """Plan one job that has the machine to itself."""
        return plan_g10(job.trace, system, self._planning, behaviour, gpus=(job.gpu,), gpu=job.gpu)
