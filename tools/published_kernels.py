"""Measured kernels of the published G10 simulator's traces, as the operators that PyTorch would call them.

Its traces tell names, sizes of tensors, shapes of layers and times; FLOPs follow from those. Layer
normalization, one kernel in PyTorch, is the sum of the element-wise kernels that they run for it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from pathlib import Path

from g10sim.errors import TraceError
from g10sim.importers.gpg import import_gpg
from g10sim.trace.jsonlines import read_lines
from g10sim.trace.model import Kernel, Phase, TensorKind, Trace
from g10sim.trace.work import KernelCost, NumberFormat, OperatorClass

_FLOAT_BYTES = 4
_INDEX_FACTOR = 2
"""Positions of maxima are 8-byte integers in PyTorch: twice the bytes of the float32 values."""
_HEAD_WIDTH = 64
"""Width of an attention head in BERT-base and ViT (Devlin et al., arXiv 1810.04805; arXiv 2010.11929)."""
_SHAPE = re.compile(rb"\((\d+),(\d+),(\d+),(\d+)\)\s*")
_NORMALIZATION = (
    *("Sum", "Divide", "Subtract", "Power", "Sum", "Divide", "Add", "Sqrt", "Divide", "Multiply", "Add"),
)
_ROOT_POSITION = _NORMALIZATION.index("Sqrt")
_ELEMENTWISE = frozenset({"Add", "Subtract", "Multiply", "Divide", "Power", "Erf", "ReLU"})
_CONVOLUTIONS = {
    "Conv2d_Forward": "convolution",
    "Conv2d_Backward_Input": "convolution_backward_input",
    "Conv2d_Backward_Weight": "convolution_backward_weight",
}
_POOLINGS = {
    "MaxPool2d_Forward": "max_pool2d_with_indices",
    "MaxPool2d_Backward": "max_pool2d_with_indices_backward",
    "AdaptiveAvgPool2d_Forward": "_adaptive_avg_pool2d",
    "AdaptiveAvgPool2d_Backward": "_adaptive_avg_pool2d_backward",
}

Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Work of an operator in a published trace and the time that was measured."""

    cost: KernelCost
    seconds: float


@dataclass(frozen=True)
class MeasuredTrace:
    """A published trace: the sum of its kernels' times, and the kernels that are operators of PyTorch."""

    model: str
    batch_size: int
    seconds: float
    kernels: tuple[MeasuredKernel, ...]


def published_traces(reference: Path) -> list[Path]:
    """Directories ``traces/MODEL/BATCH`` in order. Raises TraceError when there is none."""
    found = [path.parent for path in (reference / "traces").glob("*/*/kernels.config*")]
    if not found:
        problem = f"{reference}: found no traces/MODEL/BATCH/kernels.config"
        raise TraceError(f"{problem}; allowed: the published data")
    return sorted(found, key=lambda path: (path.parent.name, int(path.name)))


def measured_trace(directory: Path) -> MeasuredTrace:
    """Read one published trace, with its kernels as operators. Raises TraceError."""
    trace = import_gpg(directory)
    reader = _Reader(trace, _shapes(directory))
    pairs = (*reader.convolutions(), *reader.layer_normalizations(), *reader.single_operators())
    kernels = tuple(MeasuredKernel(cost, ticks / trace.ticks_per_second) for cost, ticks in pairs)
    ticks = sum(kernel.duration for kernel in trace.kernels)
    return MeasuredTrace(trace.model, trace.batch_size, ticks / trace.ticks_per_second, kernels)


def _shapes(directory: Path) -> list[Shape | None]:
    """Shapes of the layers' inputs (batch, channels, height, width) by kernel; None where none is given."""
    (path,) = directory.glob("kernels.config*")
    shapes: list[Shape | None] = []
    for line in read_lines(path, TraceError):
        if line.startswith(b"Kernel ID:"):
            shapes.append(None)
        elif match := _SHAPE.fullmatch(line):
            batch, channels, height, width = map(int, match.groups())
            shapes[-1] = (batch, channels, height, width)
    return shapes


class _Reader:
    """Tells what PyTorch operators the kernels of one published trace are."""

    def __init__(self, trace: Trace, shapes: Sequence[Shape | None]) -> None:
        self._trace = trace
        self._shapes = shapes
        self._normalizing: set[int] = set()
        # The scores of attention are what the softmax makes.
        sizes = {self._written(k) for k in trace.kernels if k.name == "SoftmaxBasic_Forward"}
        self._scores_bytes = max(sizes, default=0)

    def _size(self, tensor: int) -> int:
        return self._trace.tensors[tensor].size_bytes

    def _is_workspace(self, tensor: int) -> bool:
        return self._trace.tensors[tensor].kind is TensorKind.WORKSPACE

    def _written(self, kernel: Kernel) -> int:
        sizes = [self._size(tensor) for tensor in kernel.outputs if not self._is_workspace(tensor)]
        return max(sizes, default=0)

    def _moved(self, kernel: Kernel) -> int:
        tensors = [*kernel.inputs, *(tensor for tensor in kernel.outputs if not self._is_workspace(tensor))]
        return sum(self._size(tensor) for tensor in tensors)

    def convolutions(self) -> Iterator[tuple[KernelCost, int]]:
        """Yield forward convolutions and the gradients of their inputs and weights."""
        kernels = self._trace.kernels
        products: dict[str, int] = {}
        for kernel, shape, after in zip(kernels, self._shapes, [*self._shapes[1:], None], strict=True):
            if kernel.name == "Conv2d_Forward" and shape is not None and after is not None:
                weight = max(self._size(t) for t in kernel.inputs if self._trace.tensors[t].persistent)
                # weight = in x out channels x filter, output = batch x out channels x pixels, in float32
                products[kernel.layer] = weight // _FLOAT_BYTES * prod(after) // after[1]
        for kernel in kernels:
            operator = _CONVOLUTIONS.get(kernel.name)
            written = self._written(kernel) // _FLOAT_BYTES
            if operator is None or kernel.layer not in products or not written:
                continue
            cost = KernelCost(
                operator,
                OperatorClass.CONVOLUTION,
                NumberFormat.TF32,
                kernel.phase,
                kernel.layer_type,
                2 * products[kernel.layer],
                self._moved(kernel),
                products=products[kernel.layer] // written,
            )
            yield cost, kernel.duration

    def layer_normalizations(self) -> Iterator[tuple[KernelCost, int]]:
        """Yield layer normalizations, forward and backward, each the sum of its element-wise kernels."""
        kernels = self._trace.kernels
        by_layer: defaultdict[str, list[Kernel]] = defaultdict(list)
        for kernel in kernels:
            by_layer[kernel.layer].append(kernel)
        for position, kernel in enumerate(kernels):
            first = position - _ROOT_POSITION
            group = kernels[first : first + len(_NORMALIZATION)] if kernel.name == "Sqrt_Forward" else ()
            if [part.layer_type for part in group] != list(_NORMALIZATION):
                continue
            backward = [part for one in group for part in by_layer[one.layer] if part.phase is Phase.BACKWARD]
            self._normalizing |= {part.id for part in (*group, *backward)}
            size = self._written(group[2])
            for name, phase, parts, passes in (
                ("native_layer_norm", Phase.FORWARD, group, 2),
                ("native_layer_norm_backward", Phase.BACKWARD, backward, 3),
            ):
                cost = KernelCost(name, OperatorClass.NORMALIZATION, phase=phase, moved_bytes=passes * size)
                yield cost, sum(part.duration for part in parts)

    def single_operators(self) -> Iterator[tuple[KernelCost, int]]:
        """Yield all other kernels that stand for one operator."""
        for kernel in self._trace.kernels:
            if kernel.id not in self._normalizing:
                cost = self._single(kernel)
                if cost is not None:
                    yield cost, kernel.duration

    def _single(self, kernel: Kernel) -> KernelCost | None:
        name, moved = kernel.name, self._moved(kernel)
        if name.startswith("Linear_") and kernel.phase in (Phase.FORWARD, Phase.BACKWARD):
            return self._linear(kernel)
        if name.startswith("BatchMatMul_"):
            flops = 2 * self._scores_bytes // _FLOAT_BYTES * _HEAD_WIDTH
            return KernelCost(
                "bmm", OperatorClass.BATCHED_MATMUL, phase=kernel.phase, flops=flops, moved_bytes=moved
            )
        if name.startswith("BatchNorm2d_") and kernel.phase in (Phase.FORWARD, Phase.BACKWARD):
            operator = "native_batch_norm" + ("_backward" if kernel.phase is Phase.BACKWARD else "")
            passes = 2 if kernel.phase is Phase.FORWARD else 3
            return self._moving(operator, OperatorClass.NORMALIZATION, kernel, passes * self._written(kernel))
        if name.startswith("SoftmaxBasic_"):
            operator = "_softmax" if kernel.phase is Phase.FORWARD else "_softmax_backward_data"
            return self._moving(operator, OperatorClass.NORMALIZATION, kernel, moved)
        if name in _POOLINGS:
            return self._moving(_POOLINGS[name], OperatorClass.REDUCTION, kernel, self._pooled(kernel, moved))
        if kernel.phase is Phase.OPTIMIZER:
            return self._moving("_foreach_add_", OperatorClass.OPTIMIZER, kernel, moved)
        if name.startswith("GatherV2_"):
            return self._moving("embedding", OperatorClass.INDEXING, kernel, 2 * self._written(kernel))
        sizes = {self._size(tensor) for tensor in kernel.tensors}
        if name.partition("_")[0] in _ELEMENTWISE and len(sizes) == 1:
            return self._moving(name, OperatorClass.ELEMENTWISE, kernel, moved)
        return None

    def _pooled(self, kernel: Kernel, moved: int) -> int:
        if not kernel.name.startswith("MaxPool2d"):
            return moved
        # The gradient of max pooling reads positions where the published one reads the input again.
        smallest = min(self._size(tensor) for tensor in kernel.tensors)
        largest = max(self._size(tensor) for tensor in kernel.tensors)
        return smallest + largest + _INDEX_FACTOR * smallest

    def _moving(self, operator: str, kind: OperatorClass, kernel: Kernel, moved: int) -> KernelCost:
        return KernelCost(operator, kind, phase=kernel.phase, layer_type=kernel.layer_type, moved_bytes=moved)

    def _linear(self, kernel: Kernel) -> KernelCost | None:
        """Work of a product of matrices: with sizes ik, kj and ij in elements, i x j x k is their root."""
        written = self._written(kernel)
        sizes = sorted(self._size(tensor) for tensor in kernel.inputs)[-2:]  # without the bias
        if len(kernel.inputs) == 1:
            return None  # the gradient of a bias
        products = isqrt(prod(size // _FLOAT_BYTES for size in (*sizes, written)))
        weights = [self._size(t) for t in kernel.inputs if self._trace.tensors[t].persistent]
        weight = max(weights, default=0)
        if weights and written < min(sizes) == max(sizes):
            weight = written  # the layer's activations and weight stand in each other's place
        return KernelCost(
            "addmm" if kernel.phase is Phase.FORWARD else "mm",
            OperatorClass.MATMUL,
            phase=kernel.phase,
            flops=2 * products,
            moved_bytes=sum(sizes) + written,
            weight_bytes=weight,
        )
