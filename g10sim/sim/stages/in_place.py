"""Kernels that use tensors where they lie: bytes that cross a link while the kernel computes."""

from __future__ import annotations

from collections.abc import Iterator

from g10sim.hardware.links import Message
from g10sim.records import AccessRecord, Location
from g10sim.sim.context import JobContext
from g10sim.trace.model import Kernel


class InPlace:
    """Accesses of one job's kernels.

    A kernel reads the bytes of an input as often as its trace says, and writes those of an output once, each
    over the links between its GPU and the tier. It ends when it has computed and all of that is done.
    """

    def __init__(self, context: JobContext) -> None:
        self._context, self._job, self._gpu = context, context.number, context.gpu
        self._memory, self._addresses = context.memory, context.addresses
        self._kernels = context.job.trace.kernels
        self._fabric, self._recorder = context.fabric, context.machine.recorder

    def begin(self, kernel: int) -> list[Message]:
        """Start what a kernel reads and writes where it lies; returns what is on its way."""
        transfers, traffic, now = self._context.fluid, self._memory.traffic, self._fabric.clock.cycle
        found = list(self._accesses(self._kernels[kernel]))
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
        gpu, job, now = self._gpu, self._job, self._fabric.clock.cycle
        for tier, *sizes in self._open:
            self._recorder.accessed(AccessRecord(gpu, job, kernel, tier, self._since, now, *sizes))

    def _accesses(self, kernel: Kernel) -> Iterator[tuple[Location, int, int]]:
        """Yield the tiers that a kernel uses tensors in, and the bytes that it reads and writes there."""
        memory, page = self._memory, self._memory.page_bytes
        sizes = {tensor: self._used_pages(tensor) for tensor in kernel.tensors}
        for tier in memory.tiers:
            read = sum(sizes[tensor].get(tier, 0) * kernel.reads_of(tensor) for tensor in kernel.inputs)
            written = sum(sizes[tensor].get(tier, 0) for tensor in kernel.outputs)
            if read or written:
                yield tier, read * page, written * page

    def _used_pages(self, tensor: int) -> dict[Location, int]:
        """Return the pages of a tensor that the kernel uses where they lie, by tier."""
        memory, pages = self._memory, dict[Location, int]()
        for place in self._addresses.held(tensor):
            tier = memory.in_place.get(place)
            if tier is not None:
                pages[tier] = pages.get(tier, 0) + memory.used_in_place(place)
        return pages
