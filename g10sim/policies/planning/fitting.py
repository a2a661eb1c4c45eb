"""Tensors that have room, taken in an order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def fitting(tensors: Iterable[int], sizes: Sequence[int], room_bytes: float) -> dict[int, int]:
    """Return tensors that fit next to those before them, each with its size; others are passed over."""
    found, left = dict[int, int](), room_bytes
    for tensor in tensors:
        if sizes[tensor] <= left:
            found[tensor] = sizes[tensor]
            left -= sizes[tensor]
    return found
