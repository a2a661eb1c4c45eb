"""Jobs whose tensors move as a whole and need consecutive GPU memory."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import replace
from typing import Any

from simpy.events import Event

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.hardware.contiguous import ContiguousMemory
from g10sim.hardware.direct import DirectTransfers
from g10sim.hardware.memory import Pool
from g10sim.hardware.placement import FitRule, first_fit_left, first_fit_right
from g10sim.policies.base import Place, Policy
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location, StallReason
from g10sim.sim.accounts import WaitLog
from g10sim.sim.executor import JobRun, released_after
from g10sim.sim.ledger import Execution
from g10sim.sim.machine import Machine
from g10sim.trace.model import Kernel, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes

_RULES: dict[Place, FitRule] = {Place.LEFT: first_fit_left, Place.RIGHT: first_fit_right}
_SHOWN_HOLDERS = 4


def simulated_job(job: Job, behaviour: BehaviourSpec) -> Job:
    """Return the job with as many iterations as are simulated."""
    return replace(job, iterations=1) if behaviour.copy_iterations == "first" else job


def contiguous_memory(
    job: Job,
    plan: MigrationPlan | None,
    policy: Policy,
    system: SystemSpec,
    behaviour: BehaviourSpec,
    transfers: DirectTransfers,
    pools: tuple[Pool, Pool],
) -> ContiguousMemory:
    """Return a job's GPU memory with its persistent tensors in it, those on flash that find no room.

    ``pools`` are host memory and flash. Raises PolicyError when the policy places too few tensors,
    UnsupportedError when scratch space does not fit.
    """
    trace, page = job.trace, system.gpu.page_size
    places = policy.places(job, plan, behaviour)
    if len(places) != len(trace.tensors):
        raise PolicyError(
            f"policy '{policy.name}': places returned {len(places)} places; allowed: one per tensor, "
            f"{len(trace.tensors)}"
        )
    pages = [-(-tensor.size_bytes // page) for tensor in trace.tensors]
    factor = policy.published_memory_factor if behaviour.copy_memory == "published" else 1
    memory = ContiguousMemory(
        pages,
        system.gpu.memory // page * factor,
        page,
        *pools,
        rules=[_RULES.get(place) for place in places],
        copy_rate=lambda count, place, leaves: transfers.copy_rate(job.gpu, count, place, leaves=leaves),
        recalls=behaviour.running_tensors == "pinned",
    )
    for tensor in trace.tensors:
        if tensor.persistent:
            memory.place(tensor.id, Location.GPU)
    buffer = max((pages[i] for i, place in enumerate(places) if place is Place.BUFFER), default=0)
    if buffer and not memory.reserve(buffer, first_fit_left):
        raise UnsupportedError(
            f"policy '{policy.name}': no room for scratch space of {format_bytes(buffer * page)} beside the "
            f"persistent tensors of '{trace.model}'"
        )
    return memory


class ContiguousRun(JobRun):
    """A job whose kernels wait until every tensor that they use is on the GPU as a whole."""

    _memory: ContiguousMemory

    def __init__(
        self,
        number: int,
        job: Job,
        executed: Trace,
        memory: ContiguousMemory,
        policy: Policy,
        plan: MigrationPlan | None,
        machine: Machine,
    ) -> None:
        super().__init__(number, job, executed, memory, policy, plan, machine)
        trace = job.trace
        fetches_weights = machine.behaviour.absent_weights == "fetched"
        waited_for = {
            tensor.id
            for tensor in trace.tensors
            if memory.needs_space(tensor.id) and (fetches_weights or not tensor.persistent)
        }
        self._tensors = [
            tuple(tensor for tensor in policy.allocation_order(kernel) if tensor in waited_for)
            for kernel in trace.kernels
        ]
        self._needed = [frozenset(tensors) for tensors in self._tensors]
        for kernel, needed in zip(trace.kernels, self._needed, strict=True):
            forgotten = waited_for.intersection(kernel.tensors) - needed
            if forgotten:
                raise PolicyError(
                    f"policy '{policy.name}', kernel {kernel.id}: allocation_order leaves out tensor "
                    f"'{trace.tensors[min(forgotten)].name}'; allowed: all tensors of the kernel"
                )
        self._dying = released_after(trace)
        self._demanded: dict[int, StallReason] = {}
        self._makes_room = type(policy).on_out_of_memory is not Policy.on_out_of_memory

    def _begin(self, iteration: int, kernel: Kernel, moves: Iterable[PlannedMove]) -> None:
        super()._begin(iteration, kernel, moves)
        self._memory.settle()

    def _finish(self, kernel: Kernel) -> None:
        self._migrator.release(self._dying[kernel.id])
        self._memory.settle()
        self._react_at_end(kernel)

    def _is_resident(self) -> bool:
        return not self._memory.awaited and self._has_arrived()

    def _has_arrived(self) -> bool:
        return all(map(self._memory.is_usable, self._memory.needed))

    def _fetch(self, execution: Execution, waits: WaitLog) -> Generator[Event, Any, None]:
        """Ask for what is missing, and again for what leaves meanwhile, until all is there."""
        machine, tensors = self._machine, self._tensors[execution.kernel.id]
        if self._memory.awaited:
            yield from self._synchronize(waits)
        self._demanded.clear()
        self._demand(tensors)
        self._make_room()
        self._transfers.changed()
        since, reason = machine.now, self._reason()

        def step() -> bool:
            nonlocal since, reason
            waits.add(reason, machine.now - since)
            self._demand(tensors)
            self._make_room()
            since, reason = machine.now, self._reason()
            return self._has_arrived()

        if not self._has_arrived():
            yield machine.clockwork.wait(step, self._describe_wait)

    def _demand(self, tensors: Collection[int]) -> None:
        """Ask for tensors that are away and remember from where."""
        memory = self._memory
        for tensor in tensors:
            if memory.flash[tensor]:
                self._demanded.setdefault(tensor, StallReason.FAULT_FLASH)
            elif memory.host[tensor]:
                self._demanded.setdefault(tensor, StallReason.FAULT_HOST)
            memory.demand(tensor)

    def _make_room(self) -> None:
        """Let the policy act when the kernel waits for space and nothing under way will free any.

        Prefetches that wait for space, too, are given up then: the tensors are fetched on demand.
        """
        memory, kernel = self._memory, self._view.kernel
        if not self._makes_room or memory.queues.busy or not memory.waiting:
            return
        memory.withdraw_requests(memory.needed)
        if memory.waiting and not memory.queues.busy:
            self._migrator.perform(kernel, self._ask(self._policy.on_out_of_memory))
            memory.settle()
            self._transfers.changed()

    def _reason(self) -> StallReason:
        """Return what the kernel waits for: space first, then what it demanded, then what is late."""
        memory = self._memory
        missing = [tensor for tensor in memory.needed if not memory.is_usable(tensor)]
        if any(tensor in memory.waiting for tensor in missing):
            return StallReason.ALLOCATION
        demanded = {self._demanded[tensor] for tensor in missing if tensor in self._demanded}
        for reason in (StallReason.FAULT_FLASH, StallReason.FAULT_HOST):
            if reason in demanded:
                return reason
        return StallReason.LATE_PREFETCH

    def _end(self, execution: Execution, extra: int) -> int:
        return self._machine.now + execution.duration

    def _describe_wait(self) -> UnsupportedError:
        """Say who waits for space for ever, and what holds the memory."""
        memory, trace, page = self._memory, self.job.trace, self._memory.page_bytes
        kernel = trace.kernels[self._view.kernel]
        first = trace.tensors[memory.waiting[0]] if memory.waiting else trace.tensors[kernel.tensors[0]]
        blocks = sorted(memory.space.blocks.items(), key=lambda item: -item[1].pages)
        names = (("scratch space" if i < 0 else trace.tensors[i].name) for i, _ in blocks[:_SHOWN_HOLDERS])
        holders = [
            f"{name} {format_bytes(block.pages * page)}"
            for name, (_, block) in zip(names, blocks, strict=False)
        ]
        others = f" and {len(blocks) - len(holders)} more" if len(blocks) > len(holders) else ""
        return UnsupportedError(
            f"policy '{self._policy.name}', kernel {kernel.id} ({kernel.name}) of '{trace.model}': tensor "
            f"'{first.name}' needs {format_bytes(memory.pages[first.id] * page)} of consecutive GPU memory; "
            f"the largest hole has {format_bytes(memory.largest_hole_pages * page)}, "
            f"{format_bytes(memory.space.free_pages * page)} are free, and nothing under way frees more "
            f"(held by {', '.join(holders)}{others})"
        )
