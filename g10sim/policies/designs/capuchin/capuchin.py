"""Capuchin: one iteration is watched, then tensors are swapped and recomputed as far as memory asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from g10sim.config.effects import Effect
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.looks import Look
from g10sim.policies.designs.capuchin.planner import Hybrid
from g10sim.policies.designs.capuchin.swaps import GuidedSwap, trigger_at
from g10sim.policies.designs.tensile.planner import TensileOptions, plan_jobs
from g10sim.policies.interface import JobPolicy, PlannedMachine, PolicyPerJob, PolicyView, Requirements
from g10sim.policies.interface.moves import Await, Evict, Fetch, Move
from g10sim.policies.interface.parameters import Share, Size, SizeOrTensile, parameter
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.registry import register_policy
from g10sim.policies.planning.limit import Limited
from g10sim.policies.planning.swapping.schedule import AccessSequence
from g10sim.trace.workload import Job
from g10sim.units import format_bytes, parse_bytes


class Guidance:
    """The moves of one job by kernel, and its swaps, with the triggers of those that were late moved.

    ``step``: by which share of its time a copy in that was late is issued earlier from then on.
    ``leaving`` maps kernels to the tensors that leave when they have ended, ``awaited`` to those that must
    have left before the next one starts, ``returning`` to the swaps that are to be back when they start.
    """

    def __init__(self, planned: Hybrid, step: float) -> None:
        self.planned, self._step = planned, step
        self._accesses = planned.schedule.accesses
        self.swaps = list(planned.swaps)
        self._late: dict[int, int] = {}
        self._seen: set[int] = set()
        in_order = sorted(self.swaps, key=lambda swap: swap.out)
        self.leaving = grouped((self._leaves_after(swap), swap.pair.tensor) for swap in in_order)
        late = (swap for swap in self.swaps if swap.out.end > self._accesses.times[swap.first])
        self.awaited = grouped((swap.first - 1, swap.pair.tensor) for swap in late)
        self.returning = grouped((swap.pair.use, number) for number, swap in enumerate(self.swaps))

    def _leaves_after(self, swap: GuidedSwap) -> int:
        """Return the kernel at whose end a copy out is issued: the last before the link is free for it."""
        ended = self._accesses.kernel_at(swap.out.start) - 1
        return min(max(swap.pair.evicted, ended), swap.first - 1)

    def note_late(self, number: int) -> None:
        """Remember that a tensor was still on its way in when the kernel started that uses it."""
        self._seen.add(number)

    def adjust(self) -> bool:
        """Issue earlier what was late since the last call, as memory permits; whether anything changed."""
        changed = False
        for number in sorted(self._seen):
            self._late[number] = self._late.get(number, 0) + 1
            changed |= self._move(number)
        self._seen.clear()
        return changed

    @property
    def is_final(self) -> bool:
        """Return True if nothing that was late since the last adjustment can ever be issued earlier."""
        return not any(map(self._can_move, self._seen))

    def plan(self) -> MigrationPlan:
        """Return drops, allocations, and copies in, each issued when its trigger starts."""
        swaps = sorted(self.swaps, key=lambda swap: (swap.trigger, swap.back))
        copies = (Planned(swap.trigger, Fetch(swap.pair.tensor)) for swap in swaps)
        return self.planned.schedule.plan(copies, "capuchin")

    def _move(self, number: int) -> bool:
        """Move a swap's trigger towards where it is wanted, one kernel after another while there is room."""
        swap = self.swaps[number]
        lead = round(self._step * self._late[number] * swap.pair.copy_cycles)
        wanted = trigger_at(self._accesses, swap.pair, swap.last, swap.back.start - lead)
        trigger = swap.trigger
        while trigger > wanted and self._has_room(trigger - 1, swap.pair.size_bytes):
            trigger -= 1
        if trigger == swap.trigger:
            return False
        self.swaps[number] = moved = replace(swap, trigger=trigger)
        analysis, accesses = self.planned.analysis, self._accesses
        before, after = analysis.spans(swap.counted(accesses), -1), analysis.spans(moved.counted(accesses))
        analysis.count(before + after)
        return True

    def _can_move(self, number: int) -> bool:
        """Return True if a swap could be issued a kernel earlier, once it has been late often enough."""
        swap = self.swaps[number]
        earlier = self._step > 0 and swap.trigger > swap.last + 1
        return earlier and self._has_room(swap.trigger - 1, swap.pair.size_bytes)

    def _has_room(self, kernel: int, size_bytes: int) -> bool:
        """Return True if more memory during a kernel stays within the target, or within the peak.

        A kernel that takes no time needs none.
        """
        start, end = self._accesses.interval(kernel)
        level = self.planned.analysis.most(start, end) if start < end else 0
        return level + size_bytes <= max(self.planned.target_bytes, self.planned.peak_bytes)


_TENSILE = "tensile"
_GUIDED = Effect(
    lambda run, policy: run.most_iterations > 1,
    "with 2 iterations or more",
    "the first iteration is only watched",
)
_ADJUSTED = Effect(
    lambda run, policy: run.most_iterations > 2,
    "with 3 iterations or more",
    "no iteration follows one with a plan",
)


class _Job(JobPolicy):
    """Watches one job, then guides it by a plan."""

    def __init__(self, plan: Callable[[PolicyView], Guidance], tier: str) -> None:
        self._plan, self._tier = plan, tier
        self._guidance: Guidance | None = None

    def on_iteration_start(self, view: PolicyView) -> MigrationPlan | None:
        """Plan when the first iteration has been watched; after that, adjust what was late."""
        if not view.iteration:
            return None
        if self._guidance is None:
            self._guidance = self._plan(view)
        elif not self._guidance.adjust():
            return None
        self.note = _describe(self._guidance)
        return self._guidance.plan()

    def is_steady(self, view: PolicyView) -> bool:
        """Return True if a plan is carried out that will not be adjusted any more."""
        return self._guidance is not None and self._guidance.is_final

    def on_kernel_start(self, view: PolicyView) -> Iterable[Move]:
        """See which copies in are late."""
        guidance = self._guidance
        if guidance is not None:
            for number in guidance.returning.get(view.kernel, ()):
                if view.in_transfer_bytes(guidance.swaps[number].pair.tensor):
                    guidance.note_late(number)
        return ()

    def on_kernel_end(self, view: PolicyView) -> Iterable[Move]:
        """Let tensors leave after their last access before the peak; the peak waits for what has not left."""
        guidance = self._guidance
        if guidance is None:
            return
        for tensor in guidance.leaving.get(view.kernel, ()):
            yield Evict(tensor, self._tier)
        awaited = guidance.awaited.get(view.kernel)
        if awaited:
            yield Await(frozenset(awaited))


@register_policy
class Capuchin(Limited, PolicyPerJob):
    """Swaps that hide in computing first, then the cheaper of swap and recomputation, until memory suffices.

    The first iteration is watched: kernels fetch on demand, and a full GPU evicts what was used least
    recently. From the second on a plan guides each job by itself. At the memory peak, of all tensors that
    are used before and after it, those are swapped that would be away longest (free time), as long as
    nothing waits for their copies; then, whichever saves most memory for the time it costs is swapped or
    recomputed. A tensor leaves after its last access before the peak, as soon as the link is free. It is
    fetched when an access long enough before its next one happens (in-trigger); one that comes late is
    fetched earlier from then on.
    """

    name = "capuchin"
    label = "Capuchin"
    look = Look("#44AA99", "****", "*", "6 2")
    paper = "Peng et al., Capuchin: Tensor-based GPU Memory Management for Deep Learning, ASPLOS 2020"
    requirements = Requirements(addresses="own", keeps_mappings=True, pins_on_use=True)

    memory_target: SizeOrTensile | None = parameter(default=None, effect=_GUIDED)
    """Memory that each job's plan keeps to; ``tensile``: the peak that the policy ``tensile`` plans for it
    alone. None: GPU memory, an equal share where jobs share one."""
    saving: Share | None = parameter(default=None, effect=_GUIDED)
    """In place of ``memory_target``: by which share it is below the size of all tensors of the job."""
    recomputation: bool = parameter(default=True, published="true, paper", effect=_GUIDED)
    """Recompute tensors where that costs less than a swap."""
    least_tensor: Size = parameter(default="64 KiB", effect=_GUIDED)
    """Smallest tensor that is swapped or recomputed: many tiny tensors wait longest and save nothing."""
    feedback: Share = parameter(default=0.05, published="0.05, paper", effect=_ADJUSTED)
    """By which share of a copy's time one that was late is issued earlier in the next iteration."""

    def _set_up(self) -> None:
        if self.memory_target is not None and self.saving is not None:
            raise ValueError(f"saving: found {self.saving!r} beside memory_target; allowed: one of the two")

    job_class = _Job

    def start_job(self, job: Job, machine: PlannedMachine, system: SystemSpec) -> _Job:
        """Plan nothing yet: the first iteration is watched."""
        return _Job(partial(self._planned, machine), machine.memory.name)

    def _planned(self, machine: PlannedMachine, view: PolicyView) -> Guidance:
        accesses = AccessSequence(view.trace, view.measured_cycles, machine.sizes(view.trace))
        planned = Hybrid(
            accesses,
            min(machine.gpu_bytes, self._budget(accesses, machine)),
            machine.link_rate,
            least_bytes=parse_bytes(self.least_tensor),
            recomputation=self.recomputation,
            planning_limit=self.planning_limit,
        )
        return Guidance(planned, self.feedback)

    def _budget(self, accesses: AccessSequence, machine: PlannedMachine) -> int:
        """Return the memory that a job's plan should keep to."""
        if self.saving is not None:
            return int((1 - self.saving) * sum(accesses.sizes))
        if self.memory_target == _TENSILE:
            planned = plan_jobs([accesses], TensileOptions(), machine.link_rate, machine.gpu_bytes)
            return planned.peak_bytes
        return machine.gpu_bytes if self.memory_target is None else parse_bytes(self.memory_target)


def _describe(guidance: Guidance) -> str:
    planned = guidance.planned
    exposed = sum(swap.overhead_cycles > 0 for swap in planned.swaps)
    recomputed = len(planned.schedule.recomputed)
    reached = "" if planned.is_enough else ", not reached"
    ended = f"; {planned.time.note}" if planned.time.note else ""
    share = planned.overhead_cycles / max(1, planned.schedule.accesses.period)
    return (
        f"{len(planned.swaps)} swaps, {exposed} of them waited for, {recomputed} recomputed; "
        f"expected peak {format_bytes(planned.peak_bytes)} of {format_bytes(planned.unplanned_peak_bytes)}, "
        f"target {format_bytes(planned.target_bytes)}{reached}; expected to cost {share:.1%}{ended}"
    )
