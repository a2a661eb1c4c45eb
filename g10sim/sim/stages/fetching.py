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


class Fetching:
    """Brings the data of one job's kernels to the GPU, page by page.

    ``tensors`` are those that each kernel waits for.
    """

    def __init__(self, context: JobContext, view: View, tensors: Sequence[Sequence[int]]) -> None:
        self.tensors = tensors
        self._context, self._view = context, view
        self._number, self._memory = context.number, context.memory
        self._fabric, self._transfers = context.fabric, context.fabric.transfers
        self._clock = context.fabric.clock
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
        return all(idle[tensor] == sizes[tensor] for tensor in memory.needed)

    def fetch(self, execution: Execution, waits: WaitLog) -> Generator[Event, Any, None]:
        """Demand what is missing and wait until it is there."""
        memory, tensors = self._memory, self.tensors[execution.kernel.id]
        if memory.awaits:
            yield from self.synchronize(waits)
        with self._fabric.alter(self._number):
            for tensor in tensors:
                if memory.idle[tensor] < memory.sizes[tensor]:
                    self._transfers.demand(self._number, tensor)
            memory.traffic.faults += execution.faulting_pages
        clock, moving = self._clock, memory.moving
        since, reason = clock.cycle, self._reason()
        latest = tensors[::-1]

        def has_arrived() -> bool:
            # Copies end in about the order of their requests: the last one is looked at first.
            return not memory.queues.faulting and not any(map(moving.__getitem__, latest))

        def has_ended() -> bool:
            nonlocal since, reason
            now = clock.cycle
            waits.add(reason, now - since)
            since = now
            if has_arrived():
                return True
            reason = self._reason()
            return False

        if not has_arrived():
            yield self._fabric.until(has_ended, self.describe_wait, self._number, is_alone=True)

    def synchronize(self, waits: WaitLog) -> Generator[Event, Any, None]:
        """Wait for the evictions and prefetches that the policy wants done."""
        since = self._clock.cycle
        if not self._memory.has_joined:
            yield self._fabric.until(self._has_joined, self.describe_wait)
        waits.add(StallReason.SYNCHRONIZATION, self._clock.cycle - since)
        with self._fabric.alter(self._number):
            self._memory.forget_awaited()

    def join(self, execution: Execution) -> Generator[Event, Any, None]:
        """Let a kernel that has computed end only after the transfers that the policy wants done."""
        since, waits = self._clock.cycle, WaitLog(execution.stalls)
        yield from self.synchronize(waits)
        stall = sum(cycles for _, cycles in execution.stalls) + self._clock.cycle - since
        execution.stalls = waits.charge(stall, StallReason.SYNCHRONIZATION)

    def _has_joined(self) -> bool:
        return self._memory.has_joined

    def _reason(self) -> StallReason:
        return self._transfers.bottleneck(self._number) or reason_for_waiting(self._memory)

    def end(self, execution: Execution, extra: int) -> int:
        """Return when a kernel ends whose data are there, with the cycles that faults add."""
        if self._context.behaviour.compute_overlap == "while_arriving":
            return max(execution.start + execution.duration + extra, self._clock.cycle)
        return self._clock.cycle + execution.duration + extra

    def describe_wait(self) -> str | G10SimError:
        """Describe a wait without end."""
        memory, context = self._memory, self._context
        kernel = context.job.trace.kernels[self._view.kernel]
        missing = sum(memory.moving[place] for place in context.addresses.trace.kernels[kernel.id].tensors)
        return (
            f"kernel {kernel.id} ({kernel.name}) waits indefinitely for "
            f"{format_bytes(missing * memory.page_bytes)}: nothing moves any more; {free_room(memory)}"
        )
