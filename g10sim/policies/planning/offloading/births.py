"""Memory for new tensors, mapped before the kernels that make them start."""

from __future__ import annotations

from collections.abc import Iterator

from g10sim.policies.interface.moves import Fetch, Move
from g10sim.trace.model import Device, Trace


class Births:
    """Maps the new tensors of one job's kernels ``ahead`` of them, as memory of an allocator is mapped."""

    def __init__(self, trace: Trace, ahead: int) -> None:
        self._ahead = ahead
        self._born = [list[int]() for _ in range(len(trace.kernels))]
        for tensor, uses in enumerate(trace.uses):
            if not uses or trace.kernels[uses[0]].device is Device.LINKS:
                continue  # a collective maps what it makes
            if not trace.lasting[tensor] and trace.births[tensor] == uses[0]:
                self._born[uses[0]].append(tensor)

    def before(self, kernel: int) -> Iterator[Move]:
        """Yield the moves of a kernel that is about to start."""
        ahead = self._ahead
        for born in self._born[kernel + ahead : kernel + ahead + 1] if kernel else self._born[: ahead + 1]:
            yield from map(Fetch, born)
