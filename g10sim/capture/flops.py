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


def _matrix_product(left: Any, right: Any, *_: Any) -> int:
    """Count a product of two matrices: ``_int_mm``, of 8-bit integers."""
    return int(2 * prod(left.shape) * right.shape[-1])


def _grouped_product(left: Any, right: Any, *_: Any) -> int:
    """Count ``_grouped_mm``: each row of a ragged batch meets the matrix of its group only.

    A ragged batch has two dimensions; where only the second operand is one, its columns are divided among the
    groups of the first.
    """
    ragged_columns = left.dim() > right.dim()
    return _matrix_product(left, right) // (left.shape[0] if ragged_columns else 1)


def _attention_module(query: Any, key: Any, *_: Any) -> int:
    """Count ``_native_multi_head_attention``: four projections, scores and weighted values."""
    batch, length, width = query.shape
    keys = key.shape[1]
    projections = (2 * length + 2 * keys) * width * width
    return int(2 * batch * (projections + 2 * length * keys * width))


FORMULAS: Mapping[str, Formula] = {
    "mv": _vector_product,
    "dot": _vector_product,
    "vdot": _vector_product,
    "addmv": lambda added, *others: _vector_product(*others),
    "_int_mm": _matrix_product,
    "_addmm_activation": lambda added, *others: _matrix_product(*others),
    "_grouped_mm": _grouped_product,
    "_scaled_grouped_mm": _grouped_product,
    "_native_multi_head_attention": _attention_module,
}
"""By name of the operator without library."""
