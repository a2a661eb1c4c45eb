"""Generation of tokens by transformers from their sizes: kernels of matrix products, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from g10sim.trace.model import Phase, TensorKind, Trace
from g10sim.trace.synthetic import TICKS_PER_SECOND, TraceBuilder

_SQUARES = {"qkv": 3, "projection": 1, "fc1": 4, "fc2": 4}
"""Parameters of a layer's weights in squares of its width."""
_SOURCES = {"qkv": "", "projection": "attention", "fc1": "projection", "fc2": "fc1"}
_WIDTHS = {"qkv": 3, "projection": 1, "fc1": 4, "fc2": 1}
"""Widths of what matrix products write, in those of a layer."""


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


class _Passes:
    def __init__(self, model: Generation) -> None:
        self._model = model
        self._builder = TraceBuilder(f"generation-{model.layers}x{model.hidden}", model.batch)
        self._weights = [self._weights_of(layer) for layer in range(model.layers)]
        self._cache = [list[int]() for _ in range(model.layers)]

    def _weights_of(self, layer: int) -> dict[str, int]:
        square, kind = 2 * self._model.hidden**2, TensorKind.WEIGHT
        return {
            name: self._builder.tensor(f"layers.{layer}.{name}.weight", count * square, kind, persistent=True)
            for name, count in _SQUARES.items()
        }

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
        for name, count in _SQUARES.items():
            if name == "projection":
                made["attention"] = self._attention(layer, token, new, made["qkv"])
            made[name] = self._tensor(layer, name, _WIDTHS[name], new)
            operations = 2 * count * self._model.hidden**2 * new * self._model.batch
            rate = self._model.token_rate if token else self._model.prompt_rate
            inputs = [made[_SOURCES[name]], self._weights[layer][name]]
            self._kernel(name, layer, operations / rate, inputs, [made[name]])
        return made["fc2"]

    def _attention(self, layer: int, token: int, new: int, qkv: int) -> int:
        model, cache = self._model, self._cache[layer]
        found = self._tensor(layer, "attention", 1, new)
        entry = self._tensor(layer, f"cache.{token}", 2, new)
        operations = 4 * (model.prompt + token) * new * model.hidden * model.batch
        rate = model.token_attention_rate if token else model.prompt_attention_rate
        self._kernel("attention", layer, operations / rate, [qkv, *cache], [found, entry])
        cache.append(entry)
        return found

    def _kernel(
        self, name: str, layer: int, seconds: float, inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        ticks = max(1, round(seconds * TICKS_PER_SECOND))
        self._builder.kernel(name, ticks, inputs, outputs, Phase.FORWARD, f"layers.{layer}")
