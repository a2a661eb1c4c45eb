"""G10: migrations planned at compile time from tensor vitality."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Action, Policy, PolicyView
from g10sim.policies.g10_planning.parameters import Method, PlanningParameters
from g10sim.policies.g10_planning.planner import draft_g10, to_plan
from g10sim.policies.g10_planning.recovery import Recovery
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
    recovery_look_ahead
        Kernels ahead of which tensors are fetched back that left the GPU against the plan; 0 leaves them
        to page faults, as the published simulator does.
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
        recovery_look_ahead: int = 128,
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
        ahead = recovery_look_ahead
        if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 0:
            raise ValueError(f"recovery_look_ahead: found {ahead!r}; allowed: a whole number from 0")
        self.recovery_look_ahead = ahead
        self._recoveries: tuple[Recovery, ...] = ()

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; they share links, host memory, SSD, and GPUs that they are on together, evenly."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        plans, recoveries = [], []
        for number, job in enumerate(workload.jobs):
            neighbours = workload.neighbours(number)
            plan, recovery = self._prepare(job, system, behaviour, gpus, neighbours)
            plans.append(plan)
            recoveries.append(recovery)
        self._recoveries = tuple(recoveries)
        return tuple(plans)

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan:
        """Plan one job that has the machine to itself."""
        return self._prepare(job, system, behaviour, frozenset({job.gpu}))[0]

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """Fetch back what left the GPU against the plan."""
        if not self.recovery_look_ahead or view.job >= len(self._recoveries):
            return ()
        return self._recoveries[view.job].prefetches(view, self.recovery_look_ahead)

    def _prepare(
        self,
        job: Job,
        system: SystemSpec,
        behaviour: BehaviourSpec,
        gpus: frozenset[int],
        neighbours: int = 1,
    ) -> tuple[MigrationPlan, Recovery]:
        draft = draft_g10(
            job.trace, system, self._planning, behaviour, gpus=gpus, gpu=job.gpu, neighbours=neighbours
        )
        kernels = [kernel.tensors for kernel in job.trace.kernels]
        recovery = Recovery(draft, kernels, system.gpu.memory)
        return to_plan(draft, job.trace, self._planning), recovery
