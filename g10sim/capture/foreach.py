"""How PyTorch cuts an operator on lists of tensors into kernels on a CUDA device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

CHUNK_ELEMENTS = 65536
MOST_BLOCKS = 320
MOST_TENSORS = (110, 64, 48, 36, 30)
"""Limits of one launch (PyTorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh: ``kChunkSize``,
``depth_to_max_blocks``, and ``depth_to_max_tensors`` for 1 to 5 lists)."""


class Part(NamedTuple):
    """Elements of one tensor of each list that a launch works on."""

    position: int
    elements: int


def launches(elements: Sequence[int], lists: int) -> Iterator[tuple[Part, ...]]:
    """Yield the parts of each launch.

    ``elements`` are the sizes of the tensors, alike in all ``lists`` lists. A launch ends when it has as
    many chunks as blocks, or the last chunk of as many tensors as fit; a tensor cut by the end of a launch
    goes on in the next.
    """
    most_tensors = MOST_TENSORS[min(lists, len(MOST_TENSORS)) - 1]
    parts: list[Part] = []
    blocks = 0
    for position, size in enumerate(elements):
        left = size
        while left:
            taken = min(left, (MOST_BLOCKS - blocks) * CHUNK_ELEMENTS)
            blocks += -(-taken // CHUNK_ELEMENTS)
            left -= taken
            parts.append(Part(position, taken))
            if blocks == MOST_BLOCKS or (len(parts) == most_tensors and not left):
                yield tuple(parts)
                parts, blocks = [], 0
    if parts:
        yield tuple(parts)
