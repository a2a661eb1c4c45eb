"""Training and generation of transformers from their sizes: kernels of matrix products, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from g10sim.trace.model import Phase, TensorKind, Trace
from g10sim.trace.synthetic import TICKS_PER_SECOND, TraceBuilder

_STATE_BYTES = 12
"""Bytes of a parameter's master copy and two moments in 32 bits (Rajbhandari et al., ZeRO, SC 2020)."""
_STEP_BYTES = 28
"""Bytes that an Adam step reads and writes: states, and gradient and weight in 16 bits."""

_SQUARES = {"qkv": 3, "projection": 1, "fc1": 4, "fc2": 4}
"""Parameters of a layer's weights in squares of its width."""
_SOURCES = {"qkv": "", "attention": "qkv", "projection": "attention", "fc1": "projection", "fc2": "fc1"}
"""Kernels of a layer in their order, and what they read: what the layer is given, or what another writes."""
_WIDTHS = {"": 1, "qkv": 3, "attention": 1, "projection": 1, "fc1": 4, "fc2": 1}
"""Widths of what a layer is given and of what its kernels write, in those of a layer."""


@dataclass(frozen=True)
class Transformer:
    """A stack of equal layers of width ``hidden``, trained on ``batch`` sequences in 16 bits with Adam.

    Every layer has 12 hidden^2 parameters in four matrix products, and attention without a stored matrix of
    scores. Norms, activation functions, embeddings and the loss, which take little time and memory in large
    models, are left out. The GPU computes ``flops_per_second`` and moves ``bytes_per_second``.
    """

    layers: int
    hidden: int
    sequence: int
    batch: int
    flops_per_second: float
    bytes_per_second: float
    recomputes: bool = False
    """Keep the input of each layer only, and compute the rest again in the backward pass."""

    @property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return 12 * self.hidden**2 * self.layers

    def trace(self) -> Trace:
        """Return a training step: forward, backward, and a step of the optimizer for every weight."""
        return _Step(self).trace()


class _Stack:
    """Puts the trace of equal layers together, beginning with their weights in 16 bits."""

    def __init__(self, name: str, model: Transformer | Generation) -> None:
        self._builder = TraceBuilder(f"{name}-{model.layers}x{model.hidden}", model.batch)
        self._square = model.hidden**2
        self._weights = [
            {name: self._weight(layer, name) for name in _SQUARES} for layer in range(model.layers)
        ]

    def _weight(self, layer: int, name: str) -> int:
        size = 2 * _SQUARES[name] * self._square
        return self._builder.tensor(f"layers.{layer}.{name}.weight", size, TensorKind.WEIGHT, persistent=True)

    def _kernel(
        self, name: str, layer: int, seconds: float, reads: list[int], writes: list[int], phase: Phase
    ) -> None:
        self._builder.kernel(name, _ticks(seconds), reads, writes, phase, f"layers.{layer}")


def _ticks(seconds: float) -> int:
    return max(1, round(seconds * TICKS_PER_SECOND))


class _Step(_Stack):
    def __init__(self, model: Transformer) -> None:
        super().__init__("transformer", model)
        self._model = model
        self._unit = 2 * model.batch * model.sequence * model.hidden
        self._gradients: dict[int, int] = {}

    def _tensor(self, layer: int, name: str, units: int, kind: TensorKind = TensorKind.ACTIVATION) -> int:
        return self._builder.tensor(f"layers.{layer}.{name}", units * self._unit, kind)

    def trace(self) -> Trace:
        """Return the step."""
        model = self._model
        inputs = [self._tensor(0, "input", 1, TensorKind.INPUT)]
        saved = []
        for layer in range(model.layers):
            results = self._forward(layer, inputs[-1], Phase.FORWARD)
            inputs.append(results["fc2"])
            saved.append(results)
        gradient = self._tensor(model.layers - 1, "loss.gradient", 1, TensorKind.INPUT)
        for layer in reversed(range(model.layers)):
            if model.recomputes:
                saved[layer] = self._forward(layer, inputs[layer], Phase.BACKWARD)
            gradient = self._backward(layer, saved[layer], gradient)
        for weights in self._weights:
            self._update(weights)
        return self._builder.build()

    def _forward(self, layer: int, given: int, phase: Phase) -> dict[str, int]:
        """Add the forward pass of a layer; returns what it is given and what its kernels make."""
        weights, made = self._weights[layer], {"": given}
        for name, source in _SOURCES.items():
            if name == "fc2" and phase is Phase.BACKWARD:
                break  # the backward pass does not read a layer's output
            made[name] = self._tensor(layer, name, _WIDTHS[name])
            reads = [made[source], *([weights[name]] if name in weights else [])]
            self._kernel(name, layer, self._seconds(name, 2), reads, [made[name]], phase)
        return made

    def _backward(self, layer: int, made: dict[str, int], gradient: int) -> int:
        """Add the backward pass of a layer; returns the gradient of its input."""
        weights = self._weights[layer]
        for name, source in reversed(_SOURCES.items()):
            before = self._tensor(layer, f"{name}.input.gradient", _WIDTHS[source], TensorKind.TEMPORARY)
            inputs, outputs, operations = [made[source], gradient], [before], 4
            if name in weights:
                inputs.append(weights[name])
                outputs.append(self._gradient_of(layer, name, weights[name]))
            else:  # attention, which computes its scores again
                inputs.insert(1, made[name])
                operations = 5
            seconds = self._seconds(name, operations)
            self._kernel(f"{name} backward", layer, seconds, inputs, outputs, Phase.BACKWARD)
            gradient = before
        return gradient

    def _seconds(self, name: str, operations: int) -> float:
        """Return the time of some operations for each multiplication of a kernel in the forward pass."""
        model = self._model
        each = _SQUARES[name] * self._square if name in _SQUARES else 2 * model.sequence * model.hidden
        return operations * model.batch * model.sequence * each / model.flops_per_second

    def _gradient_of(self, layer: int, name: str, weight: int) -> int:
        size = 2 * self._square * _SQUARES[name]
        self._gradients[weight] = self._builder.tensor(
            f"layers.{layer}.{name}.weight.gradient", size, TensorKind.GRADIENT
        )
        return self._gradients[weight]

    def _update(self, weights: dict[str, int]) -> None:
        for name, weight in weights.items():
            count = self._square * _SQUARES[name]
            state = self._builder.tensor(
                f"{name}.state", _STATE_BYTES * count, TensorKind.OPTIMIZER_STATE, persistent=True
            )
            ticks = _ticks(_STEP_BYTES * count / self._model.bytes_per_second)
            reads, writes = [self._gradients[weight], state], [state, weight]
            self._builder.kernel("adam", ticks, reads, writes, Phase.OPTIMIZER)


@dataclass(frozen=True)
class Generation:
    """A stack of equal layers of width ``hidden``, in 16 bits, that reads prompts and generates tokens.

    Each of ``batch`` prompts has ``prompt`` tokens and gets ``output`` new ones, the first by the pass over
    the prompts. Every layer has 12 hidden^2 parameters in four matrix products, and attention without a
    stored matrix of scores. What little time and memory takes is left out: norms, activation functions,
    embeddings. The GPU computes that many operations a second in matrix products with weights
    (``prompt_rate``, ``token_rate``) and in attention, for prompts and for one token each.
    """

    layers: int
    hidden: int
    prompt: int
    output: int
    batch: int
    prompt_rate: float
    prompt_attention_rate: float
    token_rate: float
    token_attention_rate: float

    def trace(self) -> Trace:
        """Return the pass over the prompts and those of all tokens after the first.

        A layer's keys and values of the prompts are one tensor, and those of every further token another;
        attention writes its own and reads those before.
        """
        return _Passes(self).trace()


class _Passes(_Stack):
    def __init__(self, model: Generation) -> None:
        super().__init__("generation", model)
        self._model = model
        self._cache = [list[int]() for _ in range(model.layers)]

    def _tensor(self, layer: int, name: str, widths: int, tokens: int) -> int:
        size = 2 * widths * self._model.hidden * tokens * self._model.batch
        return self._builder.tensor(f"layers.{layer}.{name}", size, TensorKind.ACTIVATION)

    def trace(self) -> Trace:
        """Return the passes."""
        model = self._model
        for token in range(model.output):
            new = 1 if token else model.prompt
            states = self._builder.tensor("input", 2 * model.hidden * new * model.batch, TensorKind.INPUT)
            for layer in range(model.layers):
                states = self._layer(layer, token, new, states)
        return self._builder.build()

    def _layer(self, layer: int, token: int, new: int, states: int) -> int:
        """Add the kernels of a layer for some new tokens of each prompt; returns its output."""
        made = {"": states}
        for name, source in _SOURCES.items():
            if name == "attention":
                made[name] = self._attention(layer, token, new, made[source])
                continue
            made[name] = self._tensor(layer, name, _WIDTHS[name], new)
            operations = 2 * _SQUARES[name] * self._square * new * self._model.batch
            rate = self._model.token_rate if token else self._model.prompt_rate
            inputs = [made[source], self._weights[layer][name]]
            self._kernel(name, layer, operations / rate, inputs, [made[name]], Phase.FORWARD)
        return made["fc2"]

    def _attention(self, layer: int, token: int, new: int, qkv: int) -> int:
        model, cache = self._model, self._cache[layer]
        found = self._tensor(layer, "attention", 1, new)
        entry = self._tensor(layer, f"cache.{token}", 2, new)
        operations = 4 * (model.prompt + token) * new * model.hidden * model.batch
        rate = model.token_attention_rate if token else model.prompt_attention_rate
        self._kernel("attention", layer, operations / rate, [qkv, *cache], [found, entry], Phase.FORWARD)
        cache.append(entry)
        return found
