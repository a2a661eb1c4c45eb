"""Names of PyTorch's operators, and the ones that need special treatment in any recording."""

from __future__ import annotations


def aten(names: str) -> frozenset[str]:
    """Return names, separated by spaces, with the namespace of PyTorch's own operators."""
    return frozenset(f"aten::{name}" for name in names.split())


def short_name(name: str) -> str:
    """Return the name of an operator without its namespace (``add_`` for ``aten::add_``)."""
    return name.rpartition("::")[2]


ALLOCATIONS = aten("empty empty_like empty_strided empty_permuted new_empty new_empty_strided")
"""Operators that return a new storage without writing to it."""

OVERWRITING = aten("copy_ fill_ zero_ _foreach_zero_")
"""In-place operators that do not read what they replace."""
