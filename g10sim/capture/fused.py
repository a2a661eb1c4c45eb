"""Operators that are fused on CUDA devices only.

Attention is recorded as one operator each way, with the memory of the fused kernels: forward keeps query,
key, value, output and the logarithm of the softmax's denominators (Dao et al., FlashAttention,
arXiv 2205.14135, section 3.1); dropout inside it keeps only a random seed, no mask. Others are dropout with
its mask, root mean square normalization (PyTorch's ``_fused_rms_norm``), layers of recurrent networks (one
call of cuDNN each way for all of them) and cells of recurrent networks (``_thnn_fused_lstm_cell`` and its
kin).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from g10sim.trace.work import attended_pairs

NAMESPACE = "g10sim"
_LEAST_DIMENSIONS = 3
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_GRU_WORKSPACE = 5
"""Values that a fused GRU cell keeps for each of its states (PyTorch, aten/src/ATen/native/cuda/RNN.cu)."""


def _operator(name: str, schema: str) -> Any:
    """Make an operator that has shapes and no kernel. Raises RuntimeError where it is to compute."""
    return torch.library.custom_op(f"{NAMESPACE}::{name}", _never_computed, mutates_args=(), schema=schema)


def _never_computed(*_: Any) -> Any:
    raise RuntimeError("fused operators are recorded, never computed; allowed: fake tensors")


_attention = _operator(
    "attention",
    "(Tensor query, Tensor key, Tensor value, Tensor? mask, float dropout, bool causal, float scale)"
    " -> (Tensor, Tensor)",
)
_attention_backward = _operator(
    "attention_backward",
    "(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor output,"
    " Tensor denominators, float dropout, bool causal, float scale) -> (Tensor, Tensor, Tensor)",
)


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


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    query, key, value, mask, *ctx.options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, key, value, mask, *output)


def _differentiate_attention(ctx: Any, gradient: Any, _: Any) -> tuple[Any, ...]:
    gradients = _attention_backward(gradient, *ctx.saved_tensors, *ctx.options)
    return (*gradients, None, None, None, None)


_attention.register_fake(_attention_shapes)
_attention_backward.register_fake(
    lambda gradient, *others: tuple(_laid_out_as(tensor, tensor.shape[-1]) for tensor in others[:3])
)
_attention.register_autograd(_differentiate_attention, setup_context=_keep_attention)


def _product_flops(query: Any, key: Any, width: int, causal: bool) -> int:
    """FLOPs of one product over all pairs of positions."""
    batch, heads, length, _ = query.shape
    return int(2 * batch * heads * attended_pairs(length, key.shape[-2], causal=causal) * width)


def attention_flops(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float, **_: Any
) -> int:
    """FLOPs of fused attention: scores and weighted values."""
    return sum(_product_flops(query, key, tensor.shape[-1], causal) for tensor in (query, value))


def attention_backward_flops(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **_: Any) -> int:
    """FLOPs of its gradient: the scores again, and the gradients of scores, query, key and value.

    Five products for the forward pass's two (Dao, FlashAttention-2, arXiv 2307.08691, section 4.1).
    """
    causal = bool(rest[-2])
    scores = _product_flops(query, key, query.shape[-1], causal)
    values = _product_flops(query, key, value.shape[-1], causal)
    return 3 * scores + 2 * values


def _fused_attention(
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


_rms_norm = _operator("rms_norm", "(Tensor input, int[] shape, Tensor? weight) -> (Tensor, Tensor)")
_rms_norm_backward = _operator(
    "rms_norm_backward",
    "(Tensor gradient, Tensor input, Tensor denominators, int[] shape, Tensor? weight) -> (Tensor, Tensor)",
)


def _rms_norm_shapes(tensor: Any, shape: Sequence[int], weight: Any) -> tuple[Any, Any]:
    rows = tensor.shape[: tensor.dim() - len(shape)]
    return torch.empty_like(tensor), tensor.new_empty((*rows, *[1] * len(shape)), dtype=torch.float32)


def _rms_norm_backward_shapes(_: Any, tensor: Any, __: Any, ___: Any, weight: Any) -> tuple[Any, Any]:
    return torch.empty_like(tensor), tensor.new_empty(0) if weight is None else torch.empty_like(weight)


def _keep_rms_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    tensor, ctx.shape, weight = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(tensor, output[1], weight)


def _differentiate_rms_norm(ctx: Any, gradient: Any, _: Any) -> tuple[Any, ...]:
    tensor, denominators, weight = ctx.saved_tensors
    of_input, of_weight = _rms_norm_backward(gradient, tensor, denominators, ctx.shape, weight)
    return of_input, None, None if weight is None else of_weight


_rms_norm.register_fake(_rms_norm_shapes)
_rms_norm_backward.register_fake(_rms_norm_backward_shapes)
_rms_norm.register_autograd(_differentiate_rms_norm, setup_context=_keep_rms_norm)


_recurrent = _operator(
    "recurrent",
    "(Tensor sequence, Tensor[] states, Tensor[] weights, int gates, int ways, bool train)"
    " -> (Tensor, Tensor[], Tensor)",
)
_recurrent_backward = _operator(
    "recurrent_backward",
    "(Tensor gradient, Tensor sequence, Tensor[] states, Tensor[] weights, Tensor output, Tensor reserve,"
    " int gates, int ways) -> (Tensor, Tensor[], Tensor[])",
)


def _recurrent_shapes(
    sequence: Any, states: Sequence[Any], weights: Sequence[Any], gates: int, ways: int, train: bool
) -> tuple[Any, list[Any], Any]:
    steps, batch, _ = sequence.shape
    output = sequence.new_empty((steps, batch, ways * states[0].shape[-1]))
    kept = steps * states[0].numel() * (gates + 1) if train else 0  # gates, and what they make of a state
    return output, [torch.empty_like(state) for state in states], sequence.new_empty(kept)


def _recurrent_backward_shapes(
    _: Any, sequence: Any, states: Sequence[Any], weights: Sequence[Any], *__: Any
) -> tuple[Any, list[Any], list[Any]]:
    of_states, of_weights = ([torch.empty_like(one) for one in group] for group in (states, weights))
    return torch.empty_like(sequence), of_states, of_weights


def _keep_recurrent(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    sequence, states, weights, ctx.gates, ctx.ways, _ = inputs
    ctx.states = len(states)
    ctx.save_for_backward(sequence, *states, *weights, output[0], output[2])


def _differentiate_recurrent(ctx: Any, gradient: Any, *_: Any) -> tuple[Any, ...]:
    sequence, *rest, output, reserve = ctx.saved_tensors
    states, weights = rest[: ctx.states], rest[ctx.states :]
    found = _recurrent_backward(gradient, sequence, states, weights, output, reserve, ctx.gates, ctx.ways)
    return (*found, None, None, None)


_recurrent.register_fake(_recurrent_shapes)
_recurrent_backward.register_fake(_recurrent_backward_shapes)
_recurrent.register_autograd(_differentiate_recurrent, setup_context=_keep_recurrent)


def _layers(gates: int, sequence: Any, states: Any, weights: Sequence[Any], *options: Any) -> tuple[Any, ...]:
    _has_biases, _num_layers, _dropout, train, bidirectional, batch_first = options
    if batch_first:
        sequence = sequence.transpose(0, 1)
    given = [states] if isinstance(states, torch.Tensor) else list(states)
    output, after, _ = _recurrent(sequence, given, list(weights), gates, 2 if bidirectional else 1, train)
    return (output.transpose(0, 1) if batch_first else output, *after)


def recurrent_flops(sequence: Any, states: Any, weights: Sequence[Any], *_: Any, **__: Any) -> int:
    """FLOPs of layers of a recurrent network: at each step all gates' weights meet inputs and states."""
    matrices = sum(int(weight.numel()) for weight in weights if weight.dim() > 1)
    return 2 * int(sequence.shape[0]) * int(sequence.shape[1]) * matrices


def recurrent_backward_flops(_: Any, *args: Any, **__: Any) -> int:
    """FLOPs of their gradients: those of weights and of inputs and states take as much as the layers each."""
    return 2 * recurrent_flops(*args)


def waiting_steps(sequence: Any, states: Sequence[Any], ways: int) -> int:
    """Count the steps of a call that wait for each other: those of all layers, both ways side by side."""
    return int(sequence.shape[0]) * (int(states[0].shape[0]) // ways)


def recurrent_bytes_again(sequence: Any, weights: Sequence[Any]) -> int:
    """Bytes of the weights of states that each step but the first reads again."""
    of_states = [weight for weight in weights if weight.dim() > 1][1::2]
    size = sum(int(weight.numel() * weight.element_size()) for weight in of_states)
    return (int(sequence.shape[0]) - 1) * size


def _lstm_cell(tensor: Any, states: Any, of_input: Any, of_state: Any, *biases: Any) -> tuple[Any, Any]:
    state, cell = states
    gates = tensor @ of_input.t(), state @ of_state.t()
    hidden, after, _ = torch.ops.aten._thnn_fused_lstm_cell(*gates, cell, *biases)
    return hidden, after


def _gru_cell(tensor: Any, state: Any, of_input: Any, of_state: Any, *biases: Any) -> Any:
    gates = tensor @ of_input.t(), state @ of_state.t()
    return torch.ops.aten._thnn_fused_gru_cell(*gates, state, *biases)[0]


def _gru_cell_shapes(gates: Any, _: Any, state: Any, *__: Any) -> tuple[Any, Any]:
    batch, width = state.shape
    return torch.empty_like(state), state.new_empty((batch, _GRU_WORKSPACE * width))


def _gru_cell_backward_shapes(gradient: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    batch, width = gradient.shape
    gates = [gradient.new_empty((batch, 3 * width)) for _ in range(2)]
    biases = [gradient.new_empty(3 * width if has_bias else 0) for _ in range(2)]
    return (*gates, torch.empty_like(gradient), *biases)


SHAPES: Mapping[str, Callable[..., Any]] = {
    "_thnn_fused_gru_cell": _gru_cell_shapes,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward_shapes,
}
"""Shapes of results of operators for which PyTorch has none."""


def fused_forms(attention: str) -> Mapping[str, Callable[..., Any]]:
    """Return these operators by the name of the CPU's.

    ``attention`` is ``fused`` or ``eager`` (scores and softmax as separate tensors). Dropout keeps a
    mask of one byte an element (``native_dropout``, CUDA's form) and not the CPU's mask of floats.
    """
    fused = {"scaled_dot_product_attention": _fused_attention} if attention == "fused" else {}
    return {
        "dropout": _dropout,
        "rms_norm": lambda tensor, shape, weight=None, eps=None: _rms_norm(tensor, list(shape), weight)[0],
        "lstm_cell": _lstm_cell,
        "gru_cell": _gru_cell,
        **{f"{name}.input": partial(_layers, gates) for name, gates in _GATES.items()},
        **fused,
    }
