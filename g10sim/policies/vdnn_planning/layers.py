"""Layers of a trace: kernels grouped by module, and what kind of layer each group is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from g10sim.trace.model import Kernel, Phase, TensorKind, Trace

_KEPT_KINDS = frozenset(
    {
        TensorKind.WEIGHT,
        TensorKind.BUFFER,
        TensorKind.GRADIENT,
        TensorKind.OPTIMIZER_STATE,
        TensorKind.WORKSPACE,
    }
)
_ACTIVATION = re.compile(
    r"relu|[gs]elu|silu|swish|mish|sigmoid|tanh|softmax|dropout|activation|^elu|_elu|erf"
)
_MATRIX_TYPES = frozenset({"linear", "dot", "batchmatmul", "conv1d", "bilinear", "multiheadattention"})
_MATRIX_NAMES = re.compile(r"mm(_|$)|matmul|linear|attention|^dot")


class LayerKind(Enum):
    """What a layer computes, as far as vDNN tells layers apart."""

    CONVOLUTION = "convolution"
    MATRIX = "matrix product"
    ACTIVATION = "activation"
    OTHER = "other"


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


def layers_of(trace: Trace, *, fuse_activations: bool) -> tuple[Layer, ...]:
    """Group a trace's kernels into layers, in the order of the forward pass.

    Consecutive kernels of one module and phase are a layer; a kernel without a module is one of its own.
    An activation (ReLU, softmax, dropout, ...) belongs to the layer before it if they are fused. The kernels
    from the first backward kernel on belong to the layer of their module that the backward pass comes to
    next, in reverse of the forward pass; those of no such layer to the one before them.
    """
    start = first_backward_kernel(trace)
    groups = _forward_groups(trace.kernels[:start], fuse_activations=fuse_activations)
    backward = _backward_groups(trace.kernels[start:], groups)
    return tuple(
        Layer(
            index,
            _kind_of(group),
            tuple(kernel.id for kernel in group),
            tuple(backward.get(index, ())),
            _inputs(trace, group, start),
        )
        for index, group in enumerate(groups)
    )


def first_backward_kernel(trace: Trace) -> int:
    """Return the first kernel of the backward pass; without one, the number of kernels."""
    backward = (kernel.id for kernel in trace.kernels if kernel.phase is Phase.BACKWARD)
    return next(backward, len(trace.kernels))


def _forward_groups(kernels: Iterable[Kernel], *, fuse_activations: bool) -> list[list[Kernel]]:
    groups: list[list[Kernel]] = []
    for kernel in kernels:
        same = groups and kernel.layer and _home(groups[-1][-1]) == _home(kernel)
        fused = groups and fuse_activations and _kernel_kind(kernel) is LayerKind.ACTIVATION
        if same or fused:
            groups[-1].append(kernel)
        else:
            groups.append([kernel])
    return groups


def _home(kernel: Kernel) -> tuple[str, Phase]:
    return kernel.layer, kernel.phase


def _kind_of(group: Sequence[Kernel]) -> LayerKind:
    """Return the kind of a layer: that of its heaviest part."""
    kinds = {_kernel_kind(kernel) for kernel in group}
    for kind in (LayerKind.CONVOLUTION, LayerKind.MATRIX, LayerKind.OTHER):
        if kind in kinds:
            return kind
    return LayerKind.ACTIVATION


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
    ahead: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        for path in dict.fromkeys(kernel.layer for kernel in group if kernel.layer):
            ahead.setdefault(path, []).append(index)
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
    return tuple(
        tensor
        for tensor in dict.fromkeys(tensor for kernel in group for tensor in kernel.inputs)
        if tensor not in written and _waits_for_backward(trace, tensor, first, last, first_backward)
    )


def _waits_for_backward(trace: Trace, tensor: int, first: int, last: int, first_backward: int) -> bool:
    """Whether a tensor comes from before a layer, and after it is next used in the backward pass."""
    described, uses = trace.tensors[tensor], trace.uses[tensor]
    if described.persistent or described.kind in _KEPT_KINDS:
        return False
    comes_before = trace.births[tensor] < first or described.kind is TensorKind.INPUT
    later = [use for use in uses if use > last]
    return comes_before and bool(later) and later[0] >= first_backward and trace.deaths[tensor] > later[0]
