"""Data of a kernel: what is missing is demanded and waited for, or used where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from g10sim.errors import G10SimError
from g10sim.hardware.links import Message
from g10sim.records import AccessRecord, Location, StallReason
from g10sim.sim.accounts.ledger import Execution
from g10sim.sim.accounts.owners import WaitLog, reason_for_waiting
from g10sim.sim.context import JobContext
from g10sim.sim.fabric import Process
from g10sim.sim.stages.working_set import endless_wait
from g10sim.sim.view import View
from g10sim.trace.model import Kernel


class Fetching:
    """Brings the data of one job's kernels to the GPU, page by page.

    ``tensors`` are those that each kernel waits for.
    """

    _waits_alone = True
    """True if only the memory and the links of its job can end a wait."""
    _wanted: Sequence[int]
    _waits: WaitLog
    _since: int
    _reason = StallReason.FIRST_TOUCH

    def __init__(self, context: JobContext, view: View, tensors: Sequence[Sequence[int]]) -> None:
        self.tensors = tensors
        self._context, self._view = context, view
        self._number, self._memory = context.number, context.memory
        self._fabric, self._transfers = context.fabric, context.fabric.transfers
        self.clock = context.fabric.clock
        self.make_room: Callable[[], None] | None = None
        """Lets the policy act where nothing under way frees memory, if it can."""

    def has_all(self) -> bool:
        """Return whether the kernel that is held has all its data, and waits for nothing else."""
        memory = self._memory
        if memory.queues.faulting or memory.awaits:
            return False
        if memory.in_place:
            return all(memory.is_usable(tensor) for tensor in memory.needed)
        idle, sizes = memory.idle, memory.sizes
        for tensor in memory.needed:  # noqa: SIM110  # as each kernel asks: without a generator
            if idle[tensor] != sizes[tensor]:
                return False
        return True

    def fetch(self, execution: Execution, waits: WaitLog) -> Process[None]:
        """Demand what is missing and wait until it is there, each cycle for what was waited for before it."""
        if self._memory.awaits:
            yield from self.synchronize(waits)
        self._wanted, self._waits = self.tensors[execution.kernel], waits
        self._ask(execution)
        self._since = self.clock.cycle
        if not self._has_come():
            look, stuck = self._looks_again, self.describe_wait
            yield self._fabric.until(look, stuck, self._number, is_alone=self._waits_alone)

    def _ask(self, execution: Execution) -> None:
        """Demand what a kernel lacks."""
        memory = self._memory
        with self._fabric.alter(self._number):
            for tensor in self._wanted:
                if memory.idle[tensor] < memory.sizes[tensor]:
                    self._transfers.demand(self._number, tensor)
            memory.traffic.faults += execution.inputs.faulting + execution.outputs.faulting

    def _looks_again(self) -> bool:
        """Log the time since the last look; return whether the kernel's tensors have come."""
        now = self.clock.cycle
        self._waits.add(self._reason, now - self._since)
        if self._has_come():
            return True
        self._since, self._reason = now, self.reason()
        return False

    def _has_come(self) -> bool:
        """Return whether all that was demanded is there, and the kernel's tensors are not in transfer."""
        if self._memory.queues.faulting:
            return False
        moving = self._memory.moving
        # Copies end in about the order of their requests, and this is asked at every change.
        for tensor in reversed(self._wanted):  # noqa: SIM110
            if moving[tensor]:
                return False
        return True

    def synchronize(self, waits: WaitLog) -> Process[None]:
        """Wait for the evictions and prefetches that the policy wants done."""
        since = self.clock.cycle
        if not self._memory.has_joined:
            yield self._fabric.until(self._has_joined, self.describe_wait)
        waits.add(StallReason.SYNCHRONIZATION, self.clock.cycle - since)
        with self._fabric.alter(self._number):
            self._memory.forget_awaited()

    def join(self, execution: Execution) -> Process[None]:
        """Let a kernel that has computed end only after the transfers that the policy wants done."""
        since, waits = self.clock.cycle, WaitLog(execution.stalls)
        yield from self.synchronize(waits)
        stall = sum(cycles for _, cycles in execution.stalls) + self.clock.cycle - since
        execution.stalls = waits.charge(stall, StallReason.SYNCHRONIZATION)

    def _has_joined(self) -> bool:
        return self._memory.has_joined

    def reason(self) -> StallReason:
        """Return what the kernel waits for now."""
        return self._transfers.bottleneck(self._number) or reason_for_waiting(self._memory)

    def end(self, execution: Execution, extra: int) -> int:
        """Return when a kernel ends whose data are there, with the cycles that faults add."""
        if self._context.behaviour.compute_overlap == "while_arriving":
            return max(execution.start + execution.duration + extra, self.clock.cycle)
        return self.clock.cycle + execution.duration + extra

    def describe_wait(self) -> str | G10SimError:
        """Describe a wait without end."""
        memory, context = self._memory, self._context
        kernel = context.job.trace.kernels[self._view.kernel]
        missing = sum(memory.moving[place] for place in context.addresses.trace.kernels[kernel.id].tensors)
        return endless_wait(memory, kernel, missing)


class InPlaceAccess:
    """Accesses of one job's kernels.

    A kernel reads the bytes of an input as often as its trace says, and writes those of an output once, each
    over the links between its GPU and the tier. It ends when it has computed and all of that is done.
    """

    def __init__(self, context: JobContext) -> None:
        self._context, self._job = context, context.number
        self._memory, self._fabric = context.memory, context.fabric

    def begin(self, kernel: int) -> list[Message]:
        """Start what a kernel reads and writes where it lies; returns what is on its way."""
        transfers, traffic, now = self._context.fluid, self._memory.traffic, self._fabric.clock.cycle
        found = list(self._accesses(self._context.job.trace.kernels[kernel]))
        messages: list[Message] = []
        with self._fabric.alter(self._job):
            for tier, read, written in found:
                traffic.read_in_place += read
                traffic.written_in_place += written
                for size, inward in ((read, True), (written, False)):
                    if size:
                        messages.append(transfers.access(self._job, tier, size, inward=inward))
        self._open, self._since = found, now
        return messages

    def end(self, kernel: int) -> None:
        """Note that a kernel has done all that it began."""
        context, now = self._context, self._fabric.clock.cycle
        for tier, *sizes in self._open:
            access = AccessRecord(context.gpu, self._job, kernel, tier, self._since, now, *sizes)
            context.machine.recorder.accessed(access)

    def _accesses(self, kernel: Kernel) -> Iterator[tuple[Location, int, int]]:
        """Yield the tiers that a kernel uses tensors in, and the bytes that it reads and writes there."""
        page = self._memory.page_bytes
        for tier in sorted({*self._memory.in_place.values()}):
            read = sum(self._used_pages(tensor, tier) * kernel.reads_of(tensor) for tensor in kernel.inputs)
            written = sum(self._used_pages(tensor, tier) for tensor in kernel.outputs)
            if read or written:
                yield tier, read * page, written * page

    def _used_pages(self, tensor: int, tier: Location) -> int:
        """Return the pages of a tensor that the kernel uses where they lie in a tier."""
        used, pages = self._memory.in_place, self._memory.pages[tier]
        places = self._context.addresses.held(tensor)
        return sum([pages[place] for place in places if used.get(place) == tier])
