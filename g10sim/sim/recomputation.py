"""Tensors whose contents were dropped, to be computed once more by the kernels that make them."""

from __future__ import annotations

from g10sim.analysis.recomputation import Recomputability
from g10sim.trace.model import Kernel, Trace


class Recomputation(Recomputability):
    """Tensors that one job has dropped, and the kernels that have to run again for them."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.dropped: set[int] = set()

    def needed_by(self, kernel: Kernel) -> tuple[Kernel, ...]:
        """Return the kernels that have to run again before ``kernel`` can, in order."""
        found: dict[int, Kernel] = {}
        self._collect(kernel, kernel.id, found)
        return tuple(found.values())

    def _collect(self, reader: Kernel, now: int, found: dict[int, Kernel]) -> None:
        for tensor in reader.inputs:
            producer = self.producer(tensor, now) if tensor in self.dropped else None
            if producer is not None and producer.id not in found:
                self._collect(producer, now, found)
                found[producer.id] = producer

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
