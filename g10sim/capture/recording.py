"""Records a step whose parts are known: networks, optimizers, inputs."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from g10sim.capture.following import LayerTracker, named
from g10sim.capture.recorder import Keep, KernelDraft, Recorder
from g10sim.trace.format import without_cycle_collection
from g10sim.trace.model import Phase, TensorKind


@dataclass(frozen=True)
class Parts:
    """Parts of a step, for the names, kinds and layers of a trace.

    ``networks`` are told apart by the names that their modules and weights begin with; ``inputs`` are tensors
    that every step finds filled, by name (weights among them, if they are in no network); ``masters`` are
    float32 copies of weights, by weight.
    """

    networks: Mapping[str, Any]
    optimizers: Sequence[Any] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    masters: Mapping[Any, Any] = field(default_factory=dict)

    def weights(self) -> Iterator[tuple[str, Any]]:
        """Yield the parameters of all networks, and those in none, with their names."""
        yield from named(self.networks, "parameters")
        for name, tensor in self.inputs.items():
            if tensor.is_leaf and tensor.requires_grad:
                yield name, tensor

    def buffers(self) -> Iterator[tuple[str, Any]]:
        """Yield the buffers of all networks with their names."""
        return named(self.networks, "buffers")


class Runnable(Protocol):
    """A step that can be run again and again."""

    def run(self) -> None:
        """Run the step once."""

    def parts(self) -> Parts:
        """Return what the step is made of, once it has run."""


def record_step(
    step: Runnable, steps: int = 1, keep: Keep | None = None, kind: type[Recorder] = Recorder
) -> Recorder:
    """Run a step several times and return what was recorded, by a recorder of a kind.

    ``keep`` is called with every operator and its arguments.
    """
    parts = step.parts()
    weights = dict(parts.weights())
    layers = LayerTracker(parts.networks)
    recorder = kind(layers, lambda recorder: _describe_gradients(recorder, weights), keep)
    # A collection would end lifetimes at arbitrary kernels.
    gc.collect()
    recorder.remember_what_exists()
    _describe(recorder, parts)
    del parts  # the step may drop some of its variables
    with without_cycle_collection(), layers.following(), recorder.phases.following(), recorder:
        for _ in range(steps):
            recorder.phases.begin_step()
            step.run()
            recorder.end_step()
    return recorder


def _describe(recorder: Recorder, parts: Parts) -> None:
    names = {}
    for name, parameter in parts.weights():
        names[parameter] = name
        recorder.describe(parameter, TensorKind.WEIGHT, name, persistent=True)
        if parameter in parts.masters:
            master = parts.masters[parameter]
            names[master] = name
            recorder.describe(master, TensorKind.OPTIMIZER_STATE, f"{name}.master", persistent=True)
    for name, buffer in parts.buffers():
        recorder.describe(buffer, TensorKind.BUFFER, name, persistent=True)
    for optimizer in parts.optimizers:
        _describe_states(recorder, optimizer, names)
    for name, tensor in parts.inputs.items():
        recorder.describe(tensor, TensorKind.INPUT, name, persistent=True)


def _describe_states(recorder: Recorder, optimizer: Any, names: Mapping[Any, str]) -> None:
    groups = (group["params"] for group in optimizer.param_groups if group.get("fused"))
    fused = {id(weight) for weights in groups for weight in weights}
    for parameter, found in optimizer.state.items():
        for key, state in found.items() if isinstance(found, Mapping) else ():
            if not isinstance(state, torch.Tensor):
                continue
            if state.dim() == 0 and id(parameter) not in fused:
                recorder.describe_host(state)  # the fused form keeps its step counters on the GPU
            else:
                name = f"{names.get(parameter, type(optimizer).__name__)}.{key}"
                recorder.describe(state, TensorKind.OPTIMIZER_STATE, name, persistent=True)


def _describe_gradients(recorder: Recorder, weights: Mapping[str, Any]) -> None:
    for name, weight in weights.items():
        if weight.grad is not None:
            recorder.describe(weight.grad, TensorKind.GRADIENT, f"{name}.grad")


def settle_kinds(recorder: Recorder) -> None:
    """Give a kind and a name to every storage without a description.

    A storage born in the forward pass and used in the backward pass is an activation. One from before the
    step is persistent if it still exists (constants of the model), otherwise an input. All others are
    temporary.
    """
    backward = (draft for draft in recorder.kernels if draft.phase is Phase.BACKWARD)
    kept = {record for draft in backward for record in (*draft.reads, *draft.writes)}
    for draft in recorder.kernels:
        for record in draft.writes:
            record.name = record.name or _produced_name(draft)
    for record in recorder.used():
        if record.kind is not None:
            continue
        if record.phase is None:
            record.persistent = record.alive or record.existed
            record.kind = TensorKind.OTHER if record.persistent else TensorKind.INPUT
        elif not record.written:
            record.kind = TensorKind.INPUT
        else:
            kept_for_backward = record.phase is Phase.FORWARD and record in kept
            record.kind = TensorKind.ACTIVATION if kept_for_backward else TensorKind.TEMPORARY
        record.name = record.name or record.kind.value


def _produced_name(draft: KernelDraft) -> str:
    suffix = "" if draft.phase is Phase.FORWARD else f".{draft.phase.value}"
    return f"{draft.layer.path or draft.layer.kind}{suffix}:{draft.operator}"
