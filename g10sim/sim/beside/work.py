"""Work of one job that runs beside the kernels of its GPU: kernels on the CPU, collectives, gradients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any

from simpy import Event

from g10sim.records import EXCHANGED_COLUMN, CpuRecord
from g10sim.sim.accounts.owners import WaitLog
from g10sim.sim.beside.collectives import Collectives
from g10sim.sim.beside.cpu import CpuKernels
from g10sim.sim.beside.stores import HostStores
from g10sim.sim.context import JobContext
from g10sim.sim.stages.waiting import Wait, Waiting, for_collectives, for_cpu, for_gradients
from g10sim.trace.model import Device, Kernel


class WorkBeside:
    """Launches what does not run on the GPU, and lets kernels wait for it; what a trace lacks costs nothing.

    ``release`` is told of the tensors that die with a kernel, ``dying`` by kernel. Collectives that find no
    room ask ``make_room`` for some.
    """

    def __init__(
        self,
        context: JobContext,
        dying: Sequence[Sequence[int]],
        release: Callable[[Iterable[int]], None],
        stores: HostStores | None,
        make_room: Callable[[], None] | None,
    ) -> None:
        trace, clock, exchange = context.job.trace, context.fabric.clock, context.exchange
        self._gpu, self._peers = context.gpu, context.peers
        self._has_cpu = context.machine.system.cpu is not None
        self._collectives = self._cpu = None
        if trace.link_kernels:
            self._collectives = Collectives(context, dying, release, make_room)
        if trace.cpu_kernels:
            self._cpu = CpuKernels(context, dying, release, stores, self._collectives)
        self._wait_for_cpu = None if self._cpu is None else for_cpu(self._cpu, clock)
        first = None if self._collectives is None else for_collectives(self._collectives, clock)
        self._waits: list[Wait] = [wait for wait in (first, self._wait_for_cpu) if wait is not None]
        self._wait_for_gradients = None if exchange is None else for_gradients(exchange, clock)
        self.may_wait = bool(self._waits) or exchange is not None
        """Whether there is anything that kernels may wait for."""

    def let(self, iteration: int, kernel: Kernel, waits: WaitLog) -> Waiting:
        """Wait until a kernel may start, or be launched."""
        for wait in self._waits:
            yield from wait(iteration, kernel, waits)
        if self._wait_for_gradients is not None and kernel.device is Device.GPU:
            yield from self._wait_for_gradients(iteration, kernel, waits)

    def let_again(self, iteration: int, kernel: Kernel, waits: WaitLog) -> Waiting:
        """Wait until a kernel may run once more."""
        if self._wait_for_cpu is not None:
            yield from self._wait_for_cpu(iteration, kernel, waits)

    def launch(self, iteration: int, kernel: Kernel) -> None:
        """Launch a kernel on the CPU, or a collective."""
        if self._collectives is not None and kernel.device is Device.LINKS:
            after = () if self._cpu is None else self._cpu.ends_of(kernel.tensors)
            self._collectives.launch(iteration, kernel, after)
        elif self._cpu is not None:
            self._cpu.launch(iteration, kernel)

    def drain(self) -> Generator[Event, Any, None]:
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

    def since(self, before: tuple[int, int, int]) -> tuple[CpuRecord | None, Mapping[str, int]]:
        """Return what the CPU, if there is one, has done since earlier figures, and what was sent."""
        busy, fetched, sent = (now - then for now, then in zip(self.figures(), before, strict=True))
        exchanged = {} if self._collectives is None else {EXCHANGED_COLUMN: sent}
        return CpuRecord(busy, fetched) if self._has_cpu else None, exchanged
