"""What a layer-wise design does at which kernel, and how much memory that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from g10sim.policies.vdnn_planning.layers import (
    Layer,
    LayerKind,
    first_backward_kernel,
    layers_of,
)
from g10sim.policies.vdnn_planning.selection import Offload, heavy_kind, managed_layers, offloading_layers
from g10sim.policies.vdnn_planning.window import prefetches
from g10sim.trace.model import TensorKind, Trace


@dataclass(frozen=True)
class Schedule:
    """The moves of one job.

    ``offloads`` maps the first kernel of a layer to it, ``fetches`` the first backward kernel of a layer to
    the layer whose tensors are prefetched then; ``offload_ends`` and ``fetch_ends`` are the same by the last
    kernel of the layer that issues them. ``last_forward`` is the last kernel of the forward pass.
    ``heavy`` is the kind of layer that closes the window.
    """

    layers: tuple[Layer, ...]
    offloads: Mapping[int, Layer]
    fetches: Mapping[int, Layer]
    offload_ends: Mapping[int, Layer]
    fetch_ends: Mapping[int, Layer]
    last_forward: int
    heavy: LayerKind

    @property
    def offloaded(self) -> tuple[int, ...]:
        """Tensors that are offloaded, in order."""
        return tuple(tensor for layer in self.offloads.values() for tensor in layer.inputs)


def make_schedule(trace: Trace, offload: Offload, *, fuse_activations: bool) -> Schedule:
    """Decide which layers of a trace offload, and when each is prefetched."""
    layers = layers_of(trace, fuse_activations=fuse_activations)
    heavy = heavy_kind(layers)
    chosen = offloading_layers(managed_layers(layers, heavy), heavy, offload)
    return schedule_of(trace, layers, heavy, chosen)


def schedule_of(
    trace: Trace, layers: tuple[Layer, ...], heavy: LayerKind, chosen: Sequence[Layer]
) -> Schedule:
    """Return the moves when the ``chosen`` of the layers of a trace offload."""
    window = prefetches(layers, [layer.index for layer in chosen], heavy)
    return Schedule(
        layers,
        {layer.kernels[0]: layer for layer in chosen},
        {layers[at].backward[0]: layers[what] for at, what in window.items()},
        {layer.kernels[-1]: layer for layer in chosen},
        {layers[at].backward[-1]: layers[what] for at, what in window.items()},
        first_backward_kernel(trace) - 1,
        heavy,
    )


def live_bytes(trace: Trace, schedule: Schedule) -> list[int]:
    """Return the bytes on the GPU while each kernel runs, without scratch space, if copies take no longer.

    Persistent tensors are there all the time, others from their first kernel to their death, and offloaded
    ones are away from the end of the layer that offloads them until they are prefetched or needed.
    """
    changes = [0] * (len(trace.kernels) + 1)
    away = _absences(trace, schedule)
    for tensor in trace.tensors:
        if tensor.kind is TensorKind.WORKSPACE or not trace.uses[tensor.id]:
            continue
        born = 0 if tensor.persistent else trace.births[tensor.id]
        for start, end, sign in ((born, trace.deaths[tensor.id], 1), (*away.get(tensor.id, (0, 0)), -1)):
            changes[start] += sign * tensor.size_bytes
            changes[end] -= sign * tensor.size_bytes
    return list(accumulate(changes))[:-1]


def _absences(trace: Trace, schedule: Schedule) -> dict[int, tuple[int, int]]:
    back: dict[int, int] = {}
    for kernel, layer in schedule.fetches.items():
        for tensor in layer.inputs:
            back[tensor] = kernel
    found = {}
    for layer in schedule.offloads.values():
        last = layer.kernels[-1]
        for tensor in layer.inputs:
            needed = next(use for use in trace.uses[tensor] if use > last)
            found[tensor] = (last + 1, min(needed, back.get(tensor, needed)))
    return found


def static_bytes(trace: Trace) -> int:
    """Bytes of a network-wide static allocation, the baseline of vDNN (section IV-A, figure 2).

    All feature maps, twice the largest of them for gradients, the largest scratch space, and everything that
    stays: weights, their gradients' buffers not counted.
    """
    maps = [
        tensor.size_bytes
        for tensor in trace.tensors
        if tensor.kind in (TensorKind.ACTIVATION, TensorKind.INPUT) and not tensor.persistent
    ]
    kept = sum(tensor.size_bytes for tensor in trace.tensors if tensor.persistent)
    scratch = max((trace.workspace_bytes(kernel) for kernel in trace.kernels), default=0)
    return sum(maps) + 2 * max(maps, default=0) + scratch + kept


def peak_bytes(trace: Trace, schedule: Schedule) -> int:
    """Most bytes on the GPU at a time, scratch space included, if copies take no longer than their layers."""
    live: Sequence[int] = live_bytes(trace, schedule)
    return max(
        (bytes_ + trace.workspace_bytes(kernel) for bytes_, kernel in zip(live, trace.kernels, strict=True)),
        default=0,
    )
