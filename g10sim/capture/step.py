"""Runs a training step on tensors without values and makes a trace of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from g10sim.capture.assemble import assemble
from g10sim.capture.attention import device_operators
from g10sim.capture.gpu import GpuTimingSpec, load_gpu
from g10sim.capture.layers import LayerTracker
from g10sim.capture.recorder import Recorder
from g10sim.capture.refusal import refusal
from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest
from g10sim.trace.model import Phase, TensorKind, Trace

Build = Callable[[], tuple[Any, Any]]

ATTENTIONS = ("fused", "eager")
_DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_LEARNING_RATE = 1e-3
"""PyTorch's default; no value of it changes which kernels run."""


def capture_step(
    build: Build,
    *,
    gpu: str | Path | GpuTimingSpec = "a100-40g",
    optimizer: str = "adamw",
    dtype: str = "float32",
    attention: str = "fused",
    model: str = "model",
    batch_size: int | None = None,
    origin: Mapping[str, str] | None = None,
) -> Trace:
    """Capture one training step in its steady state, without a GPU and without weights.

    ``build`` is called on fake tensors (shapes without values) and returns a model and its inputs: a mapping
    for ``model(**inputs)``, a sequence for ``model(*inputs)`` or one tensor. The step takes the output's
    ``loss``, or the sum of its tensors that have a gradient, then backward, the optimizer's step and
    ``zero_grad``. The second of two steps is recorded, so that the optimizer's states exist. Durations come
    from the roofline of ``gpu`` (a bundled name, a YAML file or a description). ``batch_size`` defaults to
    the first dimension of the first input; ``origin`` is added to what the trace says about its making.

    Raises ConfigError for a wrong option, TraceError for a model whose step cannot be captured.
    """
    timing = load_gpu(gpu)
    _check_choice("optimizer", optimizer, _OPTIMIZERS)
    _check_choice("dtype", dtype, _DTYPES)
    _check_choice("attention", attention, ATTENTIONS)
    with _fake_device(dtype, attention):
        try:
            network, inputs = build()
        except Exception as error:
            raise refusal(error, model, "building the model") from error
        step = TrainingStep(network, inputs, optimizer)
        try:
            step.run()
            recorder = step.record()
        except Exception as error:
            raise refusal(error, model, "the training step") from error
        size = batch_size if batch_size is not None else _first_dimension(inputs)
    options = {
        "optimizer": optimizer,
        "dtype": dtype,
        "attention": attention,
        "torch": str(torch.__version__),
    }
    return assemble(recorder, timing, model=model, batch_size=size, origin={**(origin or {}), **options})


def _check_choice(option: str, found: str, choices: Mapping[str, object] | Sequence[str]) -> None:
    if found not in choices:
        raise ConfigError(
            f"{option}: found '{found}'{nearest(found, choices)}; allowed: {choices_text(choices)}"
        )


@contextmanager
def _fake_device(dtype: str, attention: str) -> Iterator[None]:
    """Make every tensor one of shapes without values, on a device that takes CUDA's operators."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPES[dtype])
    try:
        with (
            FakeTensorMode(allow_non_fake_inputs=True),
            device_operators(attention),
            # This initialization draws until all values fit a range: it would ask for values.
            mock.patch.object(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
            # The inherited copy has a storage that its own views do not share (seen in PyTorch 2.13).
            mock.patch.object(FakeTensor, "__deepcopy__", _deep_copy, create=True),
        ):
            yield
    finally:
        torch.set_default_dtype(previous)


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        made = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(made) if is_parameter else made
        memo[id(tensor)].requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _first_dimension(inputs: Any) -> int:
    for tensor in _input_tensors(inputs).values():
        if tensor.dim():
            return int(tensor.shape[0])
    return 1


def _input_tensors(inputs: Any) -> dict[str, Any]:
    named = inputs if isinstance(inputs, Mapping) else dict(enumerate(_positional(inputs)))
    return {str(name): value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _positional(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, (tuple, list)) else (inputs,)


def _loss(output: Any) -> Any:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    found = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    summed = [leaf.sum() for leaf in found if leaf.requires_grad]
    if not summed:
        raise ConfigError(
            "the model's output holds no tensor with a gradient; allowed: a loss, or such tensors"
        )
    return sum(summed[1:], start=summed[0])


class TrainingStep:
    """A model, its inputs and its optimizer: forward, loss, backward, optimizer step, gradients dropped."""

    def __init__(self, network: Any, inputs: Any, optimizer: str) -> None:
        self.network = network
        self.inputs = inputs
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError(
                "the model has no parameter to train; allowed: at least one that requires a gradient"
            )
        # CUDA devices take the form on lists of tensors by default, CPUs the loop over tensors.
        self.optimizer = _OPTIMIZERS[optimizer](trained, lr=_LEARNING_RATE, foreach=True)

    def run(self, enter: Callable[[Phase], None] = lambda phase: None) -> None:
        """Run the step once; ``enter`` is told the phase that begins."""
        enter(Phase.FORWARD)
        loss = self._forward()
        enter(Phase.BACKWARD)
        loss.backward()
        del loss
        enter(Phase.OPTIMIZER)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def record(self) -> Recorder:
        """Run the step once more and return what was recorded."""
        layers = LayerTracker(self.network)
        recorder = Recorder(layers)
        self._describe(recorder)

        def enter(phase: Phase) -> None:
            if phase is Phase.OPTIMIZER:
                self._describe_gradients(recorder)
            recorder.phase = phase

        gc.collect()
        collecting = gc.isenabled()
        gc.disable()  # a collection in between would end lifetimes at arbitrary kernels
        try:
            with layers.following(), recorder:
                self.run(enter)
        finally:
            if collecting:
                gc.enable()
        return recorder

    def _forward(self) -> Any:
        if isinstance(self.inputs, Mapping):
            return _loss(self.network(**self.inputs))
        return _loss(self.network(*_positional(self.inputs)))

    def _describe(self, recorder: Recorder) -> None:
        names = {}
        for name, parameter in self.network.named_parameters():
            names[parameter] = name
            recorder.describe(parameter, TensorKind.WEIGHT, name, persistent=True)
        for name, buffer in self.network.named_buffers():
            recorder.describe(buffer, TensorKind.BUFFER, name, persistent=True)
        for parameter, states in self.optimizer.state.items():
            for key, state in states.items():
                if not isinstance(state, torch.Tensor):
                    continue
                if state.dim() == 0:
                    recorder.describe_host(state)
                else:
                    name = f"{names[parameter]}.{key}"
                    recorder.describe(state, TensorKind.OPTIMIZER_STATE, name, persistent=True)
        for name, tensor in _input_tensors(self.inputs).items():
            recorder.describe(tensor, TensorKind.INPUT, f"input.{name}")

    def _describe_gradients(self, recorder: Recorder) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.grad is not None:
                recorder.describe(parameter.grad, TensorKind.GRADIENT, f"{name}.grad")
