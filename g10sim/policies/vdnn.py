"""vDNN: inputs of layers go to host memory, and every layer waits for its copies."""

from __future__ import annotations

from collections.abc import Iterable

from g10sim.policies.base import Action, PolicyView, Synchronize
from g10sim.policies.registry import register_policy
from g10sim.policies.vdnn_planning.design import LayerWise


@register_policy
class Vdnn(LayerWise):
    """Layer-wise offloading that is synchronised at the end of every layer.

    While a layer of the forward pass computes, its input, if it is the last to read it, is copied to a pinned
    buffer that is kept for the whole run; the layer ends when both are done, and the input's memory is free.
    When the backward pass comes to a layer, it looks for one input to prefetch in a window that ends at the
    next convolution, and ends only when that has arrived. Whole tensors move, in contiguous memory.
    """

    name = "vdnn"
    label = "vDNN"
    paper = "Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016"
    keeps_host_buffers = True

    def on_kernel_end(self, view: PolicyView) -> Iterable[Action]:
        """Let a layer end with the copies that it issued."""
        schedule = self._schedules[view.job]
        if view.kernel in schedule.offload_ends:
            yield Synchronize(frozenset(schedule.offload_ends[view.kernel].inputs))
        if view.kernel in schedule.fetch_ends:
            fetched = frozenset(schedule.fetch_ends[view.kernel].inputs)
            yield Synchronize(fetched, evictions=False, prefetches=True)
