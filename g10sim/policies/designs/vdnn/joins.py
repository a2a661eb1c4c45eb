"""The most that the joins of vDNN at the end of layers can cost, whatever memory, allocator and policy do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def waits(copies: Iterable[tuple[Sequence[int], Layer]]) -> float:
        """Return for how long layers wait for what they copy while their kernels run."""
        run = ((layer, starts[kernels[-1] + 1] - starts[kernels[0]]) for kernels, layer in copies)
        return sum(max(0.0, copying(layer, counts_input=True) - ticks) for layer, ticks in run)

    joined = starts[-1] + waits((layer.kernels, layer) for layer in schedule.offloads)
    joined += waits((issuing.backward, layer) for issuing, layer in schedule.fetches)
    out = sum(copying(layer, counts_input=False) for layer in schedule.offloads)
    back = sum(copying(layer, counts_input=True) for _, layer in schedule.fetches)
    return joined / (max(border, out) + max(starts[-1] - border, back)) - 1
