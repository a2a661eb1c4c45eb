"""Waits of a kernel for what runs beside the kernels of its GPU."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from simpy import Event

from g10sim.records import StallReason
from g10sim.sim.accounts.owners import WaitLog
from g10sim.sim.beside.collectives import Collectives
from g10sim.sim.beside.cpu import CpuKernels
from g10sim.sim.beside.exchange import GradientExchange
from g10sim.sim.fabric import Clock
from g10sim.trace.model import Device, Kernel

Waiting: TypeAlias = Generator[Event, Any, None]
Wait: TypeAlias = Callable[[int, Kernel, WaitLog], Waiting]
"""Waits with a kernel of an iteration, and says in a log for what."""


def timed(clock: Clock, event: Event, reason: StallReason, waits: WaitLog) -> Waiting:
    """Wait for an event, and log the time."""
    since = clock.cycle
    yield event
    waits.add(reason, clock.cycle - since)


def for_collectives(collectives: Collectives, clock: Clock) -> Wait:
    """Return a wait until no collective under way uses a tensor of the kernel."""

    def wait(iteration: int, kernel: Kernel, waits: WaitLog) -> Waiting:
        while (blocker := collectives.blocker(kernel)) is not None:
            collectives.demand()
            for event in blocker.after:
                yield from timed(clock, event, StallReason.CPU, waits)
            yield from timed(clock, blocker.ready, StallReason.LATE_PREFETCH, waits)
            yield from timed(clock, blocker.ended, StallReason.BARRIER, waits)
            collectives.go_on()

    return wait


def for_cpu(cpu: CpuKernels, clock: Clock) -> Wait:
    """Return a wait until kernels on the CPU have ended that keep the kernel from its start or launch."""

    def wait(iteration: int, kernel: Kernel, waits: WaitLog) -> Waiting:
        blocker = None if kernel.device is Device.LINKS else cpu.blocker(kernel)
        if blocker is not None:
            yield from timed(clock, blocker, StallReason.CPU, waits)

    return wait


def for_gradients(exchange: GradientExchange, clock: Clock) -> Wait:
    """Return a wait until the gradients that the kernel reads have come from the other replicas."""

    def wait(iteration: int, kernel: Kernel, waits: WaitLog) -> Waiting:
        arrival = exchange.arrival(iteration, kernel.id)
        if arrival is not None:
            yield from timed(clock, arrival, StallReason.BARRIER, waits)

    return wait
