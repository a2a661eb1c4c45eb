"""Small traces with known answers, and big or random ones for tests and measurements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, TimeSource, Trace
from g10sim.trace.repetition import Block, Item, joined

TICKS_PER_SECOND = 10**9
"""Time base of every synthetic trace: durations are nanoseconds."""


class TraceBuilder:
    """Puts a trace together one tensor and one kernel at a time; ids are handed out in order."""

    def __init__(self, model: str, batch_size: int = 1, ticks_per_second: int = TICKS_PER_SECOND) -> None:
        self._model = model
        self._batch_size = batch_size
        self._ticks_per_second = ticks_per_second
        self._tensors: list[Tensor] = []
        self._kernels: list[Kernel] = []
        self._tensor_blocks: list[Block[Tensor]] = []
        self._kernel_blocks: list[Block[Kernel]] = []

    def tensor(self, name: str, size_bytes: int, kind: TensorKind, *, persistent: bool = False) -> int:
        """Add a tensor; returns its id."""
        tensor = Tensor(_next_id(self._tensor_blocks, self._tensors), name, size_bytes, kind, persistent)
        self._tensors.append(tensor)
        return tensor.id

    def kernel(
        self,
        name: str,
        duration: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        phase: Phase = Phase.OTHER,
        layer: str = "",
        layer_type: str = "",
        reads: Sequence[int] = (),
        **facts: Any,
    ) -> int:
        """Add a kernel (duration in ticks) after the ones already there; returns its id.

        ``facts`` are further ones of :class:`g10sim.trace.model.Kernel`.
        """
        number, source = _next_id(self._kernel_blocks, self._kernels), TimeSource.SYNTHETIC
        own = name, duration, tuple(inputs), tuple(outputs), phase, layer, layer_type
        kernel = Kernel(number, *own, time_source=source, reads=tuple(reads), **facts)
        self._kernels.append(kernel)
        return kernel.id

    def repeat(self, kernels: int, times: int, *, tensors: int = 0, since: int) -> None:
        """Let the last kernels and the last tensors occur ``times`` times in all.

        Each time, kernels name tensors ``since`` and later by ids that are larger by ``tensors``:
        their own tensors, or those of the time before.
        """
        if times > 1:
            _close(self._tensor_blocks, self._tensors, tensors, times)
            _close(self._kernel_blocks, self._kernels, kernels, times, since, tensors)

    def build(self) -> Trace:
        """Return the trace; it is not checked."""
        tensors = joined(self._tensor_blocks, self._tensors)
        kernels = joined(self._kernel_blocks, self._kernels)
        origin = {"source": "synthetic"}
        return Trace(self._model, self._batch_size, self._ticks_per_second, tensors, kernels, origin)


def _next_id(blocks: Sequence[Block[Any]], items: Sequence[object]) -> int:
    return sum(block.count for block in blocks) + len(items)


def _close(
    blocks: list[Block[Item]], items: list[Item], count: int, times: int, since: int = 0, shift: int = 0
) -> None:
    """Move items to blocks, of which the last ``count`` repeat."""
    first = len(items) - count
    blocks += [Block(tuple(items[:first])), Block(tuple(items[first:]), times, since, shift)]
    items.clear()


def chain(
    layers: int,
    *,
    activation_bytes: int = 1 << 20,
    weight_bytes: int = 1 << 18,
    workspace_bytes: int = 0,
    forward_ticks: int = 1_000_000,
    backward_ticks: int = 2_000_000,
    optimizer_ticks: int = 100_000,
) -> Trace:
    """Training of a plain chain of layers: forward, backward and update kernels, all layers alike.

    Layer i of n reads activation i and weight i and writes activation i+1; its backward kernel reads
    activations i and i+1 (saved), the gradient of activation i+1 and weight i, and writes the gradients
    of activation i and of weight i; its update kernel follows at once. Known answers: 3n kernels,
    n * (forward + backward + optimizer) ticks, activation i lives from kernel i-1 to the backward kernel
    of layer i-1 at n + 2(n-i), and the footprint is that of the peak at the last forward kernel. The loss
    gradient is born in the first backward kernel's place as an input from outside.
    """
    builder = TraceBuilder(f"chain{layers}")
    weights = [
        builder.tensor(f"layer{i}.weight", weight_bytes, TensorKind.WEIGHT, persistent=True)
        for i in range(layers)
    ]
    activations = [builder.tensor("input", activation_bytes, TensorKind.INPUT)]
    activations += [
        builder.tensor(f"layer{i}.output", activation_bytes, TensorKind.ACTIVATION) for i in range(layers)
    ]

    def scratch(name: str) -> list[int]:
        return [builder.tensor(name, workspace_bytes, TensorKind.WORKSPACE)] if workspace_bytes else []

    for i in range(layers):
        outputs = [activations[i + 1], *scratch(f"layer{i}.forward.workspace")]
        inputs = [weights[i], activations[i]]
        builder.kernel("Forward", forward_ticks, inputs, outputs, Phase.FORWARD, f"layer{i}")
    gradient = builder.tensor("loss.gradient", activation_bytes, TensorKind.INPUT)
    for i in reversed(range(layers)):
        inputs = [weights[i], activations[i], activations[i + 1], gradient]
        gradient = builder.tensor(f"layer{i}.input.gradient", activation_bytes, TensorKind.TEMPORARY)
        update = builder.tensor(f"layer{i}.weight.gradient", weight_bytes, TensorKind.GRADIENT)
        outputs = [gradient, update, *scratch(f"layer{i}.backward.workspace")]
        builder.kernel("Backward", backward_ticks, inputs, outputs, Phase.BACKWARD, f"layer{i}")
        inputs = [weights[i], update]
        builder.kernel("Update", optimizer_ticks, inputs, [weights[i]], Phase.OPTIMIZER, f"layer{i}")
    return builder.build()


def long_chain(kernels: int, *, tensor_bytes: int = 1 << 20, live_tensors: int = 64) -> Trace:
    """Return a trace of ``kernels`` kernels whose size grows in number only: for measuring cost.

    Kernel k writes tensor k+1 and reads tensors k and, once there are that many, k - ``live_tensors``:
    every tensor has one inactive period of ``live_tensors`` - 1 kernels, and ``live_tensors`` + 2 tensors
    are alive at a time. Tensor 0 comes from outside. Durations are 10 us.
    """
    builder = TraceBuilder(f"long_chain{kernels}")
    builder.tensor("input", tensor_bytes, TensorKind.INPUT)
    for k in range(kernels):
        output = builder.tensor(f"activation{k}", tensor_bytes, TensorKind.ACTIVATION)
        inputs = [k] if k < live_tensors else [k, k - live_tensors]
        builder.kernel("Step", 10_000, inputs, [output], Phase.FORWARD)
    return builder.build()


def decode(
    steps: int,
    *,
    layers: int = 100,
    weight_bytes: int = 64 << 20,
    cache_bytes: int = 16 << 20,
    activation_bytes: int = 1 << 20,
    kernel_ticks: int = 100_000,
) -> Trace:
    """Return inference that decodes ``steps`` tokens one after another: the kernels of a step, repeated.

    Every layer has ten kernels: kernels 1, 3, 5, 7 and 9 of them read their own weight, kernel 4 updates
    the layer's cache, and each reads what the kernel before it wrote. A step begins with what the step before
    it wrote last, the first step with a prompt. Weights and caches persist, everything else lives for two
    kernels. Known answers: 10 * ``layers`` kernels a step, all of ``kernel_ticks`` ns.
    """
    builder = TraceBuilder(f"decode{steps}")
    weights = {
        (i, k): builder.tensor(f"layer{i}.weight{k}", weight_bytes, TensorKind.WEIGHT, persistent=True)
        for i in range(layers)
        for k in range(5)
    }
    caches = [
        builder.tensor(f"layer{i}.cache", cache_bytes, TensorKind.BUFFER, persistent=True)
        for i in range(layers)
    ]
    hidden = prompt = builder.tensor("prompt", activation_bytes, TensorKind.INPUT)
    for i in range(layers):
        for k in range(10):
            inputs, written = [hidden], list[int]()
            if k % 2:
                inputs.append(weights[i, k // 2])
            if k == 4:
                inputs.append(caches[i])
                written.append(caches[i])
            hidden = builder.tensor(f"layer{i}.hidden{k}", activation_bytes, TensorKind.ACTIVATION)
            builder.kernel(f"Decode{k}", kernel_ticks, inputs, [hidden, *written], Phase.FORWARD, f"layer{i}")
    builder.repeat(10 * layers, steps, since=prompt, tensors=10 * layers)
    return builder.build()


def random_trace(
    seed: int, *, kernels: int = 30, largest_tensor_bytes: int = 8 << 20, longest_ticks: int = 1_000_000
) -> Trace:
    """Draw a valid trace: weights, inputs, in-place updates, workspaces, reuse at any distance.

    The same arguments give the same trace. At least one kernel takes time.
    """
    draw = random.Random(seed)
    builder = TraceBuilder(f"random{seed}", batch_size=draw.randint(1, 1024))

    def size_bytes() -> int:
        return draw.choice([1, draw.randint(1, 8192), draw.randint(1, largest_tensor_bytes)])

    readable = [
        builder.tensor(f"weight{i}", size_bytes(), TensorKind.WEIGHT, persistent=True)
        for i in range(draw.randint(0, 4))
    ]
    readable += [
        builder.tensor(f"input{i}", size_bytes(), TensorKind.INPUT) for i in range(draw.randint(1, 3))
    ]
    for k in range(kernels):
        inputs = draw.sample(readable, min(len(readable), draw.randint(0, 4)))
        outputs = [
            builder.tensor(f"activation{k}.{i}", size_bytes(), TensorKind.ACTIVATION)
            for i in range(draw.randint(0, 2))
        ]
        readable += outputs
        if inputs and draw.random() < 0.2:
            outputs.append(draw.choice(inputs))
        if draw.random() < 0.3:
            outputs.append(builder.tensor(f"workspace{k}", size_bytes(), TensorKind.WORKSPACE))
        phase = draw.choice(list(Phase))
        builder.kernel(f"Kernel{k}", draw.randint(1, longest_ticks), inputs, outputs, phase, f"layer{k // 3}")
    return builder.build()
