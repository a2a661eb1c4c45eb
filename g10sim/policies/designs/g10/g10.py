"""G10: migrations planned at compile time from tensor vitality."""

from __future__ import annotations

from g10sim.analysis.footprint import unmoved_bytes
from g10sim.config.system import SystemSpec
from g10sim.looks import BLUE, Look
from g10sim.policies.designs.g10.draft import Draft, PlannerOptions, PlanningParameters
from g10sim.policies.designs.g10.planner import draft_g10
from g10sim.policies.designs.g10.tuned import unified_memory_factor
from g10sim.policies.interface import JobPolicy, PlannedMachine, PolicyPerJob
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job


@register_policy
class G10(PlannerOptions, PolicyPerJob):
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

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> JobPolicy:
        """Plan a job."""
        planner, trace, planned = self.behaviour.planner, job.trace, JobPolicy()
        factor = unified_memory_factor(trace, system) if planner == "published" else 1.0
        given = self.parameters_of(PlannerOptions)
        parameters = PlanningParameters(**given, planner=planner, memory_factor=factor)
        draft = draft_g10(trace, machine, parameters)
        planned.plan = draft.plan(trace)
        notes = _unrelieved(draft, trace) if planner == "live" else "", draft.time.note
        planned.note = "; ".join(filter(None, notes))
        return planned


def _unrelieved(draft: Draft, trace: Trace) -> str:
    """Return words for a plan that relieves less than half of the shortage at its worst; else nothing."""
    machine = draft.machine
    shortage = int(unmoved_bytes(trace, machine.sizes(trace)).max(initial=0)) - machine.gpu_bytes
    left = draft.occupancy.peak_bytes - machine.gpu_bytes
    if shortage <= 0 or 2 * left <= shortage:
        return ""
    return (
        f"the plan leaves {left / shortage:.0%} of the shortage of {shortage / 2**30:.3g} GiB at the peak to "
        "page faults: inactive periods are too short for copies"
    )
