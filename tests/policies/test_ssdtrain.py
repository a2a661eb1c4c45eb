"""SSDTrain on ten layers, in closed form: each saves 1 GB in 1 s, and uses it for 2 s on the way back."""

from dataclasses import replace

import pytest

from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.ssdtrain import SsdTrain
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

SECOND, GB, LAYERS = 10**9, 10**9, 10


def machine(drive="1 GB/s", link="100 GB/s", gpu_memory="40 GB"):
    return SystemSpec(
        name="a drive",
        gpu={"memory": gpu_memory, "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "1000 TB/s"},
        host={"memory": "0 B"},
        ssd={"capacity": "1 TB", "read_bandwidth": drive, "write_bandwidth": drive, "latency": "0 s"},
        pcie={"bandwidth": link},
        page_fault={"latency": "0 s"},
    )


def step(*, weight_bytes=0):
    """A pass forward, in which kernel k saves tensor k, and a pass back."""
    builder, saved = TraceBuilder("ten layers"), []
    weight = (
        [builder.tensor("weight", weight_bytes, TensorKind.WEIGHT, persistent=True)] if weight_bytes else []
    )
    for layer in range(LAYERS):
        saved.append(builder.tensor(f"saved{layer}", GB, TensorKind.ACTIVATION))
        builder.kernel("Forward", SECOND, weight, saved[-1:], Phase.FORWARD, f"layers.{layer}")
    for layer in reversed(range(LAYERS)):
        inputs = [*weight, saved[layer]]
        builder.kernel("Backward", 2 * SECOND, inputs, [], Phase.BACKWARD, f"layers.{layer}")
    return builder.build()


def last(trace, system, **parameters):
    policy = SsdTrain(**{"births": 1} | parameters)
    records = run(Workload((Job(trace, iterations=3),)), system, policy, check=True)
    return records.iterations[-1]


def test_writes_and_reads_hide_where_the_drive_is_fast_enough():
    found = last(step(), machine())
    assert found.end - found.start == 30 * SECOND
    # Beside the tensor that leaves there are the one that is made, and the next one, mapped ahead; without
    # offloading there are ten. What the first iteration has mapped waits for no mapping.
    assert found.peak_gpu_bytes == 3 * GB
    # The last layer's stays.
    assert found.traffic["gpu_to_ssd_bytes"] == found.traffic["ssd_to_gpu_bytes"] == 9 * GB


def test_no_more_leaves_than_the_drive_takes_in_during_the_forward_pass():
    found = last(step(), machine("0.4 GB/s"))
    assert found.end - found.start == 30 * SECOND
    # 0.4 GB a second for ten seconds. In second 8, when the last tensor is mapped, 2.8 GB of it have left.
    assert found.traffic["gpu_to_ssd_bytes"] == found.traffic["ssd_to_gpu_bytes"] == 4 * GB
    assert found.peak_gpu_bytes == 7_200_000_000


def test_what_has_not_left_when_it_is_fetched_stays():
    found = last(step(), machine("0.4 GB/s"), adaptive=False)
    assert found.end - found.start == 30 * SECOND
    # Writing goes on in the backward pass, in vain: one tensor more leaves in seconds 11 to 13.5, after the
    # peak, and comes back. The other four have not begun to leave when they are fetched.
    assert found.traffic["gpu_to_ssd_bytes"] == found.traffic["ssd_to_gpu_bytes"] == 5 * GB
    assert found.peak_gpu_bytes == 7_200_000_000


def test_weights_never_leave():
    plain, read = (last(step(weight_bytes=size), machine()) for size in (0, GB))
    assert read.traffic == plain.traffic
    assert read.peak_gpu_bytes == plain.peak_gpu_bytes + GB


def test_another_tier_can_be_the_target():
    system = machine().model_copy(update={"host": machine().host.model_copy(update={"memory": 100 * GB})})
    found = last(step(), system, target="host")
    assert found.traffic["gpu_to_host_bytes"] == 9 * GB


def test_the_note_says_how_much_leaves():
    records = run(Workload((Job(step()),)), machine("0.4 GB/s"), SsdTrain())
    assert records.note == "offloads 4 of 10 GB that the forward pass saves"


def test_a_few_wide_layers_need_nearly_half_the_memory_in_the_same_time():
    # As in the paper's figures: layers 12288 wide, 16 sequences of 1024 tokens, at 150 Tflop/s.
    model = Transformer(4, 12288, sequence=1024, batch=16, flops_per_second=150e12, bytes_per_second=1.5e12)
    step = model.trace()
    passes = replace(step, kernels=tuple(k for k in step.kernels if k.phase is not Phase.OPTIMIZER))
    host = {"gpu_memory": "200 GB", "link": "25 GB/s"}
    keeps, offloads = (last(passes, machine(drive, **host), births=0) for drive in ("1 kB/s", "12 GB/s"))
    activations = [one.peak_gpu_bytes - 2 * model.parameters for one in (keeps, offloads)]
    assert 0.4 < 1 - activations[1] / activations[0] < 0.5
    assert offloads.end - offloads.start < 1.02 * (keeps.end - keeps.start)


@pytest.mark.parametrize("drive", ["0.1 GB/s", "0.3 GB/s", "0.7 GB/s"])
def test_the_adaptive_amount_never_stalls(drive):
    found = last(step(), machine(drive))
    assert found.end - found.start == 30 * SECOND


def test_a_target_is_a_name():
    with pytest.raises(ValueError, match="target: found 5; allowed: the name of a memory tier"):
        SsdTrain(target=5)


def test_a_machine_without_the_tier_is_unsupported():
    with pytest.raises(
        UnsupportedError, match="keeps activations in the tier 'cxl', which the machine has not"
    ):
        last(step(), machine(), target="cxl")
