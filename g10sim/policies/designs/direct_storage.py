"""G10-GDS and G10-Host: G10's plan carried out by copies of whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from g10sim.config.system import SystemSpec
from g10sim.looks import GREEN, PINK, Look
from g10sim.policies.designs.farthest_use import WholeTensors, WholeTensorsJob
from g10sim.policies.designs.g10.draft import PlanningParameters
from g10sim.policies.designs.g10.planner import plan_g10
from g10sim.policies.designs.g10.tuned import copies_factor
from g10sim.policies.interface import MigrationPlan, PlannedMachine, Policy, PolicyView, Requirements
from g10sim.policies.interface.parameters import PlanFile, parameter
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.hash_order import hash_order
from g10sim.policies.planning.offloading.room import require_ssd
from g10sim.trace.model import Kernel
from g10sim.trace.workload import Job


class _Job(WholeTensorsJob):
    """Follows the plan of a job; what leaves without being planned goes to host memory if that has room."""

    def __init__(self, plan: MigrationPlan, machine: PlannedMachine) -> None:
        super().__init__(plan, machine.ssd.name)
        self._memory = machine.memory.name

    def way_out(self, view: PolicyView, tensor: int) -> str:
        has_room = view.free_bytes_of(self._memory) >= view.size_bytes(tensor)
        return self._memory if has_room else super().way_out(view, tensor)


class DirectStorage(WholeTensors):
    """Follows G10's plan without unified memory: whole tensors are copied, into contiguous memory.

    Tensors are allocated when a kernel first needs them and freed at their death; tensors that the plan ever
    evicts lie at the right end of memory, others at the left. A last step of planning evicts to the SSD,
    without prefetch, what lies idle during the kernel of highest pressure, so that less than 90% of the
    target is in use there. What is not there when a kernel starts is fetched on demand. When no room is left
    and nothing under way frees any, the tensor whose next use is farthest away is evicted.
    """

    requirements = Requirements(placement="contiguous", published_memory_factor=4)
    job_class = _Job
    uses_host: ClassVar[bool]
    """Tensors may go to host memory, not only to the SSD."""

    plan_file: PlanFile | None = parameter(default=None)
    """Path of a plan to follow instead of an own one."""

    @classmethod
    def with_reference_plan(cls, path: Path) -> Policy:
        """Return the same design following the published plan."""
        return cls(plan_file=str(path))

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Job:
        """Plan a job for the tiers that the design uses. Raises UnsupportedError without an SSD."""
        ssd, memories = require_ssd(self.name, machine), [t for t in machine.tiers if t.kind == "memory"]
        usable = replace(machine, tiers=(*memories[: int(self.uses_host)], ssd))
        if self.plan_file is None:
            return _Job(plan_g10(job.trace, usable, self._parameters(job)), usable)
        return _Job(load_plan(Path(self.plan_file), job.trace), usable)

    def _parameters(self, job: Job) -> PlanningParameters:
        is_published = self.behaviour.copy_memory == "published"
        factor = copies_factor(job.trace, uses_host=self.uses_host) if is_published else 1.0
        return PlanningParameters(
            planner=self.behaviour.planner, tensor_hints=False, demand_evictions=True, memory_factor=factor
        )

    def allocation_order(self, kernel: Kernel) -> Sequence[int]:
        """Return a kernel's tensors in the fixed order of ``hash_order``."""
        return hash_order(kernel.tensors)


@register_policy
class G10Host(DirectStorage):
    """G10's plan between GPU, host memory and SSD by explicit copies: no unified memory.

    Whole tensors are copied, and need consecutive GPU memory.
    """

    name = "g10_host"
    label = "G10-Host"
    look = Look(GREEN, "xxxx", "P", "5 1")
    paper = "Zhang et al., G10 (MICRO 2023), section 7.1: G10 with host memory and without unified memory"
    uses_host = True
    reference_plan = "prefetch_guide.g10_host.config.gz"


@register_policy
class G10Gds(DirectStorage):
    """G10's plan between GPU and SSD over GPUDirect Storage: no unified memory, no host memory.

    Whole tensors are copied, and need consecutive GPU memory.
    """

    name = "g10_gds"
    label = "G10-GDS"
    look = Look(PINK, "\\\\\\\\", "D", "3 1 1 1 1 1")
    paper = "Zhang et al., G10 (MICRO 2023), section 7.1: G10 with GPUDirect Storage"
    uses_host = False
    requirements = replace(DirectStorage.requirements, host_memory="none")
    reference_plan = "prefetch_guide.g10_gds.config.gz"
