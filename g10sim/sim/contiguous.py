"""Jobs whose tensors move as a whole and need consecutive GPU memory."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from simpy.events import Event

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.hardware.allocators.caching import CachingPool
from g10sim.hardware.allocators.interface import Allocator
from g10sim.hardware.allocators.shared import SharedSpace
from g10sim.hardware.allocators.space import ContiguousSpace
from g10sim.hardware.contiguous import ContiguousMemory
from g10sim.hardware.direct import DirectTransfers
from g10sim.hardware.memory import Pool
from g10sim.hardware.placement import (
    FitRule,
    PlannedAddresses,
    best_fit,
    first_fit_left,
    first_fit_right,
    last_hole_right,
    worst_fit,
)
from g10sim.hardware.shared import Frames
from g10sim.policies.base import Place, PlannedPlace, Policy
from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location, StallReason
from g10sim.sim.accounts import WaitLog
from g10sim.sim.executor import JobRun, released_after
from g10sim.sim.ledger import Execution
from g10sim.sim.machine import Machine
from g10sim.trace.model import Kernel, Tensor, Trace
from g10sim.trace.workload import Job
from g10sim.units import format_bytes

_RULES: dict[Place, FitRule] = {
    Place.LEFT: first_fit_left,
    Place.RIGHT: first_fit_right,
    Place.BEST: best_fit,
    Place.WORST: worst_fit,
    Place.LAST: last_hole_right,
}
_SHOWN_HOLDERS = 4


def simulated_job(job: Job, behaviour: BehaviourSpec) -> Job:
    """Return the job with as many iterations as are simulated."""
    return replace(job, iterations=1) if behaviour.copy_iterations == "first" else job


def contiguous_memory(
    number: int,
    job: Job,
    plan: MigrationPlan | None,
    policy: Policy,
    system: SystemSpec,
    behaviour: BehaviourSpec,
    transfers: DirectTransfers,
    pools: tuple[Pool, Pool],
    frames: Frames | None = None,
) -> ContiguousMemory:
    """Return a job's GPU memory with its persistent tensors in it, those on flash that find no room.

    ``pools`` are host memory and flash. ``frames`` are the pages of a GPU that jobs share: each has addresses
    of its own over them, and its persistent tensors move in when it is let on. Raises PolicyError when the
    policy places too few tensors or at impossible addresses, UnsupportedError when scratch space has no room.
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
    space = _space(policy, system.gpu.memory // page * factor, page)
    if frames is not None:
        space = SharedSpace(space, frames)
    memory = ContiguousMemory(
        pages,
        page,
        *pools,
        space=space,
        rules=[
            _rule(place, policy, tensor, page) for place, tensor in zip(places, trace.tensors, strict=True)
        ],
        copy_rate=lambda count, place, leaves: transfers.copy_rate(job.gpu, count, place, leaves=leaves),
        recalls=behaviour.running_tensors == "pinned",
        buffers=transfers.host_buffers(number, keeps=policy.keeps_host_buffers),
        returns_between_kernels=policy.returns_space == "between_kernels",
        frames=frames,
    )
    memory.scratch_pages = max((pages[i] for i, at in enumerate(places) if at is Place.BUFFER), default=0)
    if frames is None:
        _move_in(memory, trace, policy)
    return memory


def _move_in(memory: ContiguousMemory, trace: Trace, policy: Policy) -> None:
    """Put persistent tensors into GPU memory as far as they fit, and scratch space beside them.

    Raises UnsupportedError when that does not fit.
    """
    for tensor in trace.tensors:
        if tensor.persistent:
            memory.place(tensor.id, Location.GPU)
    scratch, page = memory.scratch_pages, memory.page_bytes
    if scratch and not memory.reserve(scratch, first_fit_left):
        raise UnsupportedError(
            f"policy '{policy.name}': no room for scratch space of {format_bytes(scratch * page)} beside the "
            f"persistent tensors of '{trace.model}'"
        )


def _space(policy: Policy, capacity_pages: int, page_bytes: int) -> Allocator:
    if policy.caching_pool is None:
        return ContiguousSpace(capacity_pages)
    return CachingPool(capacity_pages, page_bytes, policy.caching_pool)


def _rule(place: Place | PlannedPlace, policy: Policy, tensor: Tensor, page_bytes: int) -> FitRule | None:
    if isinstance(place, Place):
        return _RULES.get(place)
    addresses = place.addresses_bytes
    wrong = [address for address in addresses if address < 0 or address % page_bytes]
    if wrong or not addresses or policy.caching_pool is not None:
        found = f"address {wrong[0]}" if wrong else f"{len(addresses)} planned addresses"
        raise PolicyError(
            f"policy '{policy.name}': places puts tensor '{tensor.name}' at {found}; allowed: one or more "
            f"multiples of the page size, {page_bytes}, without a caching pool"
        )
    fallback = None if place.fallback is None else _RULES.get(place.fallback)
    return PlannedAddresses([address // page_bytes for address in addresses], fallback)


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
        transfers: DirectTransfers,
    ) -> None:
        super().__init__(number, job, executed, memory, policy, plan, machine)
        trace, self._direct = job.trace, transfers
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

    def _occupy(self) -> Generator[Event, Any, None]:
        shares = self._gpu.working_sets is not None
        if shares:
            _move_in(self._memory, self.job.trace, self._policy)
        yield from super()._occupy()
        if shares:
            self._memory.give_up_reserved()
            self._make_way()

    def _begin(self, iteration: int, kernel: Kernel, moves: Iterable[PlannedMove]) -> None:
        super()._begin(iteration, kernel, moves)
        self._memory.settle()

    def _finish(self, kernel: Kernel) -> None:
        self._migrator.release(self._dying[kernel.id])
        self._memory.end_kernel(kernel.id)
        self._react_at_end(kernel)
        if self._gpu.working_sets is not None:
            self._make_way()

    def _reserve(self, kernel: Kernel, waits: WaitLog) -> Generator[Event, Any, None]:
        """Ask for nothing: no other job takes the space of this one's tensors away."""
        yield from ()

    def _give_up_working_set(self, kernel: Kernel) -> None:
        """Give up nothing: space is given back tensor by tensor."""

    def _make_way(self) -> None:
        """Let other jobs on the GPU use what this one has given back."""
        if self._direct.space_freed():
            self._machine.clockwork.rearm()

    def _is_resident(self) -> bool:
        return not self._memory.awaits and self._has_arrived()

    def _has_arrived(self) -> bool:
        return all(map(self._memory.is_usable, self._memory.needed))

    def _has_joined(self) -> bool:
        if not self._memory.has_joined:
            self._make_room()
        return super()._has_joined()

    def _fetch(self, execution: Execution, waits: WaitLog) -> Generator[Event, Any, None]:
        """Ask for what is missing, and again for what leaves meanwhile, until all is there."""
        machine, tensors = self._machine, self._tensors[execution.kernel.id]
        if self._memory.awaits:
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
        """Say who waits for ever: for space, and what holds it, or for copies that find no room."""
        memory, trace, page = self._memory, self.job.trace, self._memory.page_bytes
        kernel = trace.kernels[self._view.kernel]
        where = f"policy '{self._policy.name}', kernel {kernel.id} ({kernel.name}) of '{trace.model}'"
        if not memory.waiting:
            host, flash = (pool.free * page for pool in (memory.host_pool, memory.flash_pool))
            return UnsupportedError(
                f"{where}: waits for copies that cannot go on; host memory has {format_bytes(host)} free, "
                f"the SSD {format_bytes(flash)}"
            )
        first = trace.tensors[memory.waiting[0]]
        return UnsupportedError(
            f"{where}: tensor '{first.name}' needs {format_bytes(memory.pages[first.id] * page)} of "
            f"consecutive GPU memory; the largest hole has {format_bytes(memory.largest_hole_pages * page)}, "
            f"{format_bytes(memory.space.free_pages * page)} are free, and nothing under way frees more "
            f"(held by {self._holders()})"
        )

    def _holders(self) -> str:
        """Name the largest blocks of memory and how many more there are."""
        tensors, page = self.job.trace.tensors, self._memory.page_bytes
        blocks = sorted(self._memory.space.blocks.items(), key=lambda item: -item[1].pages)
        names = ("scratch space" if owner < 0 else tensors[owner].name for owner, _ in blocks)
        shown = [
            f"{name} {format_bytes(block.pages * page)}"
            for name, (_, block) in islice(zip(names, blocks, strict=True), _SHOWN_HOLDERS)
        ]
        more = f" and {len(blocks) - len(shown)} more" if len(blocks) > len(shown) else ""
        others = self._memory.pages_of_others
        beside = f"; other jobs have {format_bytes(others * page)}" if others else ""
        return ", ".join(shown) + more + beside
