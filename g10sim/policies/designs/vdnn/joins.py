"""The most that the joins of vDNN at the end of layers can cost, whatever memory, allocator and policy do."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from g10sim.policies.designs.vdnn.layers import Layer, Offload, make_schedule
from g10sim.trace.model import TensorKind, Trace


def gain_without_joins(trace: Trace, offload: Offload, bytes_per_second: int) -> float:
    """Return the highest (time with joins / time without) - 1 of an iteration, for a rate of each direction.

    With joins a layer that copies takes max(compute, copy) (Rhu et al., MICRO 2016, section III-B), so that
    a join costs it at most the shorter of the two. Without them each pass takes at least all its computing
    and at least all its copies. Copies of training data count with joins only: the host has them.
    """
    schedule = make_schedule(trace, offload, fuse_activations=True)
    starts = [0, *accumulate(kernel.duration for kernel in trace.kernels)]
    border = starts[schedule.last_forward + 1]
    per_byte = trace.ticks_per_second / bytes_per_second

    def copying(layer: Layer, *, counts_input: bool) -> float:
        tensors = (trace.tensors[tensor] for tensor in layer.inputs)
        kept = (tensor for tensor in tensors if counts_input or tensor.kind is not TensorKind.INPUT)
        return sum(tensor.size_bytes for tensor in kept) * per_byte

    def waits(issued: Mapping[int, Layer], ended: Mapping[int, Layer]) -> float:
        spans = zip(sorted(issued), sorted(ended), strict=True)
        return sum(
            max(0.0, copying(issued[first], counts_input=True) - (starts[last + 1] - starts[first]))
            for first, last in spans
        )

    joined = starts[-1] + waits(schedule.offloads, schedule.offload_ends)
    joined += waits(schedule.fetches, schedule.fetch_ends)
    out = sum(copying(layer, counts_input=False) for layer in schedule.offloads.values())
    back = sum(copying(layer, counts_input=True) for layer in schedule.fetches.values())
    return joined / (max(border, out) + max(starts[-1] - border, back)) - 1
