"""TENSILE: tensors of several jobs on one GPU are swapped and recomputed to lower the memory peak."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias, get_args

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Action, Policy, PolicyView, Synchronize
from g10sim.policies.g10_planning.machine import planned_machine
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.policies.swap_planning.parameters import check_flag, check_number, parsed_bytes
from g10sim.policies.swap_planning.peak import Accounting
from g10sim.policies.tensile_planning.parameters import Channels, PlanningParameters
from g10sim.policies.tensile_planning.replanning import Group, PlannedJob
from g10sim.policies.tensile_planning.timing import DRIFT, predicted
from g10sim.records import Location
from g10sim.registry import choices_text
from g10sim.trace.workload import Job, Workload
from g10sim.units import format_bytes

Target: TypeAlias = Literal["host", "flash"]

_PLACES: Mapping[str, Location] = {"host": Location.HOST, "flash": Location.FLASH}
_CHOICES: Mapping[str, Collection[str]] = {
    "target": tuple(_PLACES),
    "channels": get_args(Channels),
    "accounting": get_args(Accounting),
}
_FLAGS = ("across_iterations", "recomputation", "duplex", "swap_out_barrier")


@register_policy
class Tensile(Policy):
    """Swaps, within iterations and across their border, and recomputations that lower the memory peak.

    At the peak of all jobs on a GPU together, the largest tensor that can be swapped is: out as early, in as
    late as the link is free between its accesses. Parameters and optimizer states stay away from their last
    use to their first one in the next iteration. When no swap is possible any more and the peak is not within
    GPU memory, tensors are dropped and computed again. The first plan goes by predicted kernel times; when
    measured ones have drifted, or jobs come and go, all jobs are planned anew, and adopt their plans when
    their next iterations begin. What is missing all the same is fetched on demand.

    Parameters
    ----------
    target
        Where swapped tensors wait, ``host`` or ``flash``.
    memory_target
        Such as ``20 GiB``: planning ends when the sum of the jobs' peaks is within it, and only above it
        tensors are recomputed. None: as low as it goes, recomputing above the GPU's memory.
    across_iterations
        Whether persistent tensors stay away across the border of the iteration.
    recomputation
        Whether tensors are recomputed.
    channels
        ``per_job``: the copies of each job come one after another, as published; ``shared``: those of all
        jobs.
    duplex
        Whether copies out and in are planned at the same time (authors: no, one stream).
    accounting
        ``physical`` or ``published``: when the planner counts memory as taken and free.
    swap_share
        Most tensors of a job that are swapped within iterations, as a share of all its tensors.
    prediction_error
        Kernel times are predicted with an error of at most this share, each with its own.
    prediction_seed
        Of these errors.
    replan_threshold
        Change of a job's iteration time above which jobs are planned anew; None: never for that reason.
    swap_out_barrier
        Whether a kernel waits for the copies out that were issued during the one before it (authors: yes).
    """

    name = "tensile"
    label = "TENSILE"
    paper = "Zhang et al., TENSILE: A Tensor Granularity Dynamic GPU Memory Scheduling Method, IEEE TKDE 2022"
    check_exemptions: ClassVar[Mapping[str, str]] = {
        "no_stalls_with_room": "lowers the memory peak as far as swaps can, whether or not memory is short"
    }

    def __init__(
        self,
        *,
        target: Target = "host",
        memory_target: str | None = None,
        across_iterations: bool = True,
        recomputation: bool = True,
        channels: Channels = "per_job",
        duplex: bool = False,
        accounting: Accounting = "physical",
        swap_share: float = 1.0,
        prediction_error: float = 0.0,
        prediction_seed: int = 0,
        replan_threshold: float | None = DRIFT,
        swap_out_barrier: bool = False,
    ) -> None:
        self.target: Target = target
        self.memory_target = memory_target
        self.across_iterations = across_iterations
        self.recomputation = recomputation
        self.channels: Channels = channels
        self.duplex = duplex
        self.accounting: Accounting = accounting
        self.swap_share = swap_share
        self.prediction_error = prediction_error
        self.prediction_seed = prediction_seed
        self.replan_threshold = replan_threshold
        self.swap_out_barrier = swap_out_barrier
        self._check()
        self._planning = PlanningParameters(
            across_iterations=across_iterations,
            recomputation=recomputation,
            channels=channels,
            duplex=duplex,
            accounting=accounting,
            swap_share=swap_share,
            target_bytes=None if memory_target is None else parsed_bytes("memory_target", memory_target),
        )
        self._groups: dict[int, Group] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self._barriers: dict[int, Mapping[int, frozenset[int]]] = {}

    def _check(self) -> None:
        for key, allowed in _CHOICES.items():
            if getattr(self, key) not in allowed:
                raise ValueError(f"{key}: found {getattr(self, key)!r}; allowed: {choices_text(allowed)}")
        for key in _FLAGS:
            check_flag(key, getattr(self, key))
        check_number("swap_share", self.swap_share, 1)
        check_number("prediction_error", self.prediction_error, 1)
        if self.replan_threshold is not None:
            check_number("replan_threshold", self.replan_threshold, float("inf"))
        seed = self.prediction_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"prediction_seed: found {seed!r}; allowed: a whole number from 0")

    @property
    def note(self) -> str:
        """What was planned last on every GPU."""
        groups = dict.fromkeys(self._groups.values())
        return "; ".join(text for text in map(_describe, groups) if text)

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan the jobs that arrive first on every GPU; the others are planned when they arrive."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        self._groups, self._last, self._barriers = {}, {}, {}
        for number, job in enumerate(workload.jobs):
            self._last[number] = job.iterations - 1, len(job.trace.kernels) - 1
        for members in _grouped(workload):
            jobs = {number: self._planned_job(number, workload.jobs[number], system) for number in members}
            machine = planned_machine(system, behaviour, gpus, workload.jobs[members[0]].gpu)
            place = _PLACES[self.target]
            group = Group(jobs, machine, self._planning, place, self.replan_threshold)
            first = min(workload.jobs[number].arrival_cycles for number in members)
            group.join([number for number in members if workload.jobs[number].arrival_cycles == first])
            self._groups.update(dict.fromkeys(members, group))
        return tuple(
            self._adopted(number) if self._groups[number].has(number) else None
            for number in range(len(workload.jobs))
        )

    def plan_job(self, job: Job, system: SystemSpec, behaviour: BehaviourSpec) -> MigrationPlan | None:
        """Plan one job that has the machine to itself."""
        return self.plan(Workload((job,)), system, behaviour)[0]

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Let a job join those that are planned for, learn from its times, and adopt a new plan."""
        group = self._groups[view.job]
        if view.iteration:
            group.observe(view.job, view.measured_cycles)
        else:
            group.join([view.job])
        return self._adopted(view.job)

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """Wait for the copies out of the kernel before this one, where a barrier is wanted."""
        leaving = self._barriers.get(view.job, {}).get(view.kernel - 1)
        return () if leaving is None else (Synchronize(leaving),)

    def on_kernel_end(self, view: PolicyView) -> Iterable[Action]:
        """Plan without a job that has run its last kernel."""
        if (view.iteration, view.kernel) == self._last[view.job]:
            self._groups[view.job].leave(view.job)
        return ()

    def _adopted(self, job: int) -> MigrationPlan | None:
        plan = self._groups[job].adopt(job)
        if plan is not None and self.swap_out_barrier:
            self._barriers[job] = _copies_out(plan)
        return plan

    def _planned_job(self, number: int, job: Job, system: SystemSpec) -> PlannedJob:
        clock = system.gpu.clock
        durations = [job.trace.duration_cycles(kernel, clock) for kernel in job.trace.kernels]
        error, seed = self.prediction_error, self.prediction_seed
        return PlannedJob(job.trace, predicted(durations, error, seed, number))


def _grouped(workload: Workload) -> list[tuple[int, ...]]:
    """Return the jobs that are planned together: those that may be on a GPU at the same time."""
    if workload.sharing.compute == "exclusive":
        return [(number,) for number in range(len(workload.jobs))]
    gpus: dict[int, list[int]] = {}
    for number, job in enumerate(workload.jobs):
        gpus.setdefault(job.gpu, []).append(number)
    return [tuple(numbers) for numbers in gpus.values()]


def _copies_out(plan: MigrationPlan) -> Mapping[int, frozenset[int]]:
    """For every kernel that issues copies out, their tensors."""
    found: dict[int, set[int]] = {}
    for move in plan.moves:
        if move.target in (Location.HOST, Location.FLASH):
            found.setdefault(move.kernel, set()).add(move.tensor)
    return {kernel: frozenset(tensors) for kernel, tensors in found.items()}


def _describe(group: Group) -> str:
    planned = group.planned
    if planned is None:
        return ""
    swaps = [swap for schedule in planned.schedules for swap in schedule.swaps]
    across = sum(swap.wraps for swap in swaps)
    recomputed = sum(len(schedule.recomputed) for schedule in planned.schedules)
    return (
        f"planned {group.times_planned} times; last: {len(swaps) - across} swaps in an iteration, {across} "
        f"across, {recomputed} recomputed; expected peak {format_bytes(planned.peak_bytes)} of "
        f"{format_bytes(planned.unplanned_peak_bytes)}"
    )
