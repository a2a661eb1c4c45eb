"""Kernels on the CPU, which a job launches next to those of its GPU, and copies from host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from simpy import Event

from g10sim.errors import InvariantError
from g10sim.hardware.links import Message
from g10sim.records import Location
from g10sim.sim.beside.collectives import Collectives, Launched, Launches, Release
from g10sim.sim.context import JobContext
from g10sim.sim.fabric import Process
from g10sim.sim.stages.working_set import endless_wait
from g10sim.trace.model import Kernel
from g10sim.units import format_bytes


class HostStores:
    """Sends tensors of one job from the memory of its GPU's socket to other tiers, as fast as links allow.

    Pages count in host memory until all of them have arrived. They stay there if a kernel on the CPU claims
    the tensor before that, or it has left for the GPU.
    """

    def __init__(self, context: JobContext) -> None:
        self._number, self._gpu = context.number, context.gpu
        self._memory, self._claims = context.memory, context.claims
        self._fabric, self._transfers = context.fabric, context.fluid
        self._host = context.machine.tiers["host"]
        self._under_way: dict[int, Event] = {}
        self._copies: dict[int, Location] = {}

    def start(self, tensor: int, target: Location, *, is_clean: bool = False) -> None:
        """Send what lies of a tensor in host memory to a tier.

        Pages of one that is clean are there at once if the whole tensor was stored there before.
        """
        memory = self._memory
        count = memory.pages[self._host][tensor]
        if not count or tensor in self._under_way:
            return
        if is_clean and self._copies.get(tensor) == target:
            memory.store_in(target, tensor, min(count, memory.pools[target].free), self._host)
            return
        links = self._transfers.topology.to_host(self._gpu, memory.pools[target].tier, back=True)
        if not links:
            self._arrive(tensor, target, count)
            return
        self._under_way[tensor] = self._fabric.clock.event()
        memory.begin_store(tensor)
        message = self._transfers.send(links, count * memory.page_bytes)
        self._fabric.clock.process(self._carry(tensor, target, count, message))

    def forget(self, tensor: int) -> None:
        """Note that a tensor's contents are no more: those to come were not stored."""
        self._copies.pop(tensor, None)

    def end_of(self, tensors: Iterable[int]) -> Event | None:
        """Return the end of a copy of some tensors that is under way; None where none is."""
        return next((self._under_way[tensor] for tensor in tensors if tensor in self._under_way), None)

    def _carry(self, tensor: int, target: Location, count: int, message: Message) -> Process[None]:
        """SimPy process: one copy."""
        size = format_bytes(count * self._memory.page_bytes)
        stuck = partial("{} wait indefinitely to leave host memory: nothing moves any more".format, size)
        yield self._fabric.until(lambda: message.is_done, stuck)
        with self._fabric.alter(self._number):
            ended = self._under_way.pop(tensor)
            self._memory.end_store(tensor)
            if tensor not in self._claims:
                self._arrive(tensor, target, count)
        ended.succeed()

    def _arrive(self, tensor: int, target: Location, count: int) -> None:
        memory = self._memory
        count = min(count, memory.pages[self._host][tensor], memory.pools[target].free)
        if count:
            memory.store_in(target, tensor, count, self._host)
            if memory.pages[target][tensor] == memory.sizes[tensor]:
                self._copies[tensor] = target


_ENDLESS = "a kernel on the CPU waits indefinitely for host memory: nothing moves any more"


class _Read(NamedTuple):
    """Pages on their way from another tier to host memory."""

    message: Message
    source: Location
    pages: int


class CpuKernels(Launches):
    """Kernels of one job on the CPU of its socket, one after another in the order of their launches.

    A kernel on the GPU waits for the last that uses one of its tensors, which lie in one place at a time; one
    on the CPU for its own run in the iteration before. Each begins when its data lie in host memory: what it
    reads comes there, what it writes without reading is allocated there. With unlimited memory it waits for
    nothing but the CPU. Where the policy has a number of buffers, data of as many kernels come to host memory
    one after another, and stay until ``stores`` have sent away what is to leave. Data that ``sending``
    use come once these have ended.
    """

    def __init__(
        self, context: JobContext, release: Release, stores: HostStores, sending: Collectives | None
    ) -> None:
        machine, needs, transfers = context.machine, context.policy.requirements, context.fluid
        super().__init__(context, context.claims, release, machine.recorder.cpu_kernels)
        system = machine.system
        if system.cpu is None:
            raise InvariantError("kernels on the CPU were not refused")
        self._trace, self._exchange = context.executed, context.exchange
        self._machine, self._transfers = machine, transfers
        self._clock_hz, self._spec = system.gpu.clock, system.cpu
        self._socket = transfers.topology.sockets[context.gpu]
        self._host = machine.tiers["host"]
        self._gathers, self._stores, self._collectives = not needs.unlimited_memory, stores, sending
        self._freed = deque[Event](maxlen=None if needs.unlimited_memory else needs.cpu_buffers)
        self._gathered = context.fabric.clock.past
        self._reads: dict[int, _Read] = {}
        self._busy, self._since = 0, -1
        self.fetched_bytes = 0

    @property
    def busy_cycles(self) -> int:
        """Cycles so far during which a kernel of the job computed on the CPU."""
        return self._busy + (self._fabric.clock.cycle - self._since if self._since >= 0 else 0)

    def launch(self, iteration: int, kernel: Kernel) -> None:
        """Let a kernel's data set out for host memory, and let it compute once they are there."""
        memory, claims = self._memory, self.claims
        sending = () if self._collectives is None else self._collectives.claims
        fresh = [tensor for tensor in kernel.touched if tensor not in claims and tensor not in sending]
        claims.take(kernel.touched)
        if self._gathers:
            for tensor in fresh:
                memory.cancel(tensor)
                if tensor not in kernel.inputs:
                    memory.discard(tensor)
        clock = self._fabric.clock
        before = self._pending[-1].ended if self._pending else clock.past
        ready, ended = clock.event(), clock.event()
        after = self._take_buffer(kernel, ready, ended)
        launched = Launched(kernel, frozenset(kernel.touched), after, ready, ended)
        self._pending.append(launched)
        if self._gathers and not after:
            self._gather(kernel)
        clock.process(self._run(iteration, launched, before))

    def _take_buffer(self, kernel: Kernel, ready: Event, ended: Event) -> tuple[Event, ...]:
        """Return after what the data of a kernel may come: those before it, to a buffer.

        And the collectives that make them.
        """
        freed, clock = self._freed, self._fabric.clock
        sent = () if self._collectives is None else self._collectives.ends_of(kernel.touched)
        if freed.maxlen is None:
            return sent
        wanted = (freed[0] if len(freed) == freed.maxlen else clock.past, self._gathered)
        after = tuple(event for event in wanted if not event.triggered)
        self._gathered = ready
        freed.append(clock.event())
        clock.process(self._free_buffer(kernel, ended, freed[-1]))
        return (*after, *sent)

    def _free_buffer(self, kernel: Kernel, ended: Event, freed: Event) -> Process[None]:
        """SimPy process: free a kernel's buffer when it has ended and what is to leave has left."""
        yield ended
        while (leaving := self._stores.end_of(kernel.touched)) is not None:
            yield leaving
        freed.succeed()

    def _run(self, iteration: int, launched: Launched, before: Event) -> Process[None]:
        """SimPy process: one execution of a kernel."""
        launch, cpu = self._fabric.clock.cycle, self._machine.cpus[self._socket]
        kernel, exchange = launched.kernel, self._exchange
        if exchange is not None:
            yield exchange.arrival(iteration, kernel.id)
        yield from launched.after
        if not self._is_gathered(kernel):
            waits = partial(self._describe_wait, kernel)
            yield self._fabric.until(partial(self._gather, kernel), waits, self._number)
        launched.ready.succeed()
        yield before
        yield cpu.request(1)
        self._since = start = self._fabric.clock.cycle
        self._check(kernel)
        yield from self._compute(kernel)
        self._check(kernel)
        self._busy, self._since = self.busy_cycles, -1
        cpu.release(1)
        self._ended(iteration, launched, launch, start)
        if exchange is not None:
            exchange.kernel_ended(iteration, kernel.id)
        launched.ended.succeed()

    def _compute(self, kernel: Kernel) -> Process[None]:
        """Compute for the kernel's cycles, or as long as it takes to read and write its data in memory."""
        clock, moved = self._clock_hz, kernel.moved_bytes or self._used_bytes(kernel)
        cycles = self._trace.cpu_cycles(kernel, clock, self._spec.optimizer_rate)
        if self._spec.memory_bandwidth is not None:
            cycles = max(cycles, -(-moved * clock // self._spec.memory_bandwidth))
        end, limit = self._fabric.clock.cycle + cycles, -(-moved * clock // cycles) if cycles else 0
        if moved and self._transfers.topology.memory(self._gpu):
            with self._fabric.alter():
                used = self._transfers.use_host(self._gpu, moved, limit)
            yield self._fabric.until(lambda: used.is_done, lambda: _ENDLESS)
        if self._fabric.clock.cycle < end:
            yield self._fabric.clock.timeout(end - self._fabric.clock.cycle)

    def _used_bytes(self, kernel: Kernel) -> int:
        """Return the bytes of a kernel's inputs, as often as it reads them, and of its outputs."""
        tensors = self._trace.tensors
        read = sum(tensors[number].size_bytes * kernel.reads_of(number) for number in kernel.inputs)
        return read + sum(tensors[number].size_bytes for number in kernel.outputs)

    def _missing(self, kernel: Kernel) -> list[int]:
        memory = self._memory
        there = memory.pages[self._host]
        return [tensor for tensor in kernel.touched if there[tensor] < memory.sizes[tensor]]

    def _is_gathered(self, kernel: Kernel) -> bool:
        return not self._gathers or not self._missing(kernel)

    def _check(self, kernel: Kernel) -> None:
        if self._machine.checker is not None and not self._is_gathered(kernel):
            raise InvariantError(f"kernel {kernel.id} ({kernel.name}) computes on the CPU without its data")

    def _gather(self, kernel: Kernel) -> bool:
        """Start what brings a kernel's data to host memory; return whether they are there."""
        missing = self._missing(kernel)
        if any(map(self._can_go_on, missing)):
            with self._fabric.alter(self._number):
                for tensor in missing:
                    self._bring(tensor)
            missing = self._missing(kernel)
        return not missing

    def _can_go_on(self, tensor: int) -> bool:
        memory, read = self._memory, self._reads.get(tensor)
        if memory.idle[tensor] or (read is not None and read.message.is_done):
            return True
        waits = memory.absent[tensor] or (read is None and self._source(tensor) is not None)
        return bool(memory.pools[self._host].free and waits)

    def _source(self, tensor: int) -> Location | None:
        """Return the fastest other tier that has pages of a tensor."""
        memory, host = self._memory, self._host
        return next((place for place in memory.tiers if place != host and memory.pages[place][tensor]), None)

    def _bring(self, tensor: int) -> None:
        """Evict a tensor's pages to host memory, allocate them there, and read those in other tiers."""
        memory, host = self._memory, self._host
        read = self._reads.get(tensor)
        if read is not None and read.message.is_done:
            del self._reads[tensor]
            self._arrived(tensor, read.source, read.pages)
        memory.request_eviction(tensor, host)
        memory.allocate_in(host, tensor)
        source, room = self._source(tensor), memory.pools[host].free
        if source is not None and room and tensor not in self._reads:
            count = min(room, memory.pages[source][tensor])
            memory.pools[host].take(count)
            links = self._transfers.topology.to_host(self._gpu, memory.pools[source].tier)
            if links:
                message = self._transfers.send(links, count * memory.page_bytes)
                self._reads[tensor] = _Read(message, source, count)
            else:
                self._arrived(tensor, source, count)

    def _arrived(self, tensor: int, source: Location, pages: int) -> None:
        """Note that pages have come to host memory from another tier."""
        self._memory.carry_over(tensor, pages, source, self._host)
        self.fetched_bytes += pages * self._memory.page_bytes

    def _describe_wait(self, kernel: Kernel) -> str:
        memory = self._memory
        missing = sum(memory.sizes[t] - memory.pages[self._host][t] for t in self._missing(kernel))
        return endless_wait(memory, kernel, missing, " on the CPU", " in host memory")
