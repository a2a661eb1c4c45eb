"""ZeRO-Infinity in closed form: its paper's efficiencies, its schedule, and what it refuses."""

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.zero_infinity import ZeroInfinity
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

SECOND, PAGE = 10**9, 100_000


def machine(*, gpu="30 GB", host="100 GB", link="10 GB/s", drive="10 GB/s", rate="1000000 G/s", **changes):
    gpus = {"memory": gpu, "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "1000 TB/s"}
    ssd = {"capacity": "10 TB", "read_bandwidth": drive, "write_bandwidth": drive}
    plain = {
        "name": "a drive",
        "gpu": gpus,
        "host": {"memory": host},
        "ssd": ssd | {"latency": "0 s"},
        "cpu": {"optimizer_rate": rate},
        "pcie": {"bandwidth": link},
        "page_fault": {"latency": "0 s"},
    }
    return SystemSpec(**plain | changes)


def layers(count, parameters, *, forward, recomputed=0, backward, state=12, micro_batches=1):
    """Layers of so many parameters; ``recomputed``: forward again before the backward pass.

    Gradients add up over micro-batches.
    """
    builder = TraceBuilder("layers")

    def tensors(name, size, kind, *, persistent=True):
        return [builder.tensor(f"{name}{i}", size, kind, persistent=persistent) for i in range(count)]

    weights = tensors("weight", 2 * parameters, TensorKind.WEIGHT)
    states = tensors("state", state * parameters, TensorKind.OPTIMIZER_STATE)
    gradients = tensors("gradient", 2 * parameters, TensorKind.GRADIENT, persistent=False)
    for number in range(1, micro_batches + 1):
        for weight in weights:
            builder.kernel("Forward", forward, [weight], [], Phase.FORWARD, micro_batch=number)
        for weight, gradient in reversed(list(zip(weights, gradients, strict=True))):
            if recomputed:
                builder.kernel("Forward again", recomputed, [weight], [], Phase.BACKWARD)
            used = [weight, gradient] if number > 1 else [weight]
            builder.kernel("Backward", backward, used, [gradient], Phase.BACKWARD, micro_batch=number)
    for weight, gradient, own in zip(weights, gradients, states, strict=True):
        builder.kernel("Update", 1, [gradient, own], [own, weight], Phase.OPTIMIZER)
    return builder.build()


def last(trace, system, iterations=3, **parameters):
    records = run(
        Workload((Job(trace, iterations=iterations),)), system, ZeroInfinity(**parameters), check=True
    )
    return records.iterations[-1]


def seconds(iteration):
    return (iteration.end - iteration.start) / SECOND


@pytest.mark.parametrize(("sequences", "lost"), [(3, 0.246), (2, 0.328), (1.25, 0.439)])
def test_efficiency_with_parameters_below_the_gpu(sequences, lost):
    # The paper's section 4: 8 * P * tokens operations at 70 Tflop/s, and 8 bytes a parameter at 70 GB/s.
    tokens, parameters = 1024 * sequences, 10**9
    pass_ns = round(2 * parameters * tokens / 70e12 * SECOND)
    trace = layers(1, parameters, forward=pass_ns, recomputed=pass_ns, backward=2 * pass_ns)
    nothing = {"prefetch_bucket_size": 0, "max_reuse_distance": 0}
    kept = last(trace, machine(link="70 GB/s", drive="70 GB/s"), **nothing)
    computed = 4 * pass_ns / SECOND
    # Three times in, one after the other, and gradients out.
    assert seconds(kept) == pytest.approx(computed + 8 * parameters / 70e9, rel=2e-3)
    assert 1 - computed / seconds(kept) == pytest.approx(lost, abs=5e-4)


@pytest.mark.parametrize(("sequences", "lost"), [(3, 0.100), (2, 0.143), (1.25, 0.211)])
def test_efficiency_with_optimizer_states_on_drives(sequences, lost):
    # 16 bytes a parameter are read and written, 32 together, at 819 GB/s; nothing else takes time.
    tokens, parameters = 1024 * sequences, 10**9
    pass_ns = round(8 * parameters * tokens / 70e12 * SECOND)
    trace = layers(1, parameters, forward=pass_ns // 2, backward=pass_ns // 2, state=16)
    system = machine(link="1000 TB/s", drive="819 GB/s")
    step = last(trace, system, offload_optimizer="ssd")
    assert seconds(step) == pytest.approx((pass_ns / SECOND) + 32 * parameters / 819e9, rel=2e-3)
    assert 1 - (pass_ns / SECOND) / seconds(step) == pytest.approx(lost, abs=5e-4)


FOUR = layers(4, 10**9, forward=SECOND, backward=SECOND)
AHEAD = {"prefetch_bucket_size": 10**9, "max_live_parameters": 2 * 10**9, "max_reuse_distance": 1}
SLOW = machine(link="1000 TB/s", drive="12 GB/s", rate="1 G/s")


@pytest.mark.parametrize(
    ("parameters", "steps"),
    [
        # Each step reads, updates and writes for a second each.
        ({}, 12),
        # The last step is read while the third is updated and the second written.
        ({"pipeline": True}, 6),
        # With two buffers the third step is read from second 3 on, when the first one is away.
        ({"pipeline": True, "buffer_count": 2}, 7),
    ],
)
def test_states_go_through_buffers(parameters, steps):
    step = last(FOUR, SLOW, offload_optimizer="ssd", **parameters)
    assert seconds(step) == pytest.approx(8 + steps, rel=1e-3)
    assert step.cpu.fetched_bytes == 48 * 10**9
    buffers = parameters.get("buffer_count", 4) if parameters else 1
    weights, gradients = 8 * 10**9, 8 * 10**9
    assert step.peaks["peak_host_bytes"] <= weights + gradients + buffers * 12 * 10**9 + PAGE


def test_weights_are_fetched_ahead_and_given_up_without_a_copy():
    step = last(FOUR, machine(), **AHEAD)
    # All but the first weight cross beside the layer before, and the last one stays for the backward pass;
    # gradients leave, the last one after the passes, and nothing of the weights does.
    assert seconds(step) == pytest.approx(0.2 + 8 + 0.2, rel=1e-3)
    assert step.traffic["host_to_gpu_bytes"] == 7 * 2 * 10**9 + PAGE
    assert step.traffic["gpu_to_host_bytes"] == 4 * 2 * 10**9
    # Two weights, and the gradients of four kernels.
    assert step.peak_gpu_bytes == 12 * 10**9


def test_without_looking_ahead_kernels_wait_for_their_weights():
    step = last(FOUR, machine(), prefetch_bucket_size=0, max_reuse_distance=0)
    assert seconds(step) == pytest.approx(8 * 1.2 + 0.2, rel=1e-3)


def test_the_weight_that_is_used_again_soon_stays():
    # Between the passes nothing is used: the last weight stays.
    step = last(FOUR, machine(), prefetch_bucket_size=0, max_reuse_distance=1)
    assert step.traffic["host_to_gpu_bytes"] == 7 * 2 * 10**9 + PAGE


def test_no_more_parameters_are_live_than_allowed():
    # With room for one layer's weights, the next ones come when they are needed, but for those that stay.
    step = last(FOUR, machine(), **AHEAD | {"max_live_parameters": 10**9})
    assert seconds(step) == pytest.approx(8 + 7 * 0.2 + 0.2, rel=1e-3)


def test_small_weights_stay():
    step = last(FOUR, machine(), param_persistence_threshold=10**9)
    assert step.traffic["host_to_gpu_bytes"] == 4 * 2 * 10**9 + PAGE
    # The last gradient leaves, and then all weights come back.
    assert seconds(step) == pytest.approx(8 + 0.2 + 0.8, rel=1e-3)


def test_buffers_that_are_reserved_count_in_host_memory():
    # Weights and gradients, 8 GB each, and the states of a step, or of as many as run side by side.
    for parameters, states in (({}, 12), ({"pipeline": True, "buffer_count": 3}, 3 * 12)):
        step = last(FOUR, machine(), offload_optimizer="ssd", **parameters)
        assert step.peaks["peak_host_bytes"] == (8 + 8 + states) * 10**9 + PAGE  # that of the last step's end
        short = machine(host=f"{8 + 8 + states - 1} GB")
        with pytest.raises(UnsupportedError, match=f"in the tier 'host': {8 + 8 + states}.0001 GB; allowed"):
            last(FOUR, short, offload_optimizer="ssd", **parameters)


def test_weights_on_the_ssd_are_read_from_there_and_written_once():
    step = last(FOUR, machine(), offload_param="ssd", **AHEAD)
    assert step.traffic["ssd_to_gpu_bytes"] == 7 * 2 * 10**9
    assert step.traffic["gpu_to_ssd_bytes"] == 0
    # The last gradient leaves; what the steps have written goes to the SSD: 0.2 s a layer.
    assert seconds(step) == pytest.approx(0.2 + 8 + 0.2 + 0.8, rel=1e-3)


@pytest.mark.parametrize(
    ("system", "parameters", "message"),
    [
        (machine(cpu=None), {}, "lets the CPU run the optimizer"),
        (
            machine(host="60 GB"),
            {},
            "what is offloaded in the tier 'host': 64.0001 GB; allowed: at most",
        ),
        # A weight, and the gradients of the next four kernels.
        (machine(gpu="3 GB"), {}, "keeps live weights and activations on the GPU: 10 GB at kernel 3"),
        (machine(tiers=["host"]), {"offload_param": "ssd"}, "in the tier 'ssd', which the machine has not"),
    ],
)
def test_what_does_not_fit_is_unsupported(system, parameters, message):
    with pytest.raises(UnsupportedError, match=message):
        last(FOUR, system, **parameters)


BUCKETS = AHEAD | {"reduce_bucket_size": 10**9, "births": 0}


def test_gradients_that_add_up_lie_in_host_memory_between_micro_batches():
    # Four gradients of 2 GB. The GPU has at most two weights of 2 GB, and gradients of the bucket that fills,
    # of the one that leaves and of the one that comes back.
    trace = layers(4, 10**9, forward=SECOND, backward=SECOND, micro_batches=3)
    found = last(trace, machine(), **BUCKETS)
    weights = 7 + 6 + 6  # where a pass ends the next one begins
    assert found.traffic["gpu_to_host_bytes"] == 3 * 4 * 2 * 10**9
    signal = PAGE  # that the step has ended
    assert found.traffic["host_to_gpu_bytes"] == (weights + 2 * 4) * 2 * 10**9 + signal
    assert found.peak_gpu_bytes <= 5 * 2 * 10**9
    # The first weight comes in 0.2 s, the last gradient leaves in 0.2 s: all else is beside kernels.
    assert seconds(found) == pytest.approx(24 + 0.2 + 0.2, abs=1e-3)


def test_gradients_of_one_bucket_stay_until_the_micro_batch_has_ended():
    trace = layers(4, 10**9, forward=SECOND, backward=SECOND, micro_batches=2)
    found = last(trace, machine(), **AHEAD | {"reduce_bucket_size": 10**10})
    assert found.traffic["gpu_to_host_bytes"] == 2 * 4 * 2 * 10**9


def test_a_gradient_that_comes_back_needs_room():
    trace = layers(4, 10**9, forward=SECOND, backward=SECOND, micro_batches=2)
    with pytest.raises(UnsupportedError, match="keeps live weights and activations on the GPU: 10 GB"):
        last(trace, machine(gpu="9 GB"), **BUCKETS)


def test_states_on_the_ssd_lie_there_from_the_start():
    # 64 GB in all, of which 48 GB are states: the first iteration goes as all others do.
    records = run(
        Workload((Job(FOUR, iterations=2),)),
        machine(host="29 GB", drive="100 GB/s"),
        ZeroInfinity(offload_optimizer="ssd", **AHEAD),
        check=True,
    )
    first, second = records.iterations
    assert seconds(first) == pytest.approx(seconds(second), rel=1e-6)


def test_all_gradients_of_a_kernel_leave():
    builder = TraceBuilder("twins")
    weights = [builder.tensor(f"weight{i}", 2 * 10**9, TensorKind.WEIGHT, persistent=True) for i in (0, 1)]
    gradients = [builder.tensor(f"gradient{i}", 2 * 10**9, TensorKind.GRADIENT) for i in (0, 1)]
    builder.kernel("Backward", SECOND, weights, gradients, Phase.BACKWARD)
    for weight, gradient in zip(weights, gradients, strict=True):
        builder.kernel("Update", 1, [gradient], [weight], Phase.OPTIMIZER)
    found = last(builder.build(), machine(), reduce_bucket_size=10**9)
    assert found.traffic["gpu_to_host_bytes"] == 4 * 10**9
    assert found.page_faults == 0
