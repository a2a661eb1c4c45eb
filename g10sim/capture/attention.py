"""Operators that are fused on CUDA devices only: attention, and dropout with its mask.

Attention is recorded as one operator each way, with the memory of the fused kernels: forward keeps query,
key, value, output and the logarithm of the softmax's denominators (Dao et al., FlashAttention,
arXiv 2205.14135, section 3.1); dropout inside it keeps only a random seed, no mask.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

NAMESPACE = "g10sim"
_LEAST_DIMENSIONS = 3
_FORWARD = (
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal, float scale)"
    " -> (Tensor, Tensor)"
)
_BACKWARD = (
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor output,"
    " Tensor denominators, float dropout, bool causal, float scale) -> (Tensor, Tensor, Tensor)"
)


def operator(name: str, schema: str) -> Any:
    """Make an operator that has shapes and no kernel. Raises RuntimeError where it is to compute."""
    return torch.library.custom_op(f"{NAMESPACE}::{name}", _never_computed, mutates_args=(), schema=schema)


def _never_computed(*_: Any) -> Any:
    raise RuntimeError("fused operators are recorded, never computed; allowed: fake tensors")


_attention = operator("attention", _FORWARD)
_attention_backward = operator("attention_backward", _BACKWARD)


_HEADS_INSIDE = (0, 2, 1)
"""Batch, positions, heads: the order where strides leave it open."""


def _laid_out_as(tensor: Any, width: int) -> Any:
    """Make an empty result whose batch, heads and positions lie in memory in the order of a tensor's.

    So the fused kernels do (``empty_like`` in PyTorch's flash_api.cpp, and cuDNN's).
    """
    order = sorted(_HEADS_INSIDE, key=lambda dimension: -tensor.stride(dimension))
    made = tensor.new_empty([*(tensor.shape[dimension] for dimension in order), width])
    return made.permute(*map(order.index, range(3)), 3)


def _attention_shapes(query: Any, key: Any, value: Any, *_: Any) -> tuple[Any, Any]:
    return _laid_out_as(query, value.shape[-1]), query.new_empty(query.shape[:-1], dtype=torch.float32)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    query, key, value, mask, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, mask, *output)


def _differentiate(ctx: Any, gradient: Any, _: Any) -> tuple[Any, ...]:
    gradients = _attention_backward(gradient, *ctx.saved_tensors, *ctx.options)
    return (*gradients, None, None, None, None)


_attention.register_fake(_attention_shapes)
_attention_backward.register_fake(
    lambda gradient, *others: tuple(_laid_out_as(tensor, tensor.shape[-1]) for tensor in others[:3])
)
_attention.register_autograd(_differentiate, setup_context=_keep)


def _product_flops(query: Any, key: Any, width: int, causal: bool) -> int:
    """FLOPs of one product over all pairs of positions; a causal kernel skips those after the diagonal."""
    batch, heads, length, _ = query.shape
    keys = key.shape[-2]
    corner = min(length, keys)
    pairs = corner * (corner + 1) // 2 + (length - corner) * keys if causal else length * keys
    return int(2 * batch * heads * pairs * width)


def attention_flops(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float
) -> int:
    """FLOPs of fused attention: scores and weighted values."""
    return sum(_product_flops(query, key, tensor.shape[-1], causal) for tensor in (query, value))


def attention_backward_flops(
    gradient: Any, query: Any, key: Any, value: Any, mask: Any, output: Any, denominators: Any, *options: Any
) -> int:
    """FLOPs of its gradient: the scores again, and the gradients of scores, query, key and value.

    Five products for the forward pass's two (Dao, FlashAttention-2, arXiv 2307.08691, section 4.1).
    """
    causal = bool(options[1])
    scores = _product_flops(query, key, query.shape[-1], causal)
    values = _product_flops(query, key, value.shape[-1], causal)
    return 3 * scores + 2 * values


def _fused(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    learned_mask = attn_mask is not None and attn_mask.requires_grad
    if query.dim() < _LEAST_DIMENSIONS or learned_mask:
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    lead = query.shape[:-3]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    inputs = [query, key, value]
    if len(lead) != 1:
        inputs = [tensor.reshape(math.prod(lead), *tensor.shape[-3:]) for tensor in inputs]
    output = _attention(*inputs, attn_mask, dropout_p, is_causal, scale)[0]
    return output.reshape(*lead, *output.shape[-3:]) if len(lead) != 1 else output


def _dropout(tensor: Any, probability: float, train: bool) -> Any:
    if not train or probability == 0 or tensor.numel() == 0:
        return tensor
    if probability == 1:
        return tensor * 0
    return torch.native_dropout(tensor, probability, True)[0]


def attention_kernels(attention: str) -> AbstractContextManager[None]:
    """Return a context in which attention runs ``fused``, or ``eager`` (as several operators)."""
    return nullcontext() if attention == "fused" else sdpa_kernel(SDPBackend.MATH)


def attention_forms(attention: str) -> Mapping[str, Callable[..., Any]]:
    """Return the operators of a CUDA device by the name of the CPU's.

    ``attention`` is ``fused`` or ``eager`` (scores and softmax as separate tensors). Dropout keeps a
    mask of one byte an element (``native_dropout``, CUDA's form) and not the CPU's mask of floats.
    """
    fused = {"scaled_dot_product_attention": _fused} if attention == "fused" else {}
    return {"dropout": _dropout, **fused}


_MASKS = "transformers.masking_utils"


@contextmanager
def one_sequence_a_sample() -> Iterator[None]:
    """Let models of transformers take each sample for one sequence whose positions count up, while open.

    They look in the values of positions for several sequences in a sample, and in a cache of full length for
    the tokens before a prompt. Where values are unknown they build a mask that hides the others: a tensor for
    all pairs of positions, with which no fused kernel knows that it is causal, and keys and values copied for
    every head. Does nothing before a model has been built.
    """
    masks = sys.modules.get(_MASKS)
    if masks is None or not hasattr(masks, "find_packed_sequence_indices"):
        yield
        return
    look, is_causal = masks.find_packed_sequence_indices, masks._ignore_causal_mask_sdpa

    def find(position_ids: Any) -> None:
        look(position_ids)  # its kernels run on a device, too

    def begins_empty(*args: Any, **kwargs: Any) -> Any:
        named = {name: _offset(value, name) for name, value in kwargs.items()}
        return is_causal(*map(_offset, args), **named)

    with (
        mock.patch.object(masks, "find_packed_sequence_indices", find),
        mock.patch.object(masks, "_ignore_causal_mask_sdpa", begins_empty),
    ):
        yield


def _offset(value: Any, name: str = "q_offset") -> Any:
    """Return 0 for a number of earlier tokens that only a device knows, all else as it is."""
    return 0 if name == "q_offset" and isinstance(value, torch.Tensor) and not value.dim() else value
