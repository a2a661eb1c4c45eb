"""How a CUDA device runs the gradients of a convolution: one kernel for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from g10sim.capture import operators
from g10sim.capture.operator_kinds import OperatorClass

CONVOLUTION_GRADIENTS = "aten::convolution_backward"
_GRADIENT, _INPUT, _WEIGHT, _MASK = 0, 1, 2, 10
"""Positions of arguments of ``aten::convolution_backward``."""
_PARTS = (
    ("input", _WEIGHT, OperatorClass.CONVOLUTION),
    ("weight", _INPUT, OperatorClass.CONVOLUTION),
    ("bias", None, OperatorClass.REDUCTION),
)


class Part(NamedTuple):
    """One kernel: its name and class, the tensors it reads, the one it writes, and its FLOPs."""

    name: str
    operator_class: OperatorClass
    reads: tuple[Any, ...]
    written: Any
    flops: int


def convolution_gradients(func: Any, args: Sequence[Any], result: Sequence[Any]) -> list[Part]:
    """Take ``aten::convolution_backward`` apart: gradients of input, weight and bias, as far as asked for.

    PyTorch calls cuDNN once for the input and once for the weight and sums up the bias
    (aten/src/ATen/native/Convolution.cpp, ``convolution_backward``).
    """
    parts = []
    for position, (name, other, kind) in enumerate(_PARTS):
        written = result[position]
        if written is None:
            continue
        mask = [index == position for index in range(len(_PARTS))]
        asked = (*args[:_MASK], mask)
        flops = operators.count_flops(func, asked, {}, result) if kind is OperatorClass.CONVOLUTION else 0
        reads = (args[_GRADIENT],) if other is None else (args[_GRADIENT], args[other])
        parts.append(Part(f"convolution_backward_{name}", kind, reads, written, flops))
    return parts
