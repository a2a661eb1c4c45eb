"""Runs a step on tensors without values and makes a trace of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from g10sim.capture.assemble import assemble
from g10sim.capture.attention import device_operators
from g10sim.capture.autocast import casts_of_cuda
from g10sim.capture.constants import known_values
from g10sim.capture.gpu import GpuTimingSpec, load_gpu
from g10sim.capture.measured import RecordedCall, require_cuda
from g10sim.capture.measuring import Times, keep_in, measured_times
from g10sim.capture.options import StepOptions
from g10sim.capture.refusal import refusal
from g10sim.capture.shapes import shapes_only
from g10sim.capture.workload import Model, Step, input_tensors
from g10sim.trace.model import Trace

Build = Callable[[], Any]
"""Returns a model and its inputs, or a ``Model``."""


def capture_step(
    build: Build,
    *,
    gpu: str | Path | GpuTimingSpec = "a100-40g",
    model: str = "model",
    batch_size: int | None = None,
    origin: Mapping[str, str] | None = None,
    measure: bool = False,
    **options: Any,
) -> Trace:
    """Capture a step in its steady state, without a GPU and without weights.

    ``build`` is called on fake tensors (shapes without values) and returns a model and its inputs: a mapping
    for ``model(**inputs)``, a sequence for ``model(*inputs)`` or one tensor. A training step takes the
    output's ``loss``, or the sum of its tensors that have a gradient, then backward, the optimizer's step and
    ``zero_grad``. A step is run once before the recording, so that the optimizer's states exist. Durations
    come from the roofline of ``gpu`` (a bundled name, a YAML file or a description). ``batch_size`` defaults
    to the first dimension of the first input; ``origin`` is added to what the trace says about its making;
    ``options`` are those of ``StepOptions``: ``dtype``, ``autocast``, ``optimizer``,
    ``optimizer_form``, ``momentum``, ``attention``, ``activation_checkpointing``, ``inference``, ``steps``,
    ``workspace``.

    With ``measure`` durations are those that the CUDA device of this computer takes, where it can tell.

    Raises ConfigError for a wrong option, TraceError for a model whose step cannot be captured.
    """
    timing = load_gpu(gpu)
    how = StepOptions(**options)
    kept: list[RecordedCall] = []
    if measure:
        require_cuda()
    with fake_device(how):
        try:
            with known_values():
                made = _as_model(build())
        except Exception as error:
            raise refusal(error, model, "building the model") from error
        try:
            step = Step(made, how)
            step.run()
            recorder = step.record(keep_in(kept) if measure else None)
            recorder.add_workspaces(how.workspace_bytes)
        except Exception as error:
            kind = "inference" if how.inference else "the training step"
            raise refusal(error, model, kind) from error
        size = batch_size if batch_size is not None else _first_dimension(made.inputs)
    said = {name: str(value) for name, value in how.given().items()}
    said["torch"] = str(torch.__version__)
    times: Times = {}
    if measure:
        times, said["device"] = measured_times(lambda: _as_model(build()), how, recorder, kept, timing)
    about = {**(origin or {}), **said}
    return assemble(recorder, timing, model=model, batch_size=size, origin=about, times=times)


def _as_model(made: Any) -> Model:
    return made if isinstance(made, Model) else Model(*made)


@contextmanager
def fake_device(options: StepOptions) -> Iterator[None]:
    """Make every tensor one of shapes without values, on a device that takes CUDA's operators."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, options.dtype))
    try:
        with (
            shapes_only(),
            FakeTensorMode(allow_non_fake_inputs=True),
            device_operators(options.attention),
            casts_of_cuda(options.autocast),
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
    for tensor in input_tensors(inputs).values():
        if tensor.dim():
            return int(tensor.shape[0])
    return 1
