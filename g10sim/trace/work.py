"""The work of a kernel: the facts that its time on any GPU follows from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import gcd

from g10sim.trace.model import Kernel, Phase, Sizes


class OperatorClass(StrEnum):
    """Classes of operators that reach a similar share of a GPU's peak rates."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched_matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    INDEXING = "indexing"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    OTHER = "other"


_PRODUCTS = {OperatorClass.MATMUL, OperatorClass.BATCHED_MATMUL, OperatorClass.CONVOLUTION}
COMPUTING = frozenset({*_PRODUCTS, OperatorClass.ATTENTION, OperatorClass.RECURRENT})
"""Classes whose FLOPs are counted; the time of all others is that of moving their bytes."""


class NumberFormat(StrEnum):
    """Formats with a peak their own rate, wide ones first; in tf32 tensor cores may multiply float32."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8 = "float8"
    INT8 = "int8"


@dataclass(slots=True)
class KernelCost:
    """The work of one kernel.

    ``operator`` is its name without library (``addmm``), ``layer_type`` the class of the module that ran it.
    ``flops`` are 0 for operators that only move bytes. The rest are sizes, each 0 where it says nothing:

    ``weight_bytes`` are read of weights; ``products`` are the multiply-adds for each element it writes;
    ``views`` are the operators since the kernel before that the host issues, too, and that launch nothing.
    ``unvectorized`` are the elements that it handles one by one, as its operands do not lie alike.
    Of a product: ``alignment`` of the rows of its matrices in bytes, below the 16 that tensor cores want.
    Of a convolution: ``groups``, ``window`` (positions of its kernel, 9 for 3x3), ``stride`` (the largest),
    ``channels`` of the input, ``channels_first`` 1 where its activations lie so. Batch normalization has
    the last two as well; ``channels`` are the width of a layer normalization and the columns of a sum over
    rows, too. Of attention: ``keys`` (the length of the sequence attended to), ``head`` (its width), and 1
    for ``causal``, ``masked`` (by a tensor) and ``dropout``. Of a recurrent layer: the ``steps`` that wait
    for each other.
    """

    operator: str
    operator_class: OperatorClass
    number_format: NumberFormat = NumberFormat.FLOAT32
    phase: Phase = Phase.FORWARD
    layer_type: str = ""
    flops: int = 0
    moved_bytes: int = 0
    weight_bytes: int = field(default=0, metadata={"size": True})
    products: int = field(default=0, metadata={"size": True})
    views: int = field(default=0, metadata={"size": True})
    unvectorized: int = field(default=0, metadata={"size": True})
    alignment: int = field(default=0, metadata={"size": True})
    groups: int = field(default=0, metadata={"size": True})
    window: int = field(default=0, metadata={"size": True})
    stride: int = field(default=0, metadata={"size": True})
    channels: int = field(default=0, metadata={"size": True})
    channels_first: int = field(default=0, metadata={"size": True})
    keys: int = field(default=0, metadata={"size": True})
    head: int = field(default=0, metadata={"size": True})
    causal: int = field(default=0, metadata={"size": True})
    masked: int = field(default=0, metadata={"size": True})
    dropout: int = field(default=0, metadata={"size": True})
    steps: int = field(default=0, metadata={"size": True})

    @property
    def sizes(self) -> Sizes:
        """Sizes that are not 0."""
        return tuple((name, value) for name in SIZES if (value := getattr(self, name)))


SIZES = tuple(one.name for one in fields(KernelCost) if "size" in one.metadata)
"""Names of the sizes of a kernel's work."""


def cost_of(kernel: Kernel) -> KernelCost:
    """Return the work of a kernel that says its class and format."""
    return KernelCost(
        kernel.name,
        OperatorClass(kernel.operator_class),
        NumberFormat(kernel.number_format),
        kernel.phase,
        kernel.layer_type,
        kernel.flops,
        kernel.moved_bytes,
        **dict(kernel.sizes),
    )


_VECTOR_BYTES = 16
"""Bytes of the rows that tensor cores are fed with."""


def rows_alignment(matrices: Iterable[tuple[Sequence[int], Sequence[int], int]]) -> int:
    """Return the bytes to which all rows of the matrices of a product are aligned; 0 for 16 or more.

    Each is a shape, strides in elements, and the bytes of an element.
    """
    found = _VECTOR_BYTES
    for shape, strides, item_bytes in matrices:
        if len(shape) > 1 and min(shape[-2:]) > 1:
            found = gcd(found, max(strides[-2:]) * item_bytes)
    return found % _VECTOR_BYTES


def attended_pairs(length: int, keys: int, *, causal: bool) -> int:
    """Return the pairs that attention multiplies, of positions and the keys that each attends to.

    A causal kernel skips the pairs after the diagonal.
    """
    corner = min(length, keys)
    return corner * (corner + 1) // 2 + (length - corner) * keys if causal else length * keys
