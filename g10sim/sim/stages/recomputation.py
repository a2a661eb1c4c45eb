"""Tensors whose contents were dropped, to be computed once more by the kernels that make them."""

from __future__ import annotations

from collections.abc import Container
from functools import partial

from g10sim.analysis.recomputation import Recomputability
from g10sim.trace.model import Kernel, Trace


class Recomputation(Recomputability):
    """Tensors that one job has dropped, and the kernels that have to run again for them.

    ``drops`` counts how often one was; ``next_kernel`` is the kernel that is about to start, or that starts
    after the one that has ended.
    """

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace, chains=True)
        self.dropped: set[int] = set()
        self.drops = 0
        self.next_kernel = 0

    def drop(self, tensor: int) -> None:
        """Note that a tensor's contents are dropped."""
        self.dropped.add(tensor)
        self.drops += 1

    def kernel_starts(self, kernel: int) -> None:
        """Note which kernel is about to start."""
        self.next_kernel = kernel

    def kernel_ended(self, kernel: int) -> None:
        """Note what a kernel has written: it need not be computed again."""
        if self.dropped:
            self.dropped.difference_update(self._trace.kernels[kernel].outputs)
        self.next_kernel = kernel + 1

    def needed_by(self, kernel: Kernel) -> list[tuple[Kernel, list[int]]]:
        """Return the kernels that have to run again before ``kernel`` can, in order.

        Each comes with the tensors that it leaves behind, or has read, and that nothing will read any more.
        """
        found: dict[int, Kernel] = {}
        readers = [(kernel, iter(kernel.inputs))]
        while readers:
            reader, inputs = readers[-1]
            producer = next(filter(None, map(partial(self._missing, kernel.id, found), inputs)), None)
            if producer is not None:
                readers.append((producer, iter(producer.inputs)))
                continue
            readers.pop()
            if readers:
                found[reader.id] = reader
        last = {tensor: producer.id for producer in found.values() for tensor in producer.tensors}
        return [
            (one, [i for i in one.tensors if last[i] == one.id and self._is_left(i, kernel)])
            for one in found.values()
        ]

    def _is_left(self, tensor: int, reader: Kernel) -> bool:
        """Return whether nothing will read a tensor but kernels that run again for ``reader``."""
        trace = self._trace
        is_alive = trace.births[tensor] <= reader.id < trace.deaths[tensor]
        return not (trace.lasting[tensor] or is_alive or tensor in reader.tensors)

    def _missing(self, now: int, found: Container[int], tensor: int) -> Kernel | None:
        """Return the kernel that has to run again for a tensor, unless it is found already."""
        is_missing = tensor in self.dropped or self.is_gone(tensor, now)
        producer = self.producer(tensor, now) if is_missing else None
        return None if producer is None or producer.id in found else producer
