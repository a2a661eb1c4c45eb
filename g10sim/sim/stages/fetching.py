"""Arrival of a kernel's data: what is missing is demanded and waited for, and every cycle has a reason."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from simpy import Event

from g10sim.errors import G10SimError
from g10sim.records import StallReason
from g10sim.sim.accounts.ledger import Execution
from g10sim.sim.accounts.owners import WaitLog, reason_for_waiting
from g10sim.sim.context import JobContext
from g10sim.sim.stages.working_set import free_room
from g10sim.sim.view import View
from g10sim.units import format_bytes


class Arrival:
    """The wait of a kernel for tensors: its time is logged with what was waited for since the last look."""

    def __init__(self, fetching: Fetching, tensors: Sequence[int], waits: WaitLog) -> None:
        self._fetching, self._tensors, self._waits = fetching, tensors, waits
        self._since, self._reason = fetching.clock.cycle, fetching.reason()

    def is_over(self) -> bool:
        """Return whether the tensors have come."""
        now = self._fetching.clock.cycle
        self._waits.add(self._reason, now - self._since)
        if self._fetching.have_come(self._tensors):
            return True
        self._since, self._reason = now, self._fetching.reason()
        return False


class Fetching:
    """Brings the data of one job's kernels to the GPU, page by page.

    ``tensors`` are those that each kernel waits for.
    """

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

    def fetch(self, execution: Execution, waits: WaitLog) -> Generator[Event, Any, None]:
        """Demand what is missing and wait until it is there."""
        memory, tensors = self._memory, self.tensors[execution.kernel]
        if memory.awaits:
            yield from self.synchronize(waits)
        with self._fabric.alter(self._number):
            for tensor in tensors:
                if memory.idle[tensor] < memory.sizes[tensor]:
                    self._transfers.demand(self._number, tensor)
            memory.traffic.faults += execution.inputs.faulting + execution.outputs.faulting
        arrival = Arrival(self, tensors, waits)
        if not self.have_come(tensors):
            yield self._fabric.until(arrival.is_over, self.describe_wait, self._number, is_alone=True)

    def have_come(self, tensors: Sequence[int]) -> bool:
        """Return whether all that was demanded is there, and some tensors are not in transfer."""
        if self._memory.queues.faulting:
            return False
        moving = self._memory.moving
        # Copies end in about the order of their requests, and this is asked at every change.
        for tensor in reversed(tensors):  # noqa: SIM110
            if moving[tensor]:
                return False
        return True

    def synchronize(self, waits: WaitLog) -> Generator[Event, Any, None]:
        """Wait for the evictions and prefetches that the policy wants done."""
        since = self.clock.cycle
        if not self._memory.has_joined:
            yield self._fabric.until(self._has_joined, self.describe_wait)
        waits.add(StallReason.SYNCHRONIZATION, self.clock.cycle - since)
        with self._fabric.alter(self._number):
            self._memory.forget_awaited()

    def join(self, execution: Execution) -> Generator[Event, Any, None]:
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
        return (
            f"kernel {kernel.id} ({kernel.name}) waits indefinitely for "
            f"{format_bytes(missing * memory.page_bytes)}: nothing moves any more; {free_room(memory)}"
        )
