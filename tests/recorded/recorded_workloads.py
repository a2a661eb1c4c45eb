"""Small workloads of every shape, by name, for the tables of recorded results."""

from dataclasses import replace

from layerwise import LayerSpec, layerwise_trace

from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.trace.model import Device, FaultProfile, Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain, decode, random_trace
from g10sim.trace.workload import Job, Workload

KIB, MIB = 1 << 10, 1 << 20


def training():
    """Forward, backward and update of nine alike layers whose tensors are no whole pages."""
    return chain(
        9,
        activation_bytes=9 * MIB + 12_345,
        weight_bytes=5 * MIB + 777,
        workspace_bytes=3 * MIB + 1,
        forward_ticks=700_000,
        backward_ticks=1_300_000,
        optimizer_ticks=90_000,
    )


def convolutions():
    """A network layer by layer: convolutions with ReLUs in place, pooling, and a classifier."""
    layers = [
        LayerSpec(
            "conv1", "Conv2d", 24 * MIB, 2_100_000, 4_300_000, 40 * KIB, 6 * MIB, 9 * MIB, activated=True
        ),
        LayerSpec("pool1", "MaxPool2d", 12 * MIB, 300_000, 500_000, reads_output=True),
        LayerSpec(
            "conv2", "Conv2d", 18 * MIB, 3_000_000, 5_900_000, 2 * MIB, 4 * MIB, 4 * MIB, activated=True
        ),
        LayerSpec("conv3", "Conv2d", 18 * MIB, 1_000_000, 2_100_000, 3 * MIB, 0, 12 * MIB, activated=True),
        LayerSpec("pool2", "MaxPool2d", 5 * MIB, 150_000, 310_000, reads_output=True),
        LayerSpec("conv4", "Conv2d", 10 * MIB + 99, 1_900_000, 3_700_000, 6 * MIB, 8 * MIB, 2 * MIB),
        LayerSpec("fc", "Linear", 300 * KIB, 200_000, 390_000, 20 * MIB),
    ]
    return layerwise_trace("convolutions", 32, 10 * MIB, layers)


def branches():
    """Residual blocks; most tensors are first written by kernels, and are read several times."""
    builder = TraceBuilder("branches", 16)
    state = builder.tensor("state", 7 * MIB, TensorKind.OPTIMIZER_STATE, persistent=True)
    builder.tensor("unused", 3 * MIB, TensorKind.BUFFER, persistent=True)
    weights, saved = [], []
    hidden = builder.tensor("input", 6 * MIB, TensorKind.INPUT)
    for block in range(5):
        weight = builder.tensor(f"weight{block}", (2 + block) * MIB + 5, TensorKind.WEIGHT, persistent=True)
        inner, outer, mask = (
            builder.tensor(f"{name}{block}", size, TensorKind.ACTIVATION)
            for name, size in (
                ("inner", (13 - block) * MIB),
                ("outer", 6 * MIB + 4 * KIB * block),
                ("mask", 70 * KIB),
            )
        )
        layer = f"block{block}"
        builder.kernel(
            "Project", 400_000 + 30_000 * block, [hidden, weight], [inner], Phase.FORWARD, layer, "Conv2d"
        )
        builder.kernel("Mask", 60_000, [inner], [mask], Phase.FORWARD, layer, reads=[2])
        builder.kernel("Add", 250_000, [inner, mask, hidden], [outer], Phase.FORWARD, layer, reads=[1, 1, 2])
        weights.append(weight)
        saved.append((hidden, inner, mask, outer))
        hidden = outer
    gradient = builder.tensor("gradient", 6 * MIB, TensorKind.GRADIENT)
    builder.kernel("Loss", 20_000, [hidden], [gradient], Phase.BACKWARD)
    for block in reversed(range(5)):
        before, inner, mask, _ = saved[block]
        layer = f"block{block}"
        scratch = builder.tensor(f"scratch{block}", 3 * MIB, TensorKind.WORKSPACE)
        update = builder.tensor(f"update{block}", (2 + block) * MIB + 5, TensorKind.GRADIENT)
        builder.kernel(
            "Backward", 500_000, [gradient, inner, mask], [inner, scratch], Phase.BACKWARD, layer, "Conv2d"
        )
        builder.kernel("Weights", 350_000, [inner, before], [update], Phase.BACKWARD, layer, "Conv2d")
        builder.kernel("Inputs", 450_000, [inner, weights[block]], [gradient], Phase.BACKWARD, layer)
        builder.kernel(
            "Update", 0, [update, weights[block], state], [weights[block], state], Phase.OPTIMIZER, layer
        )
    return builder.build()


def decoding():
    """Three steps of inference that read the same weights and update their caches."""
    return decode(
        3,
        layers=2,
        weight_bytes=6 * MIB + 1,
        cache_bytes=2 * MIB,
        activation_bytes=300 * KIB,
        kernel_ticks=230_000,
    )


def on_both():
    """Training whose optimizer steps run on the CPU."""
    builder = TraceBuilder("on_both", 8)
    hidden, weights = builder.tensor("input", 4 * MIB, TensorKind.INPUT), []
    saved = [hidden]
    for layer in range(4):
        weights.append(builder.tensor(f"weight{layer}", 8 * MIB, TensorKind.WEIGHT, persistent=True))
        hidden = builder.tensor(f"hidden{layer}", 11 * MIB, TensorKind.ACTIVATION)
        builder.kernel("Forward", 900_000, [saved[-1], weights[-1]], [hidden], Phase.FORWARD, f"layer{layer}")
        saved.append(hidden)
    for layer in reversed(range(4)):
        state = builder.tensor(f"state{layer}", 16 * MIB, TensorKind.OPTIMIZER_STATE, persistent=True)
        update = builder.tensor(f"update{layer}", 8 * MIB, TensorKind.GRADIENT)
        name = f"layer{layer}"
        inputs = [saved[layer], saved[layer + 1], weights[layer]]
        builder.kernel("Backward", 1_700_000, inputs, [update], Phase.BACKWARD, name)
        builder.kernel(
            "Adam",
            0,
            [update, state, weights[layer]],
            [state, weights[layer]],
            Phase.OPTIMIZER,
            name,
            device=Device.CPU,
            parameters=2 * MIB,
        )
    return builder.build()


def drawn(seed):
    """A random trace, most of whose tensors are read at any distance."""
    return random_trace(seed, kernels=26, largest_tensor_bytes=22 * MIB, longest_ticks=2_000_000)


def profiled(trace):
    """The trace with times that kernels take where their pages fault."""
    kernels = tuple(
        replace(
            kernel,
            fault_profile=FaultProfile(kernel.duration * 3 // 2 + 1_000, kernel.duration * 2 + 3_000),
        )
        for kernel in trace.kernels
    )
    return replace(trace, kernels=kernels)


def _alone(trace, iterations=2):
    return Workload((Job(trace, iterations=iterations),))


def _in_turn():
    jobs = (
        Job(training()),
        Job(drawn(5), arrival_cycles=3_000_000),
        Job(decoding(), arrival_cycles=1_000_000),
    )
    return Workload(jobs)


def _together(**sharing):
    jobs = (Job(branches(), priority=2), Job(training(), arrival_cycles=2_500_000))
    return Workload(jobs, sharing=SharingSpec(**sharing))


def _on_two(first, second):
    return Workload((Job(first, gpu=0), Job(second, gpu=1, arrival_cycles=700_000)))


def _replicas(trace, **exchange):
    return Workload((Job(trace, gpu=0), Job(trace, gpu=1)), exchange=ExchangeSpec(**exchange))


def _varied(trace, **variation):
    return Workload((Job(trace, iterations=3),), variation=VariationSpec(**variation), seed=7)


WORKLOADS = {
    "training": lambda: _alone(profiled(training()), 3),
    "convolutions": lambda: _alone(convolutions()),
    "branches": lambda: _alone(profiled(branches()), 3),
    "decoding": lambda: _alone(decoding()),
    "drawn3": lambda: _alone(drawn(3)),
    "drawn8": lambda: _alone(profiled(drawn(8)), 3),
    "drawn21": lambda: _alone(drawn(21)),
    "until_steady": lambda: _alone(branches(), "auto"),
    "varied": lambda: _varied(training(), magnitude=0.3),
    "varied_normally": lambda: _varied(branches(), distribution="normal", magnitude=0.2),
    "in_turn": _in_turn,
    "time_sliced": lambda: _together(compute="time_sliced", time_slice="700 us"),
    "concurrent": lambda: _together(compute="concurrent", slowdown=0.4, admission_memory="live"),
    "two_gpus": lambda: _on_two(convolutions(), branches()),
    "ring": lambda: _replicas(training(), method="ring", bucket="8 MiB"),
    "over_the_host": lambda: _replicas(convolutions(), method="host", bucket="4 MiB"),
    "on_both": lambda: _alone(on_both()),
}
"""What makes each workload anew."""
