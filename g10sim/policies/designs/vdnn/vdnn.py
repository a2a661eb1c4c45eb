"""vDNN: inputs of layers go to host memory, and every layer waits for its copies."""

from __future__ import annotations

from dataclasses import replace

from g10sim.looks import RED, Look
from g10sim.policies.designs.vdnn.design import SelectiveOffloading
from g10sim.policies.interface import Requirements
from g10sim.policies.interface.registry import register_policy


@register_policy
class Vdnn(SelectiveOffloading):
    """Layer-wise offloading that is synchronised at the end of every layer.

    While a layer of the forward pass computes, its input, if it is the last to read it, is copied to a pinned
    buffer that is kept for the whole run; the layer ends when both are done, and the input's memory is free.
    When the backward pass comes to a layer, it looks for one input to prefetch in a window that ends at the
    next convolution, and ends only when that has arrived. Whole tensors move, in contiguous memory.
    """

    name = "vdnn"
    label = "vDNN"
    look = Look(RED, "----", "X")
    paper = "Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016"

    @property
    def requirements(self) -> Requirements:
        """Those of every layer-wise design, and pinned buffers that are kept."""
        return replace(super().requirements, keeps_host_buffers=True)
