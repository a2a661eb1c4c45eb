"""Bytes that operators move of their tensors: what they read, replace and change, and in how many passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from g10sim.capture.fused import recurrent_bytes_again
from g10sim.importers.operations import OVERWRITING, aten, short_name

REPLACING = OVERWRITING | aten("bernoulli_ exponential_ normal_ random_ uniform_ _foreach_copy_")
"""In-place operators that do not read what they replace."""

SCALING_GRADIENTS = aten("_fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_")
"""Optimizers whose schemas say that they change gradients: only to undo a scale, if they are given one."""

_GATHERED = aten("embedding index index_select gather take _unsafe_index nll_loss_forward nll_loss2d_forward")
_PUT = aten("index_put _index_put_impl")
_ACCUMULATE = 3
_COPIED = aten("scatter index_copy")
_SCATTERED = _PUT | _COPIED | aten("scatter_add index_add")
_MADE_LIKE = "new_zeros new_ones new_full zeros_like ones_like full_like rand_like randn_like randint_like"
_SPREAD_GRADIENTS = """
    nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward avg_pool2d_backward avg_pool3d_backward
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
"""
_SHAPE_ONLY = dict.fromkeys(aten(_MADE_LIKE), 0) | dict.fromkeys(aten(_SPREAD_GRADIENTS), 1)
"""Position of the tensor of which an operator takes nothing but shape and type (PyTorch,
aten/src/ATen/native/cuda/NLLLoss.cu, DilatedMaxPool2d.cu, AveragePool2d.cu; native/TensorFactories.cpp)."""
_NORMALIZED = ("native_batch_norm", "cudnn_batch_norm", "native_group_norm")
_OTHERS = ("native_layer_norm", "_fused_rms_norm", "rms_norm")
_READ_TWICE: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(_NORMALIZED, (0,)),
    **{f"{name}_backward": (0, 1) for name in (*_NORMALIZED, *_OTHERS)},
}
"""Positions of tensors that a normalization passes over twice: for sums, and for what follows from them
(PyTorch, aten/src/ATen/native/cuda/Normalization.cuh, group_norm_kernel.cu, layer_norm_kernel.cu)."""
_TRAINING = {"native_batch_norm": 5, "cudnn_batch_norm": 5, "native_batch_norm_backward": 7}
"""Positions of the arguments that say whether there are sums to make."""
_DIGIT_BITS = 8
"""Bits of a key that one pass of a radix sort on a GPU orders by (Adinets and Merrill, Onesweep, arXiv
2206.01784)."""
_SECTOR_BYTES = 32
"""Smallest access to device memory (CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""


def tensors_of(tree: Any) -> list[Any]:
    """Return the tensors among values, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def running_statistics(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the arguments that batch normalization updates in training though its schema is silent."""
    if func._schema.name not in ("aten::native_batch_norm", "aten::cudnn_batch_norm") or not args[5]:
        return ()
    return tuple(position for position in (3, 4) if args[position] is not None)


@cache
def mutated_arguments(func: Any) -> tuple[tuple[int, str, bool], ...]:
    """Position, name and whether it is a pure output, of each argument that an operator writes to."""
    return tuple(
        (position, argument.name, argument.is_out)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def touched_bytes(tensor: Any) -> int:
    """Bytes of a storage that a tensor covers: each element once, repeated (expanded) ones too."""
    elements = prod(
        size if stride else min(size, 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return min(int(elements * tensor.element_size()), int(tensor.untyped_storage().nbytes()))


def read_bytes(func: Any, tensors: Sequence[Any], position: int, written_bytes: int) -> int:
    """Bytes that an operator reads of its tensor argument number ``position``.

    A look-up reads the rows it returns, at least a memory sector for each index, and not the table.
    """
    whole = touched_bytes(tensors[position])
    if position == _SHAPE_ONLY.get(func._schema.name):
        return 0
    if position or func._schema.name not in _GATHERED:
        return whole
    indices = [int(tensor.numel()) for tensor in tensors[1:] if tensor.dtype in (torch.int64, torch.int32)]
    return min(whole, max(written_bytes, _SECTOR_BYTES * max(indices, default=0)))


def bytes_again(func: Any, args: Sequence[Any]) -> int:
    """Bytes that an operator moves beyond once for each tensor: further passes over some of them."""
    name = short_name(func._schema.name)
    if name in ("sort", "topk"):
        elements, size = int(args[0].numel()), int(args[0].element_size())
        passes = size * 8 // _DIGIT_BITS - 1
        return passes * (2 * elements * (size + _INDEX_BYTES) if name == "sort" else elements * size)
    if name in _RECURRENT:
        given = args[name.endswith("_backward") :]
        return recurrent_bytes_again(given[0], given[2])
    if name in _TRAINING and not args[_TRAINING[name]]:
        return 0
    return sum(touched_bytes(args[position]) for position in _READ_TWICE.get(name, ()))


_INDEX_BYTES = 8
_RECURRENT = ("recurrent", "recurrent_backward")


def mutated_bytes(func: Any, tensors: Sequence[Any], target: Any) -> int:
    """Bytes that an in-place operator changes in ``target``: of a scatter, as many as it is given."""
    whole = touched_bytes(target)
    if func._schema.name.removesuffix("_") not in _SCATTERED:
        return whole
    others = [tensor for tensor in tensors if tensor is not target]
    values = sum(touched_bytes(tensor) for tensor in others if tensor.dtype is target.dtype)
    places = sum(int(tensor.numel()) for tensor in others) * int(target.element_size())
    return min(whole, values or places)


def kept_bytes(func: Any, args: Sequence[Any], tensors: Sequence[Any], target: Any) -> int:
    """Bytes of ``target`` that an in-place operator reads to change them; none if it replaces them."""
    name = func._schema.name.removesuffix("_")
    replaces = name in _COPIED and "reduce" not in func._schema.overload_name
    if name in _PUT:
        replaces = not any(args[_ACCUMULATE : _ACCUMULATE + 1])
    return 0 if replaces else mutated_bytes(func, tensors, target)


def mutated_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[set[int], set[int]]:
    """Python ids of the tensor arguments that are written to, and of those written without being read."""
    name = func._schema.name
    unscaled = name in SCALING_GRADIENTS and kwargs.get("grad_scale") is None
    mutated = {id(args[position]) for position in running_statistics(func, args)}
    overwritten: set[int] = set()
    for position, argument, is_out in mutated_arguments(func):
        if unscaled and argument == "grads":
            continue
        value = args[position] if position < len(args) else kwargs.get(argument)
        written = {id(tensor) for tensor in tensors_of(value)}
        mutated |= written
        if is_out or name in REPLACING:
            overwritten |= written
    return mutated, overwritten
