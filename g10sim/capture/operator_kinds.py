"""What the time of a kernel depends on: its operator, that operator's class, and the work it does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from g10sim.trace.model import Phase


class OperatorClass(StrEnum):
    """Operators that reach a similar share of a GPU's peak rates."""

    MATMUL = "matmul"
    BATCHED_MATMUL = "batched_matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    INDEXING = "indexing"
    COPY = "copy"
    OPTIMIZER = "optimizer"
    OTHER = "other"


COMPUTING = frozenset(
    {OperatorClass.MATMUL, OperatorClass.BATCHED_MATMUL, OperatorClass.CONVOLUTION, OperatorClass.ATTENTION}
)
"""Classes whose FLOPs are counted; the time of all others is that of moving their bytes."""


class NumberFormat(StrEnum):
    """Formats with a peak rate of their own; tf32 is how tensor cores may multiply float32."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    TF32 = "tf32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Bound(StrEnum):
    """Which of a GPU's peak rates limits a kernel."""

    COMPUTE = "compute"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class KernelCost:
    """The work of one kernel.

    ``operator`` is its name without library (``addmm``), ``layer_type`` the class of the module that ran it.
    ``flops`` are 0 for operators that only move bytes; ``weight_bytes`` is what it reads of weights;
    ``products`` are the multiply-adds for each element it writes (0 where it computes nothing).
    """

    operator: str
    operator_class: OperatorClass
    number_format: NumberFormat = NumberFormat.FLOAT32
    phase: Phase = Phase.FORWARD
    layer_type: str = ""
    flops: int = 0
    moved_bytes: int = 0
    weight_bytes: int = 0
    products: int = 0
