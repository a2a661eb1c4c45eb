"""TENSILE: tensors of several jobs on one GPU are swapped and recomputed to lower the memory peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.designs.tensile.planner import TensileOptions
from g10sim.policies.designs.tensile.replanning import DRIFT, JobGroup, predicted, spread
from g10sim.policies.interface import Await, Evict, MigrationPlan, Move, PolicyView, Requirements
from g10sim.policies.interface.machine import planned_machine
from g10sim.policies.interface.parameters import Count, Share, Size, parameter
from g10sim.policies.interface.policy import JointPolicy
from g10sim.policies.interface.registry import register_policy
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes, parse_bytes

Target: TypeAlias = Literal["host", "ssd", "flash"]

_WITH_ERROR = Effect(
    lambda run, policy: policy.prediction_error > 0,
    "with a prediction_error above 0",
    "predictions have no error",
)
_REPEATED = Effect(
    lambda run, policy: run.most_iterations > 1, "with 2 iterations or more", "there is one iteration"
)


@register_policy
class Tensile(TensileOptions, JointPolicy):
    """Swaps, within iterations and across their border, and recomputations that lower the memory peak.

    At the peak of all jobs on a GPU together, the largest tensor that can be swapped is: out as early, in as
    late as the link is free between its accesses. Parameters and optimizer states stay away from their last
    use to their first one in the next iteration. When no swap is possible any more and the peak is not within
    GPU memory, tensors are dropped and computed again. The first plan goes by predicted kernel times; when
    measured ones have drifted, or jobs come and go, all jobs are planned again, and adopt their plans when
    their next iterations begin. What is missing all the same is fetched on demand.
    """

    name = "tensile"
    label = "TENSILE"
    look = Look("#332288", marker="d", line="1 1")
    paper = "Zhang et al., TENSILE: A Tensor Granularity Dynamic GPU Memory Scheduling Method, IEEE TKDE 2022"
    requirements = Requirements(addresses="own", keeps_mappings=True, pins_on_use=True)
    check_exemptions: ClassVar[Mapping[str, str]] = {
        "no_stalls_with_room": "lowers the memory peak as far as swaps can, whether or not memory is short"
    }

    target: Target = parameter(default="host", published="host, paper")
    """Tier in which swapped tensors wait."""
    memory_target: Size | None = parameter(default=None)
    """Planning ends when the sum of the jobs' peaks is within it, and only above it tensors are recomputed.
    None: as low as it goes, recomputing above the GPU's memory."""
    prediction_error: Share = parameter(default=0.0)
    """Kernel times are predicted with an error of at most this share, each with its own."""
    prediction_seed: Count = parameter(default=0, effect=_WITH_ERROR)
    """Of these errors."""
    replan_threshold: float | None = parameter(
        default=DRIFT, ge=0, published="0.3, authors' program", effect=_REPEATED
    )
    """Change of a job's iteration time above which jobs are planned again; None: never for that reason."""
    swap_out_barrier: bool = parameter(default=False, published="true, authors' program")
    """Make each kernel wait for the copies out that were issued during the one before it."""

    def _set_up(self) -> None:
        self._groups: dict[int, JobGroup] = {}
        self._barriers: dict[int, Mapping[int, frozenset[int]]] = {}

    @property
    def note(self) -> str:
        """Return a summary of the latest plan of every GPU."""
        return "; ".join(map(_describe, dict.fromkeys(self._groups.values())))

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan the jobs that arrive first on every GPU; the others are planned when they arrive."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        self._workload, self._groups, self._barriers = workload, {}, {}
        target = None if self.memory_target is None else parse_bytes(self.memory_target)
        for members in _grouped(workload):
            traces = {number: workload.jobs[number].trace for number in members}
            own = {number: trace.durations_cycles(system.gpu.clock) for number, trace in traces.items()}
            error, seed = self.prediction_error, self.prediction_seed
            times = {number: predicted(cycles, error, seed, number) for number, cycles in own.items()}
            machine = planned_machine(system, behaviour, gpus, workload.jobs[members[0]].gpu)
            tier = machine.tier(self.target)
            group = JobGroup(traces, times, machine, self, target, tier, self.replan_threshold)
            first = min(workload.jobs[number].arrival_cycles for number in members)
            group.join([number for number in members if workload.jobs[number].arrival_cycles == first])
            self._groups.update(dict.fromkeys(members, group))
        return tuple(map(self._adopted, range(len(workload.jobs))))

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Let a job join those that are planned for, learn from its times, and adopt a new plan."""
        group = self._groups[view.job]
        if view.iteration:
            group.observe(view.job, self._times(view))
        else:
            group.join([view.job])
        return self._adopted(view.job)

    def is_steady(self, view: PolicyView) -> bool:
        """Return True if all jobs keep to the plans that they have."""
        return self._groups[view.job].is_settled(view.job, self._times(view))

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """Wait for the copies out of the kernel before this one, where a barrier is wanted."""
        leaving = self._barriers.get(view.job, {}).get(view.kernel - 1)
        return () if leaving is None else (Await(leaving),)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Plan without a job that has run its last kernel."""
        job = self._workload.jobs[view.job]  # one without a number of iterations has a plan of its own
        if view.iteration + 1 == job.iterations and view.kernel + 1 == len(job.trace.kernels):
            self._groups[view.job].leave(view.job)
        return ()

    def _times(self, view: PolicyView) -> Sequence[int]:
        """Kernel times to plan with."""
        is_shared = self._workload.sharing.compute != "exclusive"
        return spread(view.measured_cycles, view.own_cycles) if is_shared else view.measured_cycles

    def _adopted(self, job: int) -> MigrationPlan | None:
        plan = self._groups[job].adopt(job)
        if plan is not None and self.swap_out_barrier:
            self._barriers[job] = _copies_out(plan)
        return plan


def _grouped(workload: Workload) -> list[list[int]]:
    """Return the jobs that are planned together: those that may be on a GPU at the same time."""
    if workload.sharing.compute == "exclusive":
        return [[number] for number in range(len(workload.jobs))]
    return [*grouped((job.gpu, number) for number, job in enumerate(workload.jobs)).values()]


def _copies_out(plan: MigrationPlan) -> Mapping[int, frozenset[int]]:
    """For every kernel that issues copies out, their tensors."""
    out = ((one.kernel, one.move.tensor) for one in plan.moves if isinstance(one.move, Evict))
    return {kernel: frozenset(tensors) for kernel, tensors in grouped(out).items()}


def _describe(group: JobGroup) -> str:
    planned = group.planned
    swaps = [swap for schedule in planned.schedules for swap in schedule.swaps]
    across = sum(swap.wraps for swap in swaps)
    recomputed = sum(len(schedule.recomputed) for schedule in planned.schedules)
    ended = f"; {planned.time.note}" if planned.time.note else ""
    return (
        f"planned {group.times_planned} times; last: {len(swaps) - across} swaps in an iteration, {across} "
        f"across, {recomputed} recomputed; expected peak {format_bytes(planned.peak_bytes)} of "
        f"{format_bytes(planned.unplanned_peak_bytes)}{ended}"
    )
