"""Capuchin: one iteration is watched, then tensors are swapped and recomputed as far as memory asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.base import Action, Evict, Policy, PolicyView, Synchronize
from g10sim.policies.capuchin_planning.guidance import Guidance
from g10sim.policies.capuchin_planning.planner import Parameters, plan_job
from g10sim.policies.g10_planning.machine import PlannedMachine, planned_machine
from g10sim.policies.plan import MigrationPlan
from g10sim.policies.registry import register_policy
from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.parameters import check_flag, check_number, parsed_bytes
from g10sim.policies.tensile_planning.parameters import PlanningParameters
from g10sim.policies.tensile_planning.planner import plan_jobs
from g10sim.trace.workload import Workload
from g10sim.units import format_bytes

_TENSILE = "tensile"


@register_policy
class Capuchin(Policy):
    """Swaps that hide in computing first, then the cheaper of swap and recomputation, until memory suffices.

    The first iteration is watched: kernels fetch on demand, and a full GPU evicts what was used least
    recently. From the second on a plan guides each job by itself. At the memory peak, of all tensors that
    are used before and after it, those are swapped that would be away longest (free time), as long as
    nothing waits for their copies; then, whichever saves most memory for the time it costs is swapped or
    recomputed. A tensor leaves after its last access before the peak, as soon as the link is free. It is
    fetched when an access long enough before its next one happens (in-trigger); one that comes late is
    fetched earlier from then on.

    Parameters
    ----------
    memory_target
        Memory that each job's plan keeps to, such as ``2 GB``; ``tensile``: the peak that the policy
        ``tensile`` plans for it. None: GPU memory, an equal share where jobs share one.
    saving
        In place of ``memory_target``: by which share it is below the size of all tensors of the job.
    recomputation
        Whether tensors are recomputed.
    least_tensor
        Smallest tensor that is swapped or recomputed.
    feedback
        By which share of a copy's time one that was late is issued earlier in the next iteration.
    """

    name = "capuchin"
    label = "Capuchin"
    paper = "Peng et al., Capuchin: Tensor-based GPU Memory Management for Deep Learning, ASPLOS 2020"

    def __init__(
        self,
        *,
        memory_target: str | None = None,
        saving: float | None = None,
        recomputation: bool = True,
        least_tensor: str = "64 KiB",
        feedback: float = 0.05,
    ) -> None:
        self.memory_target, self.saving = memory_target, saving
        self.recomputation, self.least_tensor, self.feedback = recomputation, least_tensor, feedback
        if memory_target is not None and saving is not None:
            raise ValueError(f"saving: found {saving!r} beside memory_target; allowed: one of the two")
        if saving is not None:
            check_number("saving", saving, 1)
        check_flag("recomputation", recomputation)
        check_number("feedback", feedback, 1)
        self._least_bytes = parsed_bytes("least_tensor", least_tensor)
        self._target_bytes: int | None = None
        if memory_target is not None and memory_target != _TENSILE:
            self._target_bytes = parsed_bytes("memory_target", memory_target, _TENSILE)
        self._machines: tuple[PlannedMachine, ...] = ()
        self._guidance: dict[int, Guidance] = {}

    @property
    def note(self) -> str:
        """What was planned for every job."""
        return "; ".join(_describe(guidance) for _, guidance in sorted(self._guidance.items()))

    def plan(
        self, workload: Workload, system: SystemSpec, behaviour: BehaviourSpec
    ) -> Sequence[MigrationPlan | None]:
        """Plan nothing yet: the first iteration is watched."""
        gpus = frozenset(job.gpu for job in workload.jobs)
        self._machines = tuple(
            planned_machine(system, behaviour, gpus, job.gpu, workload.neighbours(number))
            for number, job in enumerate(workload.jobs)
        )
        self._guidance = {}
        return (None,) * len(workload.jobs)

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Plan when the first iteration has been watched; after that, adjust what was late."""
        if not view.iteration:
            return None
        guidance = self._guidance.get(view.job)
        if guidance is None:
            guidance = self._guidance[view.job] = self._planned(view)
        elif not guidance.adjust():
            return None
        return guidance.plan()

    def on_kernel_start(self, view: PolicyView) -> Iterable[Action]:
        """See which copies in are late."""
        guidance = self._guidance.get(view.job)
        if guidance is not None:
            for number in guidance.returning.get(view.kernel, ()):
                if view.in_transfer_bytes(guidance.swap(number).pair.tensor):
                    guidance.note_late(number)
        return ()

    def on_kernel_end(self, view: PolicyView) -> Iterable[Action]:
        """Let tensors leave after their last access before the peak; the peak waits for what has not left."""
        guidance = self._guidance.get(view.job)
        if guidance is None:
            return
        for tensor in guidance.leaving.get(view.kernel, ()):
            yield Evict(tensor)
        awaited = guidance.awaited.get(view.kernel)
        if awaited:
            yield Synchronize(frozenset(awaited))

    def _planned(self, view: PolicyView) -> Guidance:
        machine = self._machines[view.job]
        sizes = [machine.pages_bytes(tensor.size_bytes) for tensor in view.trace.tensors]
        accesses = AccessSequence(view.trace, view.measured_cycles, sizes)
        parameters = Parameters(
            target_bytes=min(machine.gpu_bytes, self._budget(accesses, machine)),
            bytes_per_cycle=machine.link_rate,
            mapping_rate=machine.allocation_rate,
            least_bytes=self._least_bytes,
            recomputation=self.recomputation,
        )
        return Guidance(plan_job(accesses, parameters), machine.allocation_rate, self.feedback)

    def _budget(self, accesses: AccessSequence, machine: PlannedMachine) -> int:
        """Return the memory that a job's plan should keep to."""
        if self.saving is not None:
            return int((1 - self.saving) * sum(accesses.sizes))
        if self.memory_target == _TENSILE:
            planned = plan_jobs([accesses], PlanningParameters(), machine.link_rate, machine.gpu_bytes)
            return planned.peak_bytes
        return machine.gpu_bytes if self._target_bytes is None else self._target_bytes


def _describe(guidance: Guidance) -> str:
    planned = guidance.planned
    exposed = sum(swap.overhead_cycles > 0 for swap in planned.swaps)
    reached = "" if planned.is_enough else ", not reached"
    share = planned.overhead_cycles / max(1, planned.schedule.accesses.period)
    return (
        f"{len(planned.swaps)} swaps, {exposed} of them waited for, {len(planned.recomputed)} recomputed; "
        f"expected peak {format_bytes(planned.peak_bytes)} of {format_bytes(planned.unplanned_peak_bytes)}, "
        f"target {format_bytes(planned.target_bytes)}{reached}; expected to cost {share:.1%}"
    )
