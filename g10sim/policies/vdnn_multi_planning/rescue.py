"""Which tensor makes room when a kernel waits for memory that nothing under way will free."""

from __future__ import annotations

from g10sim.policies.base import PolicyView
from g10sim.policies.farthest_use import farthest_idle
from g10sim.policies.vdnn_planning.layers import first_backward_kernel
from g10sim.trace.model import Trace


class Rescue:
    """Names the tensor of the forward pass that the backward pass reads last, then any that is idle."""

    def __init__(self, trace: Trace) -> None:
        backward = first_backward_kernel(trace)
        self._needed = {}
        for tensor in trace.tensors:
            if not tensor.persistent and trace.births[tensor.id] < backward < trace.deaths[tensor.id]:
                self._needed[tensor.id] = next(use for use in trace.uses[tensor.id] if use >= backward)
        self._order = sorted(self._needed, key=lambda tensor: (-self._needed[tensor], tensor))

    def victim(self, view: PolicyView) -> int | None:
        """Return the tensor that goes to host memory; None where all that is there is in use."""
        for tensor in self._order:
            if self._needed[tensor] <= view.kernel:
                break
            idle = view.is_whole(tensor) and not view.is_needed(tensor)
            if idle and view.kernel + view.next_use(tensor) == self._needed[tensor]:
                return tensor
        return farthest_idle(view)
