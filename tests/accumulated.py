"""A training step in which gradients accumulate over micro-batches: half of Llama-3-8B on a GPU."""

from g10sim.trace.model import Phase, Trace
from g10sim.trace.model import TensorKind as Kind
from g10sim.trace.synthetic import TraceBuilder

HIDDEN, INNER, KEYS, SEQUENCE = 4096, 14336, 1024, 2048
FLOPS = 200e12
"""Floating-point operations a second, 40% of an H100's peak in TF32."""


def stage(batch: int, micro_batches: int, layers: int = 16) -> Trace:
    """Return the step in fp32 without checkpointing: what blocks save is what PyTorch's autograd keeps."""
    builder, tokens = TraceBuilder("llama-3-8b-stage", batch * micro_batches), SEQUENCE * batch
    parts = {
        "attention": (2 * HIDDEN * (HIDDEN + KEYS), tokens * 4 * (4 * HIDDEN + 2 * KEYS)),
        "mlp": (3 * HIDDEN * INNER, tokens * 4 * (HIDDEN + 3 * INNER)),
    }
    blocks = [(f"{layer}.{name}", *sizes) for layer in range(layers) for name, sizes in parts.items()]
    weights, states, gradients = {}, {}, {}
    for name, count, _ in blocks:
        weights[name] = builder.tensor(name, 4 * count, Kind.WEIGHT, persistent=True)
        states[name] = builder.tensor(f"{name}.adam", 8 * count, Kind.OPTIMIZER_STATE, persistent=True)
        gradients[name] = builder.tensor(f"{name}.gradient", 4 * count, Kind.GRADIENT)
    width = tokens * HIDDEN * 4
    for number in range(micro_batches):
        x, inputs = builder.tensor(f"{number}.input", width, Kind.INPUT), {}
        for name, count, kept in blocks:
            saved = builder.tensor(f"{number}.{name}.saved", kept, Kind.ACTIVATION)
            inputs[name] = (saved, x)
            y = builder.tensor(f"{number}.{name}.output", width, Kind.ACTIVATION)
            ticks = int(2 * count * tokens / FLOPS * 1e9)
            own = {"layer": name, "micro_batch": number + 1}
            builder.kernel("forward", ticks, [x, weights[name]], [saved, y], Phase.FORWARD, **own)
            x = y
        dy = builder.tensor(f"{number}.gradient", width, Kind.TEMPORARY)
        builder.kernel("loss", 100_000, [x], [dy], Phase.FORWARD, micro_batch=number + 1)
        for name, count, _ in reversed(blocks):
            dx = builder.tensor(f"{number}.{name}.gradient", width, Kind.TEMPORARY)
            used = [dy, *inputs[name], weights[name], *([gradients[name]] if number else [])]
            ticks = int(4 * count * tokens / FLOPS * 1e9)
            own = {"layer": name, "micro_batch": number + 1}
            builder.kernel("backward", ticks, used, [dx, gradients[name]], Phase.BACKWARD, **own)
            dy = dx
    for name, count, _ in blocks:
        used = [weights[name], states[name]]
        builder.kernel("adam", int(28 * count / 3e12 * 1e9), [*used, gradients[name]], used, Phase.OPTIMIZER)
    return builder.build()
