"""Copies from host memory to other tiers, for kernels on the CPU whose data lie below it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from typing import Any

from simpy import Event

from g10sim.hardware.links import Message
from g10sim.records import Location
from g10sim.sim.context import JobContext
from g10sim.units import format_bytes


class HostStores:
    """Sends tensors of one job from the memory of its GPU's socket to other tiers, as fast as links allow.

    Pages count in host memory until all of them have arrived. They stay there if a kernel on the CPU claims
    the tensor before that, or it has left for the GPU.
    """

    def __init__(self, context: JobContext) -> None:
        tiers = {tier.place: tier for tier in context.machine.system.all_tiers}
        self._number, self._gpu = context.number, context.gpu
        self._memory, self._claims = context.memory, context.claims
        self._fabric, self._transfers, self._tiers = context.fabric, context.fluid, tiers
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
        links = self._transfers.topology.to_host(self._gpu, self._tiers[target], back=True)
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

    def _carry(
        self, tensor: int, target: Location, count: int, message: Message
    ) -> Generator[Event, Any, None]:
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
