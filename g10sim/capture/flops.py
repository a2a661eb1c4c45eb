"""FLOPs (a multiply-add is two) of the operators that ``torch.utils.flop_counter`` does not count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

Formula: TypeAlias = Callable[..., int]
"""FLOPs of a call, from its positional arguments."""


def _vector_product(matrix: Any, *_: Any) -> int:
    """Count ``mv``, ``dot`` and ``vdot``: a multiply-add for each element of the first operand."""
    return int(2 * prod(matrix.shape))


def _added_vector_product(_: Any, matrix: Any, *__: Any) -> int:
    """Count ``addmv``, whose first argument is what is added."""
    return _vector_product(matrix)


def _matrix_product(left: Any, right: Any, *_: Any) -> int:
    """Count a product of two matrices: ``_int_mm``, of 8-bit integers."""
    return int(2 * prod(left.shape) * right.shape[-1])


FORMULAS: Mapping[str, Formula] = {
    "mv": _vector_product,
    "dot": _vector_product,
    "vdot": _vector_product,
    "addmv": _added_vector_product,
    "_int_mm": _matrix_product,
}
"""By name of the operator without library."""
