"""Traces of plain networks given layer by layer: one forward kernel and one or two backward kernels each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from g10sim.trace.model import Phase, TensorKind, Trace
from g10sim.trace.synthetic import TraceBuilder


@dataclass(frozen=True)
class LayerSpec:
    """One layer of a chain; sizes in bytes for the whole batch, times in nanoseconds.

    ``layer_type`` is as in PyTorch ("Conv2d", "MaxPool2d", "Linear"). An ``activated`` layer ends with a
    ReLU in place, whose time counts in ``forward_ns`` and ``backward_ns``. Only layers that need both, such
    as pooling, read their output as well as their input in the backward pass (``reads_output``).
    """

    name: str
    layer_type: str
    output_bytes: int
    forward_ns: int
    backward_ns: int
    weight_bytes: int = 0
    workspace_bytes: int = 0
    backward_workspace_bytes: int = 0
    activated: bool = False
    reads_output: bool = False


def layerwise_trace(model: str, batch_size: int, input_bytes: int, layers: Sequence[LayerSpec]) -> Trace:
    """Return the trace of one training iteration of a chain of layers.

    Layer n reads its input X (the output of the layer before) and its weight and writes its output Y. Its
    backward pass first takes dY through the ReLU in place, which reads Y, and then reads X, dY and the
    weight (and Y where it needs that) and writes dX, except for the first layer, and dW, which updates the
    weight at once. A kernel without duration makes the gradient of the last output.
    """
    builder = _ChainBuilder(model, batch_size, layers)
    builder.forward(input_bytes)
    builder.backward()
    return builder.trace()


class _ChainBuilder:
    """Adds the kernels of a chain of layers to a trace."""

    def __init__(self, model: str, batch_size: int, layers: Sequence[LayerSpec]) -> None:
        self._builder, self._layers = TraceBuilder(model, batch_size), layers
        self._weights = {
            layer.name: self._builder.tensor(
                f"{layer.name}.weight", layer.weight_bytes, TensorKind.WEIGHT, persistent=True
            )
            for layer in layers
            if layer.weight_bytes
        }
        self._maps: list[int] = []

    def forward(self, input_bytes: int) -> None:
        self._maps = [self._builder.tensor("input", input_bytes, TensorKind.INPUT)]
        for layer in self._layers:
            output = self._builder.tensor(f"{layer.name}.output", layer.output_bytes, TensorKind.ACTIVATION)
            scratch = self._scratch(f"{layer.name}.workspace", layer.workspace_bytes)
            inputs = [self._maps[-1], *self._weight(layer)]
            self._kernel("Forward", layer.forward_ns, inputs, [output, *scratch], Phase.FORWARD, layer)
            self._maps.append(output)

    def backward(self) -> None:
        last = self._layers[-1]
        gradient = self._gradient(f"{last.name}.output.gradient", last.output_bytes)
        self._builder.kernel("Loss", 0, [self._maps[-1]], [gradient], Phase.BACKWARD)
        for number in reversed(range(len(self._layers))):
            gradient = self._layer_backward(number, gradient)

    def _layer_backward(self, number: int, gradient: int) -> int:
        layer, source, output = self._layers[number], self._maps[number], self._maps[number + 1]
        if layer.activated:
            self._kernel("ReLU_Backward", 0, [output, gradient], [gradient], Phase.BACKWARD, layer)
        outputs = []
        if number:
            before = self._layers[number - 1]
            outputs.append(self._gradient(f"{before.name}.output.gradient", before.output_bytes))
        weight = self._weight(layer)
        if weight:
            update = self._gradient(f"{layer.name}.weight.gradient", layer.weight_bytes)
            outputs.append(update)
        scratch = self._scratch(f"{layer.name}.backward.workspace", layer.backward_workspace_bytes)
        inputs = [source, gradient, *weight, *([output] if layer.reads_output else [])]
        self._kernel("Backward", layer.backward_ns, inputs, [*outputs, *scratch], Phase.BACKWARD, layer)
        if weight:
            self._kernel("Update", 0, [*weight, update], weight, Phase.OPTIMIZER, layer)
        return outputs[0] if number else gradient

    def trace(self) -> Trace:
        return self._builder.build()

    def _kernel(
        self,
        name: str,
        duration: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        phase: Phase,
        layer: LayerSpec,
    ) -> None:
        self._builder.kernel(name, duration, inputs, outputs, phase, layer.name, layer.layer_type)

    def _weight(self, layer: LayerSpec) -> list[int]:
        return [self._weights[layer.name]] if layer.weight_bytes else []

    def _gradient(self, name: str, size_bytes: int) -> int:
        return self._builder.tensor(name, size_bytes, TensorKind.GRADIENT)

    def _scratch(self, name: str, size_bytes: int) -> list[int]:
        return [self._builder.tensor(name, size_bytes, TensorKind.WORKSPACE)] if size_bytes else []
