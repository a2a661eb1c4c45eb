"""Weights that no kernel writes: a step with adapters (LoRA) writes back nothing but these."""

import numpy as np
import pytest
from machines import FLASH, HOST, FollowPlan, simulate

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.config.system import SystemSpec
from g10sim.policies.designs.autoswap.schedule import stick_to_limit
from g10sim.policies.designs.autoswap.scores import duration_of_absence
from g10sim.policies.designs.autoswap.timeline import LoadTimeline, find_candidates
from g10sim.policies.designs.capuchin.swaps import access_pairs
from g10sim.policies.designs.tensile.planner import swap_within
from g10sim.policies.designs.teraio.planner import Planner
from g10sim.policies.interface.machine import PlannedTier, planned_machine
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Requirements
from g10sim.policies.interface.registry import create
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule
from g10sim.policies.planning.timeline import Absence
from g10sim.records import Location
from g10sim.sim.engine import run
from g10sim.trace.format import load_trace
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


def used_apart(places):
    """Two frozen weights of 100 MB are used in turn; ``places`` are those that a plan evicts each to."""
    builder = TraceBuilder("apart")
    weights = [builder.tensor(f"weight{i}", WEIGHT, TensorKind.WEIGHT, persistent=True) for i in range(2)]
    for number in range(4):
        builder.kernel("Forward", 50 * MS, [weights[number % 2]], [], Phase.FORWARD)
    return builder.build(), FollowPlan(moves=[(n, (n + 1) % 2, places[(n + 1) % 2]) for n in range(4)])


@pytest.mark.parametrize(
    ("host", "places", "to_host", "from_host"),
    [
        ("10 GB", (FLASH, FLASH), [0, 0, 0], [0, 0, 0]),
        ("10 GB", (HOST, HOST), [2, 0, 0], [2, 4, 4]),
        ("10 GB", (HOST, FLASH), [1, 0, 0], [1, 2, 2]),
        # One has room, also while it is on the GPU: the other goes back to where it came from.
        ("150 MB", (HOST, HOST), [1, 0, 0], [1, 2, 2]),
        ("50 MB", (HOST, HOST), [0, 0, 0], [0, 0, 0]),
    ],
)
def test_a_frozen_weight_goes_to_the_faster_tier_that_a_plan_names(host, places, to_host, from_host):
    trace, policy = used_apart(places)
    behaviour = BehaviourSpec(addresses="own", initial_tier="last")
    iterations = simulate(trace, machine(host), policy, behaviour, iterations=3).iterations
    moved = [[one.traffic[f"{way}_bytes"] // WEIGHT for one in iterations] for way in WAYS]
    assert moved == [to_host, from_host, [0, 0, 0]]


class KeepCopies(FollowPlan):
    requirements = Requirements(keeps_copies=True)


@pytest.mark.parametrize(("policy", "to_host"), [(FollowPlan, [3, 3, 3]), (KeepCopies, [2, 1, 1])])
def test_a_tier_may_keep_copies_until_a_kernel_writes(policy, to_host):
    builder = TraceBuilder("written once")
    weight = builder.tensor("weight", WEIGHT, TensorKind.WEIGHT, persistent=True)
    for number in range(6):
        read = [weight] if number % 2 == 0 else []
        builder.kernel("Kernel", 50 * MS, read, read if number == 2 else [], Phase.FORWARD)
    moves = [(number, weight, HOST) for number in (1, 3, 5)]
    records = simulate(builder.build(), machine(), policy(moves=moves), iterations=3)
    moved = [[one.traffic[f"{way}_bytes"] // WEIGHT for one in records.iterations] for way in WAYS]
    assert moved == [to_host, [2, 3, 3], [0, 0, 0]]


def test_pages_that_a_tier_has_are_clean_where_others_are_not():
    # 40 of 100 MB leave and return, then all: the 60 MB that had stayed are copied, the rest is there still.
    builder = TraceBuilder("in part")
    weight = builder.tensor("weight", WEIGHT, TensorKind.WEIGHT, persistent=True)
    for number in range(5):
        builder.kernel("Kernel", 50 * MS, [weight] if number % 2 == 0 else [], [], Phase.FORWARD)
    builder.kernel("Update", MS, [weight], [weight], Phase.OPTIMIZER)
    moves = [Planned(1, Evict(weight, "host", size_bytes=40 * MB)), Planned(3, Evict(weight, "host"))]

    class InPart(FollowPlan):
        requirements = Requirements(keeps_copies=True)

        def plan_job(self, job, *_):
            return MigrationPlan.ordered(moves).with_ids(job.trace.ids_of_given)

    records = simulate(builder.build(), machine(), InPart(), iterations=3)
    assert [one.traffic["gpu_to_host_bytes"] // MB for one in records.iterations] == [100, 100, 100]
    assert [one.traffic["host_to_gpu_bytes"] // MB for one in records.iterations] == [140, 140, 140]


def test_pressure_keeps_copies_of_what_only_the_optimizer_writes():
    copied, _ = out("pressure", adapters(frozen=False), machine())
    trace, policy = adapters(frozen=False), create({"name": "pressure", "keep_copies": True})
    records = run(Workload((Job(trace, iterations=3),)), machine(), policy, check=True)
    kept = records.iterations[-1].traffic["gpu_to_host_bytes"]
    assert LAYERS * WEIGHT <= kept + 400 * MB < copied


WAYS = "gpu_to_host", "host_to_gpu", "gpu_to_ssd"


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


@pytest.mark.parametrize(("frozen", "out"), [(True, 0), (False, 20 * MS)])
def test_teraio_keeps_no_time_for_copies_of_what_is_frozen_to_host_memory(frozen, out):
    # The SSD is busy while it could leave. It leaves 5 of 10 bytes a cycle to host memory.
    there = planned_machine(machine(), BehaviourSpec())
    planner = Planner(weight_read_twice(frozen=frozen), there, 50 * MB, 10**10, TimeLimit())
    planner.out["ssd"].take(Interval(0, 190 * MS), 250 * MS)
    planner.scores(np.array([0]))
    offload = planner.offload(0)
    assert (offload.tier.name, offload.out) == ("host", Interval(50 * MS, 50 * MS + out))
    assert offload.back == Interval(180 * MS, 200 * MS)


PAGE = 4096


def whole_pages(tensors):
    return sum(-(-tensor.size_bytes // PAGE) * PAGE for tensor in tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(policy, marks=() if policy in ("g10", "pressure", "stream") else pytest.mark.nightly)
        for policy in (*UNIFIED, *OTHERS, "tencache")
    ],
)
def test_a_captured_step_with_adapters_writes_back_no_weight_but_these(policy):
    # 2.3 of 3.1 GiB are frozen, and 1.75 GiB have room.
    trace = load_trace(data_path("traces", "llama-3.2-1b-lora-b1-s512.g10t"))
    system = load_system("h100-80g-pcie5-nvme").with_gpu_memory(7 * 2**28)
    records = run(Workload((Job(trace, iterations=3),)), system, create(policy), record=("migrations",))
    # In the first iterations weights that begin on the GPU leave it once, and some go up from the SSD.
    last, written = records.iterations[-1], dict.fromkeys((tensor.id for tensor in trace.tensors), 0)
    for move in records.migrations:
        if move.source == Location.GPU and move.target != Location.NONE and move.start >= last.start:
            written[move.tensor] += move.size_bytes
    weights = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.WEIGHT]
    adapters = [tensor for tensor in weights if tensor.id not in trace.frozen]
    assert (sum(tensor.size_bytes for tensor in weights), whole_pages(adapters)) == (2_473_332_736, 1_703_936)
    assert [written[tensor] for tensor in trace.frozen if written[tensor]] == []
    # An iteration uses an adapter in its forward pass, again before its backward pass, in that, and in the
    # optimizer, which alone writes it.
    used = [written[tensor.id] for tensor in adapters]
    assert all(size <= 4 * whole_pages([tensor]) for size, tensor in zip(used, adapters, strict=True))
    states = [tensor for tensor in trace.tensors if tensor.kind is TensorKind.OPTIMIZER_STATE]
    assert sum(written[tensor.id] for tensor in states) <= 2 * whole_pages(states)
    assert sum(last.traffic[f"{tier}_to_gpu_bytes"] for tier in ("host", "ssd")) > 2**30


@pytest.mark.parametrize(("frozen", "gone", "score"), [(True, [1, 1], 38), (False, [4, 6], 28)])
def test_autoswap_keeps_no_time_for_copies_out_of_what_is_frozen(frozen, gone, score):
    # Kernels of 4 cycles. Copies of 10 bytes take 10 cycles, one after the other from the second kernel on.
    tier = PlannedTier("host", "memory", 10**9, read_rate=1, write_rate=1)
    timeline = LoadTimeline([4] * 20, np.array([100] * 20))
    candidates = [Absence(tensor, 10, 1, 13, frozen=frozen) for tensor in range(2)]
    schedule = stick_to_limit(timeline, candidates, 100, tier)
    assert [swap.gone for swap in schedule.swaps] == gone
    assert schedule.overhead_cycles == 0
    assert duration_of_absence(timeline, candidates, tier).tolist() == [score, score]


def test_autoswap_finds_what_is_frozen():
    (found,) = find_candidates(weight_read_twice(frozen=True), 2, MB)
    assert (found.start, found.end, found.frozen) == (1, 4, True)
    (found,) = find_candidates(weight_read_twice(frozen=False), 2, MB)
    assert not found.frozen
