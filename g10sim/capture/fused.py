"""Operators other than attention that are one kernel on CUDA devices and many on CPUs.

Root mean square normalization (PyTorch's ``_fused_rms_norm``), layers of recurrent networks (one call of
cuDNN each way for all of them) and cells of recurrent networks (``_thnn_fused_lstm_cell`` and its kin).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from g10sim.capture.attention import operator

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_GRU_WORKSPACE = 5
"""Values that a fused GRU cell keeps for each of its states (PyTorch, aten/src/ATen/native/cuda/RNN.cu)."""


_rms_norm = operator("rms_norm", "(Tensor input, int[] shape, Tensor? weight) -> (Tensor, Tensor)")
_rms_norm_backward = operator(
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


_recurrent = operator(
    "recurrent",
    "(Tensor sequence, Tensor[] states, Tensor[] weights, int gates, int ways, bool train)"
    " -> (Tensor, Tensor[], Tensor)",
)
_recurrent_backward = operator(
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


def recurrent_flops(sequence: Any, _: Any, weights: Sequence[Any], *__: Any) -> int:
    """FLOPs of layers of a recurrent network: at each step all gates' weights meet inputs and states."""
    matrices = sum(int(weight.numel()) for weight in weights if weight.dim() > 1)
    return 2 * int(sequence.shape[0]) * int(sequence.shape[1]) * matrices


def recurrent_backward_flops(_: Any, *args: Any) -> int:
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


FUSED_FORMS: Mapping[str, Callable[..., Any]] = {
    "rms_norm": lambda tensor, shape, weight=None, eps=None: _rms_norm(tensor, list(shape), weight)[0],
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    **{f"{name}.input": partial(_layers, gates) for name, gates in _GATES.items()},
}
"""These operators, by the name of the CPU's."""
SHAPES: Mapping[str, Callable[..., Any]] = {
    "_thnn_fused_gru_cell": _gru_cell_shapes,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward_shapes,
}
"""Shapes of results of operators for which PyTorch has none."""
