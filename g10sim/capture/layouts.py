"""Layouts of the operands of an operator in memory, as far as its time depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from g10sim.importers.operations import short_name

_VOLUME = 5
_HALF_BYTES = 2
_SINGLY = frozenset({"stack", "roll", "flip", "slice_backward", "select_backward"})
"""Copies by special kernels, or into part of a tensor: elements come one by one."""
_COPIES = frozenset({"_to_copy", "clone", "copy", "copy_"})


def channels_first(image: Any) -> int:
    """Return 1 for an image or a volume whose channels do not lie last in memory, else 0."""
    last = torch.channels_last_3d if image.dim() == _VOLUME else torch.channels_last
    is_image = image.dim() in (_VOLUME - 1, _VOLUME)
    return int(is_image and not image.is_contiguous(memory_format=last))


def summed_columns(args: Sequence[Any]) -> int:
    """Return the columns that a sum adds up, each for itself; 0 for a sum of what lies together."""
    summed = args[0]
    given = args[1] if len(args) > 1 and args[1] else range(summed.dim())
    over = {one % summed.dim() for one in ([given] if isinstance(given, int) else given)}
    sides = [position for position in range(summed.dim()) if summed.shape[position] > 1]
    nearest = min(sides, key=summed.stride, default=None)
    if nearest is None or nearest in over:
        return 0
    return prod(int(summed.shape[position]) for position in sides if position not in over)


def unvectorized(func: Any, operands: Sequence[Any], *, pointwise: bool) -> int:
    """Return how many elements an elementwise kernel or a copy handles one by one, 0 if it loads vectors.

    Vectors are loaded where all operands lie alike in memory, without gaps, and none is converted while it is
    loaded (PyTorch, aten/src/ATen/native/cuda/CUDALoops.cuh, ``gpu_kernel_impl``). float32 to 16 bits has
    a special kernel (Copy.cu), as have operators that are not pointwise (dropout).
    """
    name = short_name(func._schema.name)
    tensors = [one for one in operands if one.dim() and one.numel() > 1]
    if not tensors:
        return 0
    elements: int = max(one.numel() for one in tensors)
    orders = {_order(one) for one in tensors}
    alike = len(orders) == 1 and None not in orders
    if name in _SINGLY or (name == "cat" and not alike):
        return elements
    if name not in _COPIES and not pointwise:
        return 0
    alike = alike and len({one.shape for one in tensors}) == 1
    written = tensors[0 if name.endswith("_") else -1]
    narrows = name in _COPIES and written.element_size() == _HALF_BYTES
    converts = len({one.dtype for one in tensors} - {torch.bool}) > 1 and not narrows
    return 0 if alike and not converts else elements


def _order(tensor: Any) -> tuple[int, ...] | None:
    """Return the dimensions by distance in memory, without those of one element; None if there are gaps."""
    sides = sorted(
        (stride, position)
        for position, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        if size > 1
    )
    following = 1
    for stride, position in sides:
        if stride != following:
            return None
        following *= int(tensor.shape[position])
    return tuple(position for _, position in sides)
