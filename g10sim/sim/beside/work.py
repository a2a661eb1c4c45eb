"""Work of one job that runs next to the kernels of its GPU: kernels on the CPU, collectives, gradients."""

from __future__ import annotations

from collections.abc import Hashable

from simpy import Event

from g10sim.records import EXCHANGED_COLUMN, CpuRecord, StallReason
from g10sim.sim.accounts.ledger import Beside
from g10sim.sim.accounts.owners import WaitLog
from g10sim.sim.beside.collectives import Collectives, MakeRoom, Release
from g10sim.sim.beside.cpu import CpuKernels, HostStores
from g10sim.sim.context import JobContext
from g10sim.sim.fabric import Process
from g10sim.trace.model import Device, Kernel


class WorkBeside:
    """Launches what does not run on the GPU, and lets kernels wait for it; what a trace lacks costs nothing.

    ``release`` frees what dies with a kernel. Collectives that find no room ask ``make_room`` for some.
    """

    def __init__(
        self, context: JobContext, release: Release, stores: HostStores | None, make_room: MakeRoom
    ) -> None:
        trace, self._clock, self._exchange = context.job.trace, context.fabric.clock, context.exchange
        self._gpu, self._peers = context.gpu, context.peers
        self._has_cpu = context.machine.system.cpu is not None
        self._collectives = self._cpu = None
        if trace.link_kernels:
            self._collectives = Collectives(context, release, make_room)
        if stores is not None:
            self._cpu = CpuKernels(context, release, stores, self._collectives)
        self.may_wait = any(part is not None for part in (self._collectives, self._cpu, self._exchange))
        """True if there is anything that kernels may wait for."""

    def let(self, iteration: int, kernel: Kernel, waits: WaitLog) -> Process[None]:
        """Wait until nothing keeps a kernel from its start or launch.

        No collective under way uses a tensor of it, kernels on the CPU have ended, and the gradients that it
        reads have come from the other replicas.
        """
        collectives = self._collectives
        while collectives is not None and (blocker := collectives.blocker(kernel)) is not None:
            collectives.demand()
            for event in blocker.after:
                yield from self._timed(event, StallReason.CPU, waits)
            yield from self._timed(blocker.ready, StallReason.LATE_PREFETCH, waits)
            yield from self._timed(blocker.ended, StallReason.BARRIER, waits)
            collectives.go_on()
        yield from self.let_again(kernel, waits)
        if self._exchange is not None and kernel.device is Device.GPU:
            yield from self._timed(self._exchange.arrival(iteration, kernel.id), StallReason.BARRIER, waits)

    def let_again(self, kernel: Kernel, waits: WaitLog) -> Process[None]:
        """Wait until kernels on the CPU have ended that keep a kernel from running once more."""
        if self._cpu is not None and kernel.device is not Device.LINKS and (one := self._cpu.blocker(kernel)):
            yield from self._timed(one.ended, StallReason.CPU, waits)

    def _timed(self, event: Event, reason: StallReason, waits: WaitLog) -> Process[None]:
        """Wait for an event, and log the time."""
        since = self._clock.cycle
        yield event
        waits.add(reason, self._clock.cycle - since)

    def launch(self, iteration: int, kernel: Kernel) -> None:
        """Launch a kernel on the CPU, or a collective."""
        if self._collectives is not None and kernel.device is Device.LINKS:
            after = () if self._cpu is None else self._cpu.ends_of(kernel.tensors)
            self._collectives.launch(iteration, kernel, after)
        elif self._cpu is not None:
            self._cpu.launch(iteration, kernel)

    def drain(self) -> Process[None]:
        """SimPy process: wait until all has ended."""
        for part in (self._cpu, self._collectives):
            if part is not None:
                yield from part.drain()

    def state(self) -> Hashable:
        """Return what was launched and has not ended."""
        return tuple(part.state() for part in (self._cpu, self._collectives) if part is not None)

    def figures(self) -> tuple[int, int, int]:
        """Return cycles computed on the CPU, bytes fetched for it, and bytes that the GPU sent, so far."""
        busy, fetched = (0, 0) if self._cpu is None else (self._cpu.busy_cycles, self._cpu.fetched_bytes)
        return busy, fetched, 0 if self._peers is None else self._peers.sent_bytes[self._gpu]

    def since(self, before: tuple[int, int, int]) -> Beside:
        """Return what the CPU, if there is one, has done since earlier figures, and what was sent."""
        busy, fetched, sent = (now - then for now, then in zip(self.figures(), before, strict=True))
        exchanged = {} if self._collectives is None else {EXCHANGED_COLUMN: sent}
        return CpuRecord(busy, fetched) if self._has_cpu else None, exchanged
