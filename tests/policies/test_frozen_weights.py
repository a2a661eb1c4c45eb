"""Weights that no kernel writes: a step with adapters (LoRA) writes back nothing but these."""

import pytest

from g10sim.config.system import SystemSpec
from g10sim.policies.designs.capuchin.swaps import access_pairs
from g10sim.policies.designs.tensile.swapping import swap_within
from g10sim.policies.interface.registry import create
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.swapping.access import AccessSequence
from g10sim.policies.planning.swapping.schedule import JobSchedule
from g10sim.sim.engine import run
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

MB, MS = 10**6, 10**6
LAYERS, WEIGHT, ADAPTER = 8, 100 * MB, MB


def machine(host="10 GB"):
    return SystemSpec(
        name="one link",
        gpu={"memory": "400 MB", "clock": "1 GHz", "page_size": "100 kB", "allocation_rate": "1000 TB/s"},
        host={"memory": host},
        ssd={"capacity": "1 TB", "latency": "0 s", "read_bandwidth": "5 GB/s", "write_bandwidth": "5 GB/s"},
        pcie={"bandwidth": "10 GB/s"},
        page_fault={"latency": "0 s"},
    )


def adapters(*, frozen=True):
    """Forward and backward through layers of a frozen weight and an adapter each, which is updated."""
    builder = TraceBuilder("adapters")
    weights, changes, gradients, activations = (
        [builder.tensor(f"{name}{i}", size, kind, persistent=lasts) for i in range(LAYERS)]
        for name, size, kind, lasts in (
            ("weight", WEIGHT, TensorKind.WEIGHT, True),
            ("adapter", ADAPTER, TensorKind.WEIGHT, True),
            ("gradient", ADAPTER, TensorKind.GRADIENT, False),
            ("activation", ADAPTER, TensorKind.ACTIVATION, False),
        )
    )
    for i in range(LAYERS):
        reads = [weights[i], changes[i], *activations[max(0, i - 1) : i]]
        builder.kernel("Forward", MS, reads, [activations[i]], Phase.FORWARD, layer=f"layers.{i}")
    for i in reversed(range(LAYERS)):
        reads = [weights[i], changes[i], activations[i]]
        builder.kernel("Backward", MS, reads, [gradients[i]], Phase.BACKWARD, layer=f"layers.{i}")
    for i in range(LAYERS):
        written = [changes[i]] if frozen else [changes[i], weights[i]]
        builder.kernel("Update", MS, [*written, gradients[i]], written, Phase.OPTIMIZER)
    return builder.build()


def out(policy, trace, system):
    records = run(Workload((Job(trace, iterations=3),)), system, create(policy), check=True)
    last = records.iterations[-1]
    return sum(bytes_ for name, bytes_ in last.traffic.items() if name.startswith("gpu_to")), last


UNIFIED = ["base_uvm", "deepum", "g10", "g10_host", "pressure"]
OTHERS = ["g10_gds", "stream", "capuchin", "tensile", "teraio"]


@pytest.mark.parametrize("policy", [*UNIFIED, *OTHERS])
def test_a_step_writes_back_nothing_but_its_adapters(policy):
    # Of 816 MB 400 MB have room. Adapters, their gradients and activations have five uses a layer together
    # after which they may leave.
    plain, _ = out(policy, adapters(frozen=False), machine())
    frozen, last = out(policy, adapters(), machine())
    assert frozen <= 5 * LAYERS * ADAPTER < plain / 30
    assert sum(last.traffic.values()) - frozen > 5 * WEIGHT  # weights come again and again


def test_the_tier_that_has_kept_its_copies_has_the_pages_again():
    _, last = out("base_uvm", adapters(), machine("800 MB"))  # less than all: one weight lies on the SSD
    assert last.traffic["ssd_to_gpu_bytes"] >= WEIGHT
    assert last.traffic["gpu_to_ssd_bytes"] <= 5 * LAYERS * ADAPTER


def weight_read_twice(*, frozen):
    """A forward pass of five kernels of 50 ms; the first and the last read a weight of 100 MB."""
    builder = TraceBuilder("pass")
    weight = builder.tensor("weight", WEIGHT, TensorKind.WEIGHT, persistent=True)
    for number in range(5):
        used = [weight] if number in (0, 4) else []
        builder.kernel("Forward", 50 * MS, used, [] if frozen else used, Phase.FORWARD)
    return builder.build()


@pytest.mark.parametrize(("frozen", "out"), [(True, 1), (False, 10 * MS)])
def test_planners_keep_no_time_for_copies_out_of_what_is_frozen(frozen, out):
    # 100 MB take 10 ms at 10 bytes a cycle.
    trace = weight_read_twice(frozen=frozen)
    accesses = AccessSequence(trace, [50 * MS] * 5, [WEIGHT])
    (pair,) = access_pairs(accesses, 10)
    assert (pair.out_cycles, pair.copy_cycles, pair.free_time) == (out, 10 * MS, 140 * MS - out)
    (swap,) = swap_within(JobSchedule(accesses, Channel(), Channel()), 0, 100 * MS, 10 * MS)
    assert (swap.out, swap.back) == (Interval(50 * MS, 50 * MS + out), Interval(190 * MS, 200 * MS))
