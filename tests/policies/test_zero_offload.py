"""ZeRO-Offload on a layer of 10^9 parameters, in closed form, and what it refuses.

1 s forward, 2 s backward, in which ten buckets of gradients become ready one by one, and updates on the GPU
of 0.01 s a bucket. The link carries 10 GB/s each way, and the CPU updates 10^9 parameters a second: a bucket
crosses the link in 0.02 s, either way, and is updated in 0.1 s.
"""

from dataclasses import replace
from functools import partial

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.torch_offload import TorchOffload
from g10sim.policies.designs.zero_offload import ZeroOffload
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

SECOND = 10**9
BUCKETS, PARAMETERS = 10, 10**8
HALF, STATE = 2 * PARAMETERS, 12 * PARAMETERS


def machine(*, gpu_memory="30 GB", gpus=1, **changes):
    gpu = {"clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "100 TB/s"}
    plain = {
        "name": "one link",
        "gpu": {"memory": gpu_memory, "count": gpus} | gpu,
        "host": {"memory": "100 GB"},
        "ssd": None,
        "tiers": ["host"],
        "cpu": {"optimizer_rate": "1 G/s"},
        "pcie": {"bandwidth": "10 GB/s"},
        "page_fault": {"latency": "0 s"},
    }
    return SystemSpec(**plain | changes)


def layer(*, state=STATE, reads_weights=False):
    builder = TraceBuilder("layer")

    def tensors(name, size, kind, *, persistent=True):
        return [builder.tensor(f"{name}{i}", size, kind, persistent=persistent) for i in range(BUCKETS)]

    weights = tensors("weights", HALF, TensorKind.WEIGHT)
    gradients = tensors("gradients", HALF, TensorKind.GRADIENT, persistent=False)
    states = tensors("state", state, TensorKind.OPTIMIZER_STATE)
    builder.kernel("Forward", SECOND, weights, [], Phase.FORWARD)
    for weight, gradient in zip(weights, gradients, strict=True):
        builder.kernel("Backward", SECOND // 5, [weight], [gradient], Phase.BACKWARD)
    for weight, gradient, own in zip(weights, gradients, states, strict=True):
        reads = [gradient, own, *([weight] if reads_weights else [])]
        builder.kernel("Update", SECOND // 100, reads, [own, weight], Phase.OPTIMIZER)
    return builder.build()


def simulated(policy, trace=None, system=None, iterations=4):
    workload = Workload((Job(trace or layer(), iterations=iterations),))
    return run(workload, system or machine(), policy, check=True)


def offload(**parameters):
    return ZeroOffload(**{"reduce_bucket_size": PARAMETERS} | parameters)


@pytest.mark.parametrize(
    ("parameters", "seconds", "buckets"),
    [
        # The last bucket leaves, all steps, the last weights return: all others cross beside that.
        ({}, 1 + 2 + 0.02 + 1 + 0.02, BUCKETS),
        # One bucket's way there, its step, and its way back after the last gradient is ready.
        ({"overlap": True}, 3 + 0.02 + 0.1 + 0.02, BUCKETS),
        # All of it beside the next iteration: max(3, 1 + 0.2 + 0.2).
        ({"delayed_update": True}, 3, BUCKETS),
        # The GPU's half takes 0.05 beside the CPU's.
        ({"ratio": 0.5}, 3 + 0.02 + 0.5 + 0.02, BUCKETS // 2),
        # Two gradients fill a bucket: the last two leave, all others have left before.
        ({"reduce_bucket_size": 2 * PARAMETERS}, 3 + 0.04 + 1 + 0.02, BUCKETS),
        # Nothing leaves before the last gradient, unless a bucket is full: all ten cross after it.
        ({"reduce_bucket_size": 10 * PARAMETERS}, 3 + 0.2 + 1 + 0.02, BUCKETS),
        # A second gradient does not fit: each leaves when the next one is ready, the last two together. The
        # steps of both follow the first of the two.
        ({"reduce_bucket_size": 150_000_000, "overlap": True}, 3 + 0.02 + 0.2 + 0.02, BUCKETS),
    ],
)
def test_time_and_traffic_of_an_iteration(parameters, seconds, buckets):
    for iteration in simulated(offload(**parameters)).iterations[2:]:
        assert iteration.end - iteration.start == round(seconds * SECOND)
        assert iteration.traffic == {
            "host_to_gpu_bytes": buckets * HALF,
            "gpu_to_host_bytes": buckets * HALF,
        }
        assert iteration.cpu.busy_cycles == buckets * SECOND // 10


def straddled():
    """Four weights whose gradients come last first, 1 s apart, and three launches that update them.

    Every launch works on a part of each of two neighbours, and moves 3 GB.
    """
    builder, size = TraceBuilder("straddled"), 300_000_000
    kinds = (TensorKind.WEIGHT, TensorKind.GRADIENT, TensorKind.OPTIMIZER_STATE)
    weights, gradients, states = (
        [
            builder.tensor(f"{kind}{i}", size, kind, persistent=kind is not TensorKind.GRADIENT)
            for i in range(4)
        ]
        for kind in kinds
    )
    builder.kernel("Forward", SECOND, weights, [], Phase.FORWARD)
    for weight, gradient in reversed(list(zip(weights, gradients, strict=True))):
        builder.kernel("Backward", SECOND, [weight], [gradient], Phase.BACKWARD)
    for since in range(3):
        mine = [*weights[since : since + 2], *states[since : since + 2]]
        builder.kernel("Update", 0, [*mine, *gradients[since : since + 2]], mine, Phase.OPTIMIZER)
    trace = builder.build()
    moved = (replace(one, moved_bytes=3 * 10**9 * (one.name == "Update")) for one in trace.kernels)
    return replace(trace, kernels=tuple(moved))


AtOnce = partial(TorchOffload, call_time=0, launch_time=0)


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        # A gradient takes 0.03 s, a launch 0.2 s. The last launch waits for the first weight's gradient, and
        # two weights return after it.
        (ZeroOffload(overlap=True, reduce_bucket_size=1), 5 + 0.03 + 0.2 + 2 * 0.03),
        (ZeroOffload(reduce_bucket_size=1), 5 + 0.03 + 3 * 0.2 + 2 * 0.03),
        (AtOnce(), 5 + 0.03 + 0.2 + 2 * 0.03),
        (AtOnce(overlap=False), 5 + 0.03 + 3 * 0.2 + 2 * 0.03),
        # The last launch is the last one of two weights, and all launches are those of four.
        (AtOnce(call_time=0.01), 5 + 0.03 + 2 * 0.01 + 0.2 + 2 * 0.03),
        (AtOnce(call_time=0.01, overlap=False), 5 + 0.03 + 4 * 0.01 + 3 * 0.2 + 2 * 0.03),
        # Five kernels are launched before the first step; the last gradient has come after 5 s.
        (AtOnce(launch_time=0.9), 5 + 0.03 + 0.2 + 2 * 0.03),
        (AtOnce(launch_time=1), 5 * 1 + 3 * 0.2 + 2 * 0.03),
    ],
)
def test_launches_of_one_operator_run_as_their_gradients_arrive(policy, seconds):
    last = simulated(policy, straddled()).iterations[-1]
    assert last.end - last.start == round(seconds * SECOND)
    assert last.traffic == {"host_to_gpu_bytes": 4 * 3 * 10**8, "gpu_to_host_bytes": 4 * 3 * 10**8}


@pytest.mark.parametrize(
    ("dtype", "given", "step"), [("float32", None, 0.1), ("float32", 2, 0.2), ("bfloat16", None, 0.2)]
)
def test_parameters_have_the_bytes_that_they_were_captured_with(dtype, given, step):
    trace = replace(straddled(), origin={"dtype": dtype})
    last = simulated(AtOnce(bytes_per_gradient=given), trace).iterations[-1]
    assert last.end - last.start == round((5 + 0.03 + step + 2 * 0.03) * SECOND)


def test_a_step_moves_the_bytes_of_its_launches():
    # 3 GB take 0.3 s, more than the parameters do; what launches share counts in each for its part.
    narrow = machine(cpu={"optimizer_rate": "1 G/s", "memory_bandwidth": "10 GB/s"})
    last = simulated(AtOnce(), straddled(), narrow).iterations[-1]
    assert last.end - last.start == round((5 + 0.03 + 0.3 + 2 * 0.03) * SECOND)


def test_the_gpu_waits_for_no_copy_of_a_single_gradient():
    # A gradient takes 0.25 s to leave, and one is ready every 0.2 s: with two buffers the GPU waits.
    slow = machine(pcie={"to_device": "1000 GB/s", "from_device": "0.8 GB/s"})
    plain = simulated(AtOnce(), system=slow).iterations[-1]
    assert plain.end - plain.start == round((1 + 0.2 + 10 * 0.25 + 0.1 + 0.0002) * SECOND)
    assert StallReason.SYNCHRONIZATION not in dict(plain.stalls)
    buffered = simulated(offload(overlap=True), system=slow).iterations[-1]
    assert dict(buffered.stalls)[StallReason.SYNCHRONIZATION] == 9 * round(0.05 * SECOND)


def test_ideal_is_the_step_with_the_optimizer_on_the_gpu():
    assert {one.ideal_cycles for one in simulated(offload()).iterations} == {round(3.1 * SECOND)}


def test_a_slow_cpu_holds_up_delayed_steps():
    # The CPU is busy for 5 s; after that the gradients of a bucket of the next iteration can leave.
    slow = machine(cpu={"optimizer_rate": "0.2 G/s"})
    last = simulated(offload(delayed_update=True), system=slow, iterations=6).iterations[-1]
    assert 5 * SECOND < last.end - last.start < 5.4 * SECOND


def test_with_nothing_for_the_cpu_nothing_moves():
    last = simulated(offload(ratio=0.0)).iterations[-1]
    assert last.end - last.start == round(3.1 * SECOND)
    assert sum(last.traffic.values()) == last.cpu.busy_cycles == 0


def test_weights_that_the_optimizer_reads_have_a_copy_in_host_memory():
    plain, reads = (
        simulated(offload(), layer(reads_weights=reads)).iterations[-1] for reads in (False, True)
    )
    assert reads.traffic == plain.traffic
    assert reads.end - reads.start == plain.end - plain.start


def test_steps_take_as_long_as_their_bytes_need():
    # 28 bytes a parameter are read and written, as many as 2.8 s take at 10 GB/s.
    narrow = machine(cpu={"optimizer_rate": "1 G/s", "memory_bandwidth": "10 GB/s"})
    last = simulated(offload(), system=narrow).iterations[-1]
    assert last.end - last.start == pytest.approx((3.04 + 2.8) * SECOND, rel=1e-6)


def test_passes_over_memory_take_their_bytes_besides_the_steps():
    # 28 bytes a parameter are 2.8 GB a bucket, which takes 0.1 s at 28 GB/s, as long as its step.
    system = machine(cpu={"optimizer_rate": "1 G/s", "memory_bandwidth": "28 GB/s"})
    last = simulated(offload(pass_bytes=28), system=system).iterations[-1]
    assert last.end - last.start == pytest.approx((3.04 + 2) * SECOND, rel=1e-9)


def test_the_wait_for_the_cpu_has_an_owner():
    last = simulated(offload()).iterations[-1]
    assert dict(last.stalls) == {
        StallReason.CPU: round(1.02 * SECOND),
        StallReason.LATE_PREFETCH: round(0.02 * SECOND),
    }


def test_passes_need_the_bandwidth_of_memory():
    with pytest.raises(UnsupportedError, match=r"pass_bytes.*allowed: with system.cpu, its memory_bandwidth"):
        simulated(offload(pass_bytes=14))


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (machine(cpu=None), "lets the CPU run the optimizer; allowed: with system.cpu"),
        (
            machine(gpu_memory="2 GB"),
            # 2 GB of weights, a bucket that leaves, one that is made, and those of the next four kernels.
            r"keeps weights and activations on the GPU: 3.2 GB at kernel 2 \(Backward\); allowed: at most "
            "its memory, 2 GB",
        ),
        (
            machine(host={"memory": "15 GB"}),
            "keeps optimizer states and gradients in the tier 'host': 16 GB; allowed: at most its capacity, "
            "15 GB",
        ),
    ],
)
def test_what_does_not_fit_is_unsupported(system, message):
    with pytest.raises(UnsupportedError, match=message):
        simulated(offload(), system=system)
