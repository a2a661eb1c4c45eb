"""When kernels of an iteration start if nothing waits, and how much memory they find in use."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from g10sim.policies.vdnn_planning.layers import Layer, first_backward_kernel
from g10sim.trace.model import Trace

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Offloaded:
    """What one layer offloads together.

    ``leaves`` is the kernel at whose start the copy begins, ``gone`` the first kernel without the tensors,
    and ``needed`` the kernel that reads one of them again. ``size_bytes`` are whole pages.
    """

    layer: Layer
    tensors: tuple[int, ...]
    size_bytes: int
    leaves: int
    gone: int
    needed: int


class Timeline:
    """One iteration of a trace: kernel ``k`` runs from ``starts[k]`` to ``starts[k + 1]``, in cycles."""

    def __init__(self, trace: Trace, durations: Sequence[int], page_bytes: int) -> None:
        self.trace, self._page_bytes = trace, page_bytes
        self.starts = [0, *accumulate(durations)]
        self.first_backward = first_backward_kernel(trace)

    def size_bytes(self, tensor: int) -> int:
        """Return the size of a tensor in whole pages."""
        page = self._page_bytes
        return -(-self.trace.tensors[tensor].size_bytes // page) * page

    def kernel_at(self, cycle: int) -> int:
        """Return the last kernel that has started by a cycle."""
        last = len(self.starts) - 2
        return min(last, max(0, bisect_right(self.starts, cycle) - 1))

    def boundary_before(self, kernel: int) -> int:
        """Return the last kernel that starts at an earlier cycle than this one."""
        return max(0, bisect_left(self.starts, self.starts[kernel]) - 1)

    def boundary_after(self, kernel: int) -> int:
        """Return the first kernel that starts at a later cycle than this one, or the last kernel."""
        return min(len(self.starts) - 2, bisect_right(self.starts, self.starts[kernel]))

    def offloaded(self, layer: Layer) -> Offloaded:
        """Describe what a layer offloads."""
        gone = layer.kernels[-1] + 1
        needed = min(use for tensor in layer.inputs for use in self.trace.uses[tensor] if use >= gone)
        size = sum(map(self.size_bytes, layer.inputs))
        return Offloaded(layer, layer.inputs, size, layer.kernels[0], gone, needed)

    def occupancy(self) -> Bytes:
        """Return the bytes in use while each kernel runs when nothing is offloaded.

        Persistent tensors are there all the time, others from their first kernel to their death.
        """
        trace, changes = self.trace, np.zeros(len(self.trace.kernels) + 1, dtype=np.int64)
        for tensor in trace.tensors:
            if trace.uses[tensor.id]:
                first = 0 if tensor.persistent else trace.births[tensor.id]
                size = self.size_bytes(tensor.id)
                changes[first] += size
                if not tensor.persistent:
                    changes[max(first + 1, trace.deaths[tensor.id])] -= size
        return np.cumsum(changes)[:-1]
