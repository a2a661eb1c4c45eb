"""Layers of a trace, the moves of a layer-wise design by kernel, and the memory that they leave in use."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Literal

from g10sim.analysis.footprint import unmoved_bytes
from g10sim.analysis.gradients import first_backward_kernel
from g10sim.grouping import grouped
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.timeline import Absence
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace

Offload = Literal["none", "conv", "alternate", "all"]

_MOVED_KINDS = {TensorKind.ACTIVATION, TensorKind.INPUT, TensorKind.TEMPORARY, TensorKind.OTHER}
_ACTIVATION = re.compile(
    r"relu|[gs]elu|silu|swish|mish|sigmoid|tanh|softmax|dropout|activation|^elu|_elu|erf"
)
_MATRIX_TYPES = frozenset({"linear", "dot", "batchmatmul", "conv1d", "bilinear", "multiheadattention"})
_MATRIX_NAMES = re.compile(r"mm(_|$)|matmul|linear|attention|^dot")


_module_of = attrgetter("layer", "phase")


class LayerKind(Enum):
    """Kinds of layers that vDNN tells apart, the heaviest first."""

    CONVOLUTION = "convolution"
    MATRIX = "matrix product"
    OTHER = "other"
    ACTIVATION = "activation"


@dataclass(frozen=True)
class Layer:
    """A layer of the forward pass.

    ``kernels`` are its forward kernels, ``backward`` those that run when the backward pass comes to it.
    ``inputs`` are the tensors that it is the last in the forward pass to read, that come from before it,
    and that the backward pass reads again: its X.
    """

    index: int
    kind: LayerKind
    kernels: tuple[int, ...]
    backward: tuple[int, ...]
    inputs: tuple[int, ...]

    def absences(self, trace: Trace, sizes: Sequence[int]) -> Iterator[Absence]:
        """Yield when each of its inputs is away, if it offloads: from its end to their next use."""
        gone = self.kernels[-1] + 1
        for tensor in self.inputs:
            yield Absence(tensor, sizes[tensor], gone, next(use for use in trace.uses[tensor] if use >= gone))


def layers_of(trace: Trace, *, fuse_activations: bool) -> tuple[Layer, ...]:
    """Group a trace's kernels into layers, in the order of the forward pass.

    Consecutive kernels of one module and phase are a layer; a kernel without a module is a layer by itself.
    An activation (ReLU, softmax, dropout, ...) belongs to the layer before it if they are fused. The kernels
    from the first backward kernel on belong to the layer of their module that the backward pass comes to
    next, in reverse of the forward pass; those of no such layer to the one before them.
    """
    start = first_backward_kernel(trace)
    groups = _forward_groups(trace.kernels[:start], fuse_activations=fuse_activations)
    backward = _backward_groups(trace.kernels[start:], groups)
    found = list[Layer]()
    for index, group in enumerate(groups):
        kernels, returning = tuple(kernel.id for kernel in group), tuple(backward.get(index, ()))
        found.append(Layer(index, _kind_of(group), kernels, returning, _inputs(trace, group, start)))
    return tuple(found)


def _forward_groups(kernels: Iterable[Kernel], *, fuse_activations: bool) -> list[list[Kernel]]:
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        same = groups and kernel.layer and _module_of(groups[-1][-1]) == _module_of(kernel)
        fused = groups and fuse_activations and _kernel_kind(kernel) is LayerKind.ACTIVATION
        if same or fused:
            groups[-1].append(kernel)
        else:
            groups.append([kernel])
    return groups


def _kind_of(group: Sequence[Kernel]) -> LayerKind:
    """Return the kind of a layer: that of its heaviest part."""
    return min(map(_kernel_kind, group), key=list(LayerKind).index)


def _kernel_kind(kernel: Kernel) -> LayerKind:
    name, layer_type = kernel.name.lower(), kernel.layer_type.lower()
    if "conv" in name:
        return LayerKind.CONVOLUTION
    if layer_type in _MATRIX_TYPES or _MATRIX_NAMES.search(name):
        return LayerKind.MATRIX
    if layer_type.startswith("conv"):
        return LayerKind.CONVOLUTION
    if _ACTIVATION.search(name) or _ACTIVATION.search(layer_type):
        return LayerKind.ACTIVATION
    return LayerKind.OTHER


def _backward_groups(kernels: Iterable[Kernel], groups: Sequence[Sequence[Kernel]]) -> dict[int, list[int]]:
    """Return the backward kernels of each layer, the layers in the order in which they come."""
    paths = (dict.fromkeys(kernel.layer for kernel in group if kernel.layer) for group in groups)
    ahead = grouped((path, index) for index, found in enumerate(paths) for path in found)
    found: dict[int, list[int]] = {}
    current, last, seen = -1, "", set[str]()
    for kernel in kernels:
        path = kernel.layer
        returns = path == last or (current >= 0 and path not in seen and current in ahead.get(path, ()))
        if kernel.phase is Phase.BACKWARD and not returns:
            following = [index for index in ahead.get(path, ()) if index not in found]
            if following:
                current, seen = following[-1], set()
        if current >= 0:
            found.setdefault(current, []).append(kernel.id)
        seen.add(path)
        last = path
    return found


def _inputs(trace: Trace, group: Sequence[Kernel], first_backward: int) -> tuple[int, ...]:
    first, last = group[0].id, group[-1].id
    written = {tensor for kernel in group for tensor in kernel.outputs}
    read = dict.fromkeys(tensor for kernel in group for tensor in kernel.inputs if tensor not in written)
    return tuple(one for one in read if _waits_for_backward(trace, one, first, last, first_backward))


def _waits_for_backward(trace: Trace, tensor: int, first: int, last: int, first_backward: int) -> bool:
    """Return True if a tensor precedes a layer and is next used in the backward pass."""
    described, uses = trace.tensors[tensor], trace.uses[tensor]
    if described.persistent or described.kind not in _MOVED_KINDS:
        return False
    comes_before = trace.births[tensor] < first or described.kind is TensorKind.INPUT
    later = [use for use in uses if use > last]
    return comes_before and bool(later) and later[0] >= first_backward and trace.deaths[tensor] > later[0]


def heavy_kind(layers: Sequence[Layer]) -> LayerKind:
    """Return the kind of layer that computes long enough to hide copies.

    vDNN knows convolutional networks only, where it is the convolution. In a network of more matrix products
    than convolutions (a transformer), those take their place.
    """
    kinds = [layer.kind for layer in layers]
    return max((LayerKind.CONVOLUTION, LayerKind.MATRIX), key=kinds.count)


def managed_layers(layers: Sequence[Layer], heavy: LayerKind) -> tuple[Layer, ...]:
    """Return the layers of feature extraction: those before the classifier.

    The classifier of a convolutional network begins with the first matrix product after the last
    convolution, that of any other with the last matrix product. Matrix products of a convolutional network
    stay (vDNN section III-A), and so do activations, which work in place.
    """
    end = max((layer.index for layer in layers if layer.kind is heavy), default=-1)
    left_out = {LayerKind.ACTIVATION}
    if heavy is LayerKind.CONVOLUTION:
        left_out.add(LayerKind.MATRIX)
        behind = layers[end + 1 :]
        end = next((layer.index for layer in behind if layer.kind is LayerKind.MATRIX), len(layers))
    working = [layer.index for layer in layers if layer.kind is not LayerKind.ACTIVATION]
    end = min(end, working[-1] if working else 0)
    return tuple(layer for layer in layers[: max(0, end)] if layer.kind not in left_out)


def offloading_layers(managed: Sequence[Layer], heavy: LayerKind, offload: Offload) -> tuple[Layer, ...]:
    """Return the managed layers that offload: all, the heavy ones, every second of them, or none."""
    if offload == "none":
        return ()
    chosen = managed if offload == "all" else [layer for layer in managed if layer.kind is heavy]
    if offload == "alternate":
        chosen = chosen[::2]
    return tuple(layer for layer in chosen if layer.inputs)


@dataclass(frozen=True)
class Schedule:
    """The moves of one job.

    ``offloads`` are the layers that offload, in order, ``fetches`` pairs of a layer and the one whose tensors
    are prefetched when its backward pass begins. ``last_forward`` is the last kernel of the forward pass.
    """

    layers: tuple[Layer, ...]
    offloads: tuple[Layer, ...]
    fetches: tuple[tuple[Layer, Layer], ...]
    last_forward: int

    @property
    def offloaded(self) -> tuple[int, ...]:
        """Tensors that are offloaded, in order."""
        return tuple(tensor for layer in self.offloads for tensor in layer.inputs)


def make_schedule(trace: Trace, offload: Offload, *, fuse_activations: bool) -> Schedule:
    """Decide which layers of a trace offload, and when each is prefetched."""
    layers = layers_of(trace, fuse_activations=fuse_activations)
    heavy = heavy_kind(layers)
    chosen = offloading_layers(managed_layers(layers, heavy), heavy, offload)
    return schedule_of(trace, layers, heavy, chosen)


def schedule_of(
    trace: Trace, layers: tuple[Layer, ...], closing: LayerKind, chosen: tuple[Layer, ...]
) -> Schedule:
    """Return the moves when the ``chosen`` of the layers of a trace offload.

    They are prefetched by the search window of vDNN (Rhu et al., MICRO 2016, figure 10): each layer of the
    backward pass searches once, when its backward kernels start. The layers before it are looked at in turn,
    down to the first: the first that was offloaded and not yet prefetched is prefetched; a layer of the
    ``closing`` kind (vDNN: convolution) ends the search.
    """
    waiting = [layer.index for layer in chosen]
    closed = [layer.index for layer in layers if layer.kind is closing]
    fetches = list[tuple[Layer, Layer]]()
    for current in sorted((layer for layer in layers if layer.backward), key=lambda layer: layer.backward[0]):
        place, closing_ones = bisect_left(waiting, current.index), bisect_left(closed, current.index)
        if place and (not closing_ones or waiting[place - 1] >= closed[closing_ones - 1]):
            fetches.append((current, layers[waiting.pop(place - 1)]))
    return Schedule(layers, chosen, tuple(fetches), first_backward_kernel(trace) - 1)


def live_bytes(trace: Trace, schedule: Schedule) -> list[int]:
    """Return the bytes on the GPU while each kernel runs, without scratch space, if copies take no longer.

    Persistent tensors are there all the time, others from their first kernel to their death, and offloaded
    ones are away from the end of the layer that offloads them until they are prefetched or needed.
    """
    sizes = [0 if tensor.kind is TensorKind.WORKSPACE else tensor.size_bytes for tensor in trace.tensors]
    live = Occupancy(unmoved_bytes(trace, sizes, counts_late_uses=False))
    back = {tensor: at.backward[0] for at, layer in schedule.fetches for tensor in layer.inputs}
    for layer in schedule.offloads:
        for away in layer.absences(trace, sizes):
            live.add(away.start, min(away.end, back.get(away.tensor, away.end)), -away.size_bytes)
    return list(map(int, live.bytes))
