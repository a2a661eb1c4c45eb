"""Tensors whose contents were dropped, to be computed once more by the kernels that make them."""

from __future__ import annotations

from collections.abc import Container

from g10sim.analysis.recomputation import Recomputability
from g10sim.trace.model import Kernel, Trace


class Recomputation(Recomputability):
    """Tensors that one job has dropped, and the kernels that have to run again for them.

    ``drops`` counts how often one was; ``next_kernel`` is the kernel that is about to start, or that starts
    after the one that has ended.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.dropped: set[int] = set()
        self.drops = 0
        self.next_kernel = 0

    def kernel_starts(self, kernel: Kernel) -> None:
        """Note which kernel is about to start."""
        self.next_kernel = kernel.id

    def drop(self, tensor: int) -> None:
        """Note that a tensor's contents are dropped."""
        self.dropped.add(tensor)
        self.drops += 1

    def kernel_ended(self, kernel: Kernel) -> None:
        """Note what a kernel has written: it need not be computed again."""
        self.dropped.difference_update(kernel.outputs)
        self.next_kernel = kernel.id + 1

    def needed_by(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """Return the kernels that have to run again before ``kernel`` can, in order."""
        found: dict[int, Kernel] = {}
        readers = [(kernel, iter(kernel.inputs))]
        while readers:
            reader, inputs = readers[-1]
            producer = next(
                filter(None, (self._missing(tensor, kernel.id, found) for tensor in inputs)), None
            )
            if producer is not None:
                readers.append((producer, iter(producer.inputs)))
                continue
            readers.pop()
            if readers:
                found[reader.id] = reader
        return tuple(found.values())

    def _missing(self, tensor: int, now: int, found: Container[int]) -> Kernel | None:
        """Return the kernel that has to run again for a tensor, unless it is found already."""
        producer = self.producer(tensor, now) if tensor in self.dropped else None
        return None if producer is None or producer.id in found else producer

    def gone(self, producer: Kernel, reader: Kernel) -> list[int]:
        """Return what a kernel that ran again for ``reader`` left behind that nothing will read."""
        trace = self._trace
        return [
            tensor
            for tensor in producer.tensors
            if not trace.tensors[tensor].persistent
            and not trace.births[tensor] <= reader.id < trace.deaths[tensor]
            and tensor not in reader.tensors
        ]
