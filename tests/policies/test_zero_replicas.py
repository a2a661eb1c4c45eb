"""ZeRO-Offload and ZeRO-Infinity over replicas: timelines and bytes worked out by hand.

The layers and machines of ``test_zero_offload`` and ``test_zero_infinity``, on GPUs that send 100 GB/s to
each other. A cycle is a nanosecond. What maps memory has mapped it in the first iteration.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_zero_infinity import AHEAD, FOUR
from test_zero_infinity import machine as with_drive
from test_zero_offload import BUCKETS, HALF, PARAMETERS, SECOND, layer, machine, offload

from g10sim.config.sharing import ExchangeSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import PolicyError, UnsupportedError
from g10sim.policies.designs.lohan import LoHan
from g10sim.policies.designs.zero_infinity import ZeroInfinity
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.sim.preparation import with_chosen_kernels
from g10sim.trace.transformer import Transformer
from g10sim.trace.workload import Job, Workload

NVLINK = {"bandwidth": "100 GB/s"}


def replicas(number, trace, iterations=3, method="ring"):
    jobs = tuple(Job(trace, gpu=gpu, iterations=iterations) for gpu in range(number))
    return Workload(jobs, exchange=ExchangeSpec(method=method))


def linked(number, system):
    plain = system.model_dump(mode="json")
    return SystemSpec(**plain | {"gpu": {**plain["gpu"], "count": number}, "nvlink": NVLINK})


def last(policy, trace, number, system, **options):
    """The last iterations of all replicas."""
    workload = replicas(number, trace, **options)
    records = run(workload, system, policy, record=("kernels",), check=True)
    return records.iterations[-number:]


def cycles(iterations):
    (found,) = {one.end - one.start for one in iterations}
    return found


def offloaded(number, changes=None, **parameters):
    system = machine(gpus=number, **{"nvlink": NVLINK} | (changes or {}))
    return last(offload(**parameters), layer(), number, system)


SOCKETS = {"memory": "100 GB", "sockets": [{"name": "a", "gpus": [0]}, {"name": "b", "gpus": [1]}]}


@pytest.mark.parametrize(
    ("number", "changes", "parameters", "seconds"),
    [
        # A bucket of 0.2 GB: 1/2 of it goes to the other GPU in 0.001 s, and 1/2 leaves in 0.01 s. The CPU
        # updates the parts of both in turn, in 0.05 s each. The last part returns, and is all-gathered.
        (2, {}, {}, 3 + 0.001 + 0.01 + 1 + 0.01 + 0.001),
        # 3/4 around the ring, and 1/4 over each GPU's own link; the CPU has as much to do.
        (4, {}, {}, 3 + 0.0015 + 0.005 + 1 + 0.005 + 0.0015),
        # Each socket has a CPU of its own.
        (2, {"host": SOCKETS}, {}, 3 + 0.001 + 0.01 + 0.5 + 0.01 + 0.001),
        # Without NVLink halves go around over PCIe, at 10 GB/s.
        (2, {"nvlink": None}, {}, 3 + 0.01 + 0.01 + 1 + 0.01 + 0.01),
        # The parts of the last bucket, one after the other.
        (2, {}, {"overlap": True}, 3 + 0.001 + 0.01 + 0.1 + 0.01 + 0.001),
        # The GPUs update the first five buckets whole, as data parallelism does, beside the CPU.
        (2, {}, {"ratio": 0.5}, 3 + 0.001 + 0.01 + 0.5 + 0.01 + 0.001),
    ],
)
def test_time_of_a_step_whose_optimizer_replicas_share(number, changes, parameters, seconds):
    assert cycles(offloaded(number, changes, **parameters)) == round(seconds * SECOND)


def test_a_delayed_update_hides_all_of_it():
    assert cycles(offloaded(2, delayed_update=True)) == 3 * SECOND


@pytest.mark.parametrize("number", [2, 4])
def test_every_replica_has_its_part(number):
    for one in offloaded(number):
        part = BUCKETS * HALF // number
        assert one.traffic == {"host_to_gpu_bytes": part, "gpu_to_host_bytes": part}
        # All but the own part of gradients, and of weights, around the ring.
        assert one.exchanged == {"exchanged_bytes": 2 * (BUCKETS * HALF - part)}
        assert one.cpu.busy_cycles == SECOND // number


@pytest.mark.parametrize("number", [2, 4])
def test_a_replica_moves_its_part_of_the_bytes_of_steps(number):
    # 28 bytes a parameter take as long at 28 GB/s as its update, those of the step and those of passes.
    system = machine(
        gpus=number, nvlink=NVLINK, cpu={"optimizer_rate": "1 G/s", "memory_bandwidth": "28 GB/s"}
    )
    moved = 28 * PARAMETERS
    kernels = (replace(one, moved_bytes=moved * (one.name == "Update")) for one in layer().kernels)
    for one in last(offload(pass_bytes=28), replace(layer(), kernels=tuple(kernels)), number, system):
        assert one.cpu.busy_cycles == pytest.approx(2 * SECOND / number, rel=1e-8)


def test_the_wait_for_collectives_has_an_owner():
    first, second = offloaded(2)
    # From the last gradient on: its reduce-scatter and copy, and all steps but the other's last one.
    assert dict(first.stalls) == {
        StallReason.CPU: round((0.011 + 0.95) * SECOND),
        StallReason.LATE_PREFETCH: round(0.01 * SECOND),
        StallReason.BARRIER: round((0.05 + 0.001) * SECOND),
    }
    assert dict(second.stalls)[StallReason.BARRIER] == round(0.001 * SECOND)


def test_by_way_of_the_host():
    # A bucket goes up in 0.02 s and the part of its sum comes down in 0.01 s; that leaves, in 0.01 s. The
    # weights' last part comes down in 0.01 s, goes up again in 0.01 s, and the other part comes down.
    system = machine(gpus=2)
    step = last(offload(), layer(), 2, system, method="host")
    assert cycles(step) == round((3 + 0.02 + 0.01 + 0.01 + 1 + 0.01 + 0.01 + 0.01) * SECOND)
    assert {one.exchanged["exchanged_bytes"] for one in step} == {BUCKETS * (HALF + HALF // 2)}


def infinity(number, system=None, **parameters):
    return last(ZeroInfinity(**parameters), FOUR, number, linked(number, system or with_drive()))


@pytest.mark.parametrize(
    ("number", "parameters", "seconds"),
    [
        # A weight of 2 GB: each of two GPUs fetches half in 0.1 s, and gets the other half in 0.01 s. All but
        # the first hide behind the kernel before; the last gradient is reduce-scattered, and its half leaves.
        (2, AHEAD, (0.1 + 0.01) + 8 + (0.01 + 0.1)),
        (4, AHEAD, (0.05 + 0.015) + 8 + (0.015 + 0.05)),
        # Nothing is fetched ahead, or kept: all eight are waited for. A reduce-scatter goes before the next.
        (2, {"prefetch_bucket_size": 0, "max_reuse_distance": 0}, 8 * (0.11 + 1) + 0.11),
        # Weights stay on the GPUs: their parts return after the last step, one gathered beside the next one.
        (2, {"param_persistence_threshold": 10**9}, 8 + 0.11 + 4 * 0.1),
        # What steps have written goes to the SSD, 1 GB of each GPU and layer at 10 GB/s in all.
        (2, {"offload_param": "ssd", **AHEAD}, (0.2 + 0.01) + 8 + 0.11 + 0.8),
    ],
)
def test_time_of_a_step_whose_weights_replicas_share(number, parameters, seconds):
    # Mapping, faster than 1 PB/s, and updates of 10^15 parameters a second, take some microseconds.
    assert cycles(infinity(number, **parameters)) == pytest.approx(seconds * SECOND, abs=20_000)


@pytest.mark.parametrize("number", [2, 4])
def test_weights_come_over_all_links_together(number):
    # Seven weights come, the last one stays for the backward pass, and four gradients go; a page signals.
    for one in infinity(number, **AHEAD):
        assert one.traffic["host_to_gpu_bytes"] == 7 * 2 * SECOND // number + 100_000
        assert one.traffic["gpu_to_host_bytes"] == 4 * 2 * SECOND // number
        assert one.exchanged == {"exchanged_bytes": 11 * 2 * SECOND * (number - 1) // number}


def test_states_on_a_drive_are_read_in_parts():
    # Each part of a step has 6 GB: the first two are read side by side in 1 s, then the CPU has 4 s to do,
    # and the very last part is written alone in 0.5 s.
    system = with_drive(link="1000 TB/s", drive="12 GB/s", rate="1 G/s")
    steps = infinity(2, system, offload_optimizer="ssd", pipeline=True, **AHEAD)
    assert cycles(steps) == pytest.approx((0.01 + 8 + 0.01 + 1 + 4 + 0.5) * SECOND, abs=50_000)
    assert {one.cpu.fetched_bytes for one in steps} == {4 * 6 * SECOND}


SMALL = Transformer(3, 256, sequence=128, batch=2, flops_per_second=1e12, bytes_per_second=1e12).trace()


@pytest.mark.parametrize("name", ["zero_offload", "zero_infinity"])
@pytest.mark.parametrize("method", ["ring", "host", "none"])
def test_one_replica_is_the_single_gpu(name, method):
    system = with_drive(rate="1 G/s")
    parameters = {"name": name, "reduce_bucket_size": 100_000}
    alone = run(Workload((Job(SMALL, iterations=3),)), system, create(parameters), check=True)
    assert run(replicas(1, SMALL, method=method), system, create(parameters), check=True) == alone


def test_replicas_that_do_not_wait_share_nothing():
    alone = last(offload(), layer(), 1, machine())
    both = last(offload(), layer(), 2, machine(gpus=2), method="none")
    assert {sum(one.traffic.values()) for one in both} == {sum(one.traffic.values()) for one in alone}
    assert [one.exchanged for one in both] == [{}, {}]


def test_what_host_memory_holds_together_counts():
    # Two halves of states and gradients are as much as one whole.
    with pytest.raises(UnsupportedError, match="in the tier 'host': 16 GB; allowed: at most its capacity"):
        last(offload(), layer(), 2, machine(gpus=2, host={"memory": "15 GB"}))


def test_other_designs_refuse_replicas():
    with pytest.raises(UnsupportedError, match="'lohan' does not share weights and optimizer between rep"):
        last(LoHan(), FOUR, 2, linked(2, with_drive()))


def test_contiguous_memory_has_no_collectives():
    class Copies(Policy):
        name = "copies"
        requirements = Requirements(placement="contiguous")

        def partition(self, trace, replicas, system):
            return offload().partition(offload().choose_kernels(trace, system), replicas, system)

    with pytest.raises(PolicyError, match="'copies': partition adds collectives, and copies whole tensors"):
        last(Copies(), layer(), 2, machine(gpus=2))


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_bytes_are_conserved_in_memory_that_just_suffices(seed):
    draw = random.Random(seed)
    number = draw.choice([2, 3, 4])
    hidden, layers = draw.choice([64, 96, 200]), draw.randint(1, 4)
    rates = {"flops_per_second": draw.choice([1e11, 1e12, 1e13]), "bytes_per_second": 1e12}
    trace = Transformer(layers, hidden, sequence=64, batch=1, recomputes=draw.random() < 0.5, **rates).trace()
    given_sizes = {"reduce_bucket_size": draw.choice([1, 10**4, 10**6])}
    if draw.random() < 0.5:
        policy = {"name": "zero_offload", "overlap": draw.random() < 0.5, "ratio": draw.choice([0.5, 1.0])}
        policy["delayed_update"] = draw.random() < 0.3
    else:
        policy = {"name": "zero_infinity", "offload_param": draw.choice(["host", "ssd"])}
        policy |= {name: draw.choice([0, 10**4, 10**6]) for name in ("prefetch_bucket_size",)}
        policy |= {"max_live_parameters": draw.choice([10**4, 10**6]), "max_reuse_distance": 10**4}
        policy |= {"param_persistence_threshold": draw.choice([0, 10**4])}
    system = _small(number, draw)
    workload = replicas(number, trace, method=draw.choice(["ring", "ring", "host"]))
    made = create(policy | given_sizes)
    with pytest.raises(UnsupportedError) as refused:
        run(workload, system("1 B"), made)
    needed = str(refused.value).split("on the GPU: ")[1].split(" at kernel")[0]
    records = run(workload, system(needed, slack=2), made, check=True)
    (own, *_) = with_chosen_kernels(workload, system("1 GB"), made).jobs
    collectives = own.trace.collectives
    # Every gradient that the CPU takes is in one reduce-scatter.
    updated = {tensor for one in own.trace.cpu_kernels for tensor in one.inputs}
    scattered = [one for one in collectives if updated.issuperset(one.outputs)]
    parts = [tensor for one in scattered for tensor in one.outputs]
    assert len(parts) == len(set(parts)) > 0
    pages = sum(-(-own.trace.tensors[tensor].size_bytes // 4096) * 4096 for tensor in parts)
    total = sum(one.moved_bytes for one in collectives)
    is_delayed, sums_up = policy.get("delayed_update"), policy.get("ratio", 1.0) < 1.0
    for one in records.iterations[-number:]:
        if workload.exchange.method == "ring" and not (is_delayed or sums_up):
            assert one.exchanged["exchanged_bytes"] == total
        if not is_delayed:  # otherwise what is left leaves beside the next iteration
            assert one.traffic["gpu_to_host_bytes"] == pages


def _small(number, draw):
    link, sockets = draw.choice(["1 GB/s", "20 GB/s"]), draw.choice([None, "5 GB/s"])
    fast = draw.random() < 0.5

    def system(memory, slack=0):
        gpu = {"clock": "1 GHz", "page_size": "4 KiB", "allocation_rate": "50 GB/s", "count": number}
        return SystemSpec(
            name="small",
            gpu=gpu | {"memory": memory},
            host={"memory": "10 GB", "memory_bandwidth": sockets},
            ssd={"capacity": "10 GB", "read_bandwidth": "2 GB/s", "write_bandwidth": "1 GB/s"}
            | {"latency": "0 s"},
            cpu={"optimizer_rate": "1 G/s"},
            pcie={"bandwidth": link},
            nvlink={"bandwidth": "50 GB/s"} if fast else None,
            page_fault={"latency": "1 us"},
        )

    return system
