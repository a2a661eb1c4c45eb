"""What G10-GDS and G10-Host share: G10's plan carried out by copies of whole tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Action, Evict, Place, Policy, PolicyView
from g10sim.policies.farthest_use import farthest_idle
from g10sim.policies.g10_planning.parameters import Method, PlanningParameters
from g10sim.policies.g10_planning.planner import plan_g10
from g10sim.policies.hash_order import hash_order
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.plan_format import load_plan
from g10sim.records import Location
from g10sim.trace.model import Kernel
from g10sim.trace.workload import Job, Workload

# The published simulator loosens the planner's target for these designs.
_PUBLISHED_PLANNING_FACTOR = 1.060606


class DirectStorage(Policy):
    """Follows G10's plan without unified memory: whole tensors are copied, into contiguous memory.

    Tensors are allocated when a kernel first needs them and freed at their death; tensors that the plan ever
    evicts lie at the right end of memory, others at the left. A last step of planning evicts to the SSD,
    without prefetch, what lies idle during the kernel of highest pressure, so that less than 90% of the
    target is in use there. What is not there when a kernel starts is fetched on demand. When no room is left
    and nothing under way frees any, the tensor whose next use is farthest away is evicted.
    """

    placement = "contiguous"
    published_memory_factor = 4
    uses_host: ClassVar[bool]
    """Whether tensors go to host memory, too, and not to the SSD only."""

    def __init__(self, *, plan_file: str | None = None, method: Method = "published") -> None:
        if plan_file is not None and not isinstance(plan_file, str):
            raise ValueError(f"plan_file: found {plan_file!r}; allowed: the path of a plan file")
        PlanningParameters(method=method)
        self.plan_file = plan_file
        self.method = method

    @classmethod
    def with_reference_plan(cls, path: Path) -> Policy:
        """Return the same design following the published plan."""
        return cls(plan_file=str(path))

    def _usable(self, system: SystemSpec) -> SystemSpec:
        """Return the part of the system that the design makes use of."""
        if self.uses_host:
            return system
        return system.model_copy(update={"host": system.host.model_copy(update={"memory": 0})})

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan]:
        """Plan every job; jobs on several GPUs share links, host memory and SSD evenly."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        return tuple(self._plan(job, system, behaviour, gpus) for job in workload.jobs)

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan:
        """Plan one job that has the machine to itself."""
        return self._plan(job, system, behaviour, frozenset({job.gpu}))

    def _plan(
        self, job: Job, system: SystemSpec, behaviour: BehaviourSpec, gpus: frozenset[int]
    ) -> MigrationPlan:
        if self.plan_file is not None:
            return load_plan(Path(self.plan_file), job.trace)
        parameters = PlanningParameters(
            method=self.method,
            tensor_hints=False,
            demand_evictions=True,
            memory_factor=_PUBLISHED_PLANNING_FACTOR if behaviour.copy_memory == "published" else 1.0,
        )
        return plan_g10(job.trace, self._usable(system), parameters, behaviour, gpus=gpus, gpu=job.gpu)

    def places(self, job: Job, plan: MigrationPlan | None, behaviour: BehaviourSpec) -> Sequence[Place]:
        """Put tensors that are ever evicted at the right, all others at the left."""
        moves = plan.moves if plan is not None else ()
        evicted = {move.tensor for move in moves if move.target in (Location.HOST, Location.FLASH)}
        return [Place.RIGHT if tensor.id in evicted else Place.LEFT for tensor in job.trace.tensors]

    def on_out_of_memory(self, view: PolicyView) -> Iterable[Action]:
        """Evict the tensor whose next use is farthest away: to the SSD, or the host (G10-Host)."""
        victim = farthest_idle(view)
        if victim is None:
            return ()
        to_host = self.uses_host and view.host_free_bytes >= view.size_bytes(victim)
        return (Evict(victim, Location.HOST if to_host else Location.FLASH),)

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the fixed order of ``hash_order``."""
        return hash_order(kernel.tensors)
