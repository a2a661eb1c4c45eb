"""Plans of offloading designs, by hand: stays of weights, and kernels that the CPU takes over."""

from dataclasses import replace

import pytest
from machines import PAGE, machine

from g10sim.errors import UnsupportedError
from g10sim.policies.planning.offloading.gradients import Gradients
from g10sim.policies.planning.offloading.partition import partitioned
from g10sim.policies.planning.offloading.room import require_tier
from g10sim.policies.planning.offloading.takeover import CpuLaunches, Takeover
from g10sim.policies.planning.offloading.windows import windows
from g10sim.trace.model import Device, Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder

NO_LIMIT = 1000


def weights_in_turn():
    """Weights of 10, 20, 30 and 40 bytes; the first is used again after the third, the second at the end."""
    builder = TraceBuilder("turns")
    weights = [
        builder.tensor(f"w{size}", size, TensorKind.WEIGHT, persistent=True) for size in (10, 20, 30, 40)
    ]
    for weight in (0, 1, 2, 0, 3, 1):
        builder.kernel("layer", 1, [weights[weight]], [])
    return builder.build()


@pytest.mark.parametrize(
    ("limits", "stays"),
    [
        ((60, NO_LIMIT, 50), [(0, 0, 0, 0), (1, 0, 1, 1), (2, 0, 2, 2), (0, 0, 3, 3), (3, 2, 4, 4),
                              (1, 3, 5, 5)]),
        ((60, 100, 50), [(0, 0, 0, 0), (1, 0, 1, 1), (2, 0, 2, 2), (0, 0, 3, 3), (3, 2, 4, 4),
                         (1, 3, 5, 5)]),
        ((60, 50, 50), [(0, 0, 0, 0), (1, 0, 1, 1), (2, 1, 2, 2), (0, 2, 3, 3), (3, 3, 4, 4),
                        (1, 5, 5, 5)]),
        ((60, NO_LIMIT, 51), [(0, 0, 0, 3), (1, 0, 1, 1), (2, 0, 2, 2), (3, 2, 4, 4), (1, 2, 5, 5)]),
        ((0, NO_LIMIT, 81), [(0, 0, 0, 3), (1, 1, 1, 5), (2, 2, 2, 2), (3, 4, 4, 4)]),
    ],
)  # fmt: skip
def test_weights_come_ahead_of_their_uses_as_far_as_bytes_allow(limits, stays):
    """Between its uses 50 bytes come for the first weight, 80 for the second.

    The first weight stays over 50 bytes if that is less than the limit.
    """
    found = windows(weights_in_turn(), range(4), *limits)
    assert [(one.tensor, one.fetched, one.first, one.last) for one in found] == stays


def step_of_training(*moved_bytes):
    """Two gradients of 40 and 60 bytes, made by kernels 0 and 1, of which kernels 3 and 4 update weights.

    Kernel 2 scales the first one for kernel 3. Kernel 5 makes a norm of the second, which kernel 6 reads on
    the GPU along with the second weight.
    """
    builder = TraceBuilder("step")
    first, second = (
        builder.tensor(name, 100, TensorKind.WEIGHT, persistent=True) for name in ("first", "second")
    )
    momentum = builder.tensor("momentum", 100, TensorKind.OPTIMIZER_STATE, persistent=True)
    one, other = (builder.tensor(f"gradient{size}", size, TensorKind.GRADIENT) for size in (40, 60))
    scaled, norm = (builder.tensor(name, 8, TensorKind.TEMPORARY) for name in ("scaled", "norm"))
    builder.kernel("forward", 1, [first, second], [one], Phase.BACKWARD)
    builder.kernel("backward", 1, [first], [other], Phase.BACKWARD)
    builder.kernel("scale", 1, [one], [scaled], Phase.OPTIMIZER)
    builder.kernel("update first", 1, [first, momentum, one, scaled], [first, momentum], Phase.OPTIMIZER)
    builder.kernel("update second", 1, [second, other], [second], Phase.OPTIMIZER)
    builder.kernel("norm", 1, [other], [norm], Phase.OPTIMIZER)
    builder.kernel("report", 1, [norm, second], [])
    trace = builder.build()
    kernels = list(trace.kernels)
    for number, moved in zip((3, 4), moved_bytes, strict=False):
        kernels[number] = replace(kernels[number], moved_bytes=moved)
    return replace(trace, kernels=tuple(kernels))


def test_the_cpu_takes_what_no_kernel_on_the_gpu_waits_for():
    """The norm of a gradient is made where it is read."""
    takeover = Takeover.of(step_of_training(), 1, 4)
    assert takeover.takes == {2, 3, 4}
    assert [kernel.id for kernel in takeover.on_gpu] == [0, 1, 5, 6]
    assert takeover.weights == {0, 1}


@pytest.mark.parametrize(("share", "taken"), [(1, {2, 3, 4}), (0.6, {2, 3, 4}), (0.5, {4}), (0, set())])
def test_the_gpu_keeps_the_first_updates_whole(share, taken):
    """The first update reads 48 bytes of 108, the second 60: of half of them, one has room."""
    assert Takeover.of(step_of_training(), share, 4).takes == taken


@pytest.mark.parametrize(
    ("moved_bytes", "parameters"),
    [((), {3: 11, 4: 13}), ((300, 100), {3: 18, 4: 6}), ((300, 0), {3: 11, 4: 13})],
)
def test_parameters_are_shared_by_the_bytes_that_updates_move(moved_bytes, parameters):
    """Gradients of 100 bytes stand for 25 parameters.

    Where an update does not say what it moves, the gradients count that it reads: 48 and 60 bytes.
    """
    assert Takeover.of(step_of_training(*moved_bytes), 1, 4).parameters == parameters


def test_launches_wait_for_gradients_and_are_over_before_results_are_read():
    """The first gradient is in host memory before kernel 3; kernel 6 reads the second weight."""
    launches = CpuLaunches(Takeover.of(step_of_training(), 1, 4), {3: 3})
    assert launches.earliest == {2: 3, 3: 3, 4: 2}
    assert launches.latest == {2: 7, 3: 7, 4: 6}
    assert launches.end == 7


@pytest.mark.parametrize(("last", "earliest"), [("adam", {0: 3, 1: 0, 2: 0}), ("decay", {0: 3, 1: 0, 2: 3})])
def test_launches_of_one_operator_do_not_wait_for_each_other(last, earliest):
    """All count their steps in one tensor, and update weights of their own; a gradient arrives later."""
    builder = TraceBuilder("lists")
    step = builder.tensor("step", 8, TensorKind.OPTIMIZER_STATE, persistent=True)
    late = builder.tensor("gradient", 100, TensorKind.GRADIENT, persistent=True)
    for number, name in enumerate(("adam", "adam", last)):
        weight = builder.tensor(f"weight{number}", 100, TensorKind.WEIGHT, persistent=True)
        gradients = [] if number else [late]
        builder.kernel(name, 1, [weight, step, *gradients], [weight, step], Phase.OPTIMIZER)
    launches = CpuLaunches(Takeover(builder.build(), frozenset(range(3)), 4), {late: 3})
    assert launches.earliest == earliest


@pytest.mark.parametrize("capacity", [100, 99])
def test_what_fills_a_tier_to_the_last_byte_fits(capacity):
    system = machine(host_pages=capacity)
    if capacity == 100:
        require_tier("mine", system, "host", 100 * PAGE, "weights")
    else:
        with pytest.raises(UnsupportedError, match=r"keeps weights in the tier 'host': .*; allowed: at most"):
            require_tier("mine", system, "host", 100 * PAGE, "weights")


def test_an_optimizer_alone_may_start_at_once():
    builder = TraceBuilder("optimizer")
    weight = builder.tensor("weight", 8, TensorKind.WEIGHT, persistent=True)
    builder.kernel("decay", 1, [weight], [weight], Phase.OPTIMIZER)
    builder.kernel("step", 1, [weight], [weight], Phase.OPTIMIZER)
    launches = CpuLaunches(Takeover(builder.build(), frozenset({0, 1}), 4), {})
    assert (launches.earliest, launches.latest, launches.end) == ({0: 0, 1: 0}, {0: 2, 1: 2}, 0)


def test_each_of_two_replicas_has_half_of_what_the_cpu_uses_and_gathers_the_rest():
    """Kernels on the GPU that use the weight use the part and the rest, and read the rest as often."""
    builder = TraceBuilder("replicas")
    weight = builder.tensor("weight", 100, TensorKind.WEIGHT, persistent=True)
    momentum = builder.tensor("momentum", 100, TensorKind.OPTIMIZER_STATE, persistent=True)
    gradient = builder.tensor("gradient", 61, TensorKind.GRADIENT)
    fed = builder.tensor("fed", 8, TensorKind.INPUT)
    builder.kernel("forward", 1, [fed, weight], [], Phase.FORWARD, reads=[2, 3])
    builder.kernel("backward", 1, [weight], [gradient], Phase.BACKWARD)
    builder.kernel("clamp", 1, [fed], [weight], Phase.BACKWARD)
    used = [weight, momentum, gradient]
    builder.kernel("step", 1, used, [weight, momentum], Phase.OPTIMIZER, device=Device.CPU, parameters=25)
    trace = partitioned(builder.build(), 2, 1000)
    names = [tensor.name for tensor in trace.tensors]
    assert [tensor.size_bytes for tensor in trace.tensors] == [50, 50, 61, 8, 31, 50]
    assert names == ["weight", "momentum", "gradient", "fed", "gradient (part)", "weight (rest)"]
    assert [(one.name, one.inputs, one.outputs, one.reads, one.moved_bytes) for one in trace.kernels] == [
        ("forward", (fed, weight, 5), (), (2, 3, 3), 0),
        ("backward", (weight, 5), (gradient,), (), 0),
        ("Reduce-scatter", (gradient,), (4,), (), 30),
        ("clamp", (fed,), (weight, 5), (), 0),
        ("step", (weight, momentum, 4), (weight, momentum), (), 0),
        ("All-gather", (weight,), (5,), (), 50),
    ]
    assert trace.kernels[4].parameters == 13


def two_gradients():
    """Two gradients of 40 and 60 bytes, a kernel without any, and a step on the CPU with both."""
    builder = TraceBuilder("gradients")
    weight = builder.tensor("weight", 100, TensorKind.WEIGHT, persistent=True)
    gradients = [builder.tensor(f"gradient{size}", size, TensorKind.GRADIENT) for size in (40, 60)]
    for gradient in gradients:
        builder.kernel("backward", 1, [weight], [gradient], Phase.BACKWARD)
    builder.kernel("backward", 1, [weight], [], Phase.BACKWARD)
    builder.kernel(
        "step", 1, [weight, *gradients], [weight], Phase.OPTIMIZER, device=Device.CPU, parameters=9
    )
    return builder.build()


def test_gradients_are_there_until_the_next_bucket_is_full():
    """The last ones until the end."""
    assert Gradients(two_gradients(), 40, 0).departures == {1: 1, 2: 3}
    assert Gradients(two_gradients(), 100, 0).departures == {1: 3, 2: 3}


def test_what_is_scattered_is_there_until_a_kernel_on_the_gpu_waits_for_the_next_bucket():
    """Kernels 1 and 3 scatter the gradients; the third one of the backward pass, kernel 4, waits."""
    trace = partitioned(two_gradients(), 2, 40)
    assert [kernel.device for kernel in trace.kernels] == [
        Device.GPU, Device.LINKS, Device.GPU, Device.LINKS, Device.GPU, Device.CPU, Device.LINKS
    ]  # fmt: skip
    parts = [one.outputs[0] for one in trace.kernels if one.name == "Reduce-scatter"]
    assert Gradients(trace, 40, 0).departures == {1: 4, parts[0]: 4, 2: 6, parts[1]: 6}
