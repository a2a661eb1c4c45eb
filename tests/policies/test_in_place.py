"""Policies that choose between using tensors in place and bringing them in."""

from types import SimpleNamespace

import pytest
from machines import OWN, PAGE, iteration_times, kernel_times, machine, simulate, trace_of

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.registry import create
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

MIB = 2**20


def streamed(once=8, often=2, size_bytes=512 * MIB, times=10):
    """Weights read by one kernel each, once or ten times, and little else."""
    builder = TraceBuilder("streamed")
    result = builder.tensor("result", MIB, TensorKind.ACTIVATION)
    for number in range(once + often):
        reads = 1 if number < once else times
        weight = builder.tensor(f"w{number}", size_bytes, TensorKind.WEIGHT, persistent=True)
        builder.kernel("Read", 20_000, [weight], [result], reads=[reads])
    return builder.build()


def gh200(**changes):
    link = {"to_device": "422 GB/s", "from_device": "170 GB/s"}
    access = {"read": "328 GB/s", "write": "298 GB/s"}
    system = {
        "preset": "a100-40g-pcie3-znand",
        "gpu": {"memory": "1 GiB", "page_size": "64 KiB"},
        "host": {"memory": "64 GiB", "kernel_access": access},
        "pcie": {**link, "bandwidth": None},
        "tiers": ["host"],
        "ssd": None,
    }
    return load_system({**system, **changes})


def test_a_weight_read_once_is_used_in_place_and_one_read_ten_times_is_migrated():
    """1 GiB of memory for 5 GiB of weights over NVLink-C2C: break-even at 328 (1/422 + 1/170) = 2.7 reads."""
    result = g10sim.simulate(streamed(), gh200(), "in_place", record=["migrations"], check=True)
    last = result.records.iterations[-1]
    assert last.in_place_read_bytes == 8 * 512 * MIB
    names = [tensor.name for tensor in result.workload.jobs[0].trace.tensors]
    start = last.start
    moved = result.migrations[(result.migrations["start"] >= start) & (result.migrations["source"] == "HOST")]
    assert {names[tensor] for tensor in moved["tensor"]} <= {"w8", "w9"}


def test_what_came_to_the_gpu_and_will_be_used_in_place_is_sent_away():
    """Eight weights are read once in 1 GiB of memory, which has room for the two that are read more often."""
    policy = create("in_place")
    policy.plan(Workload((Job(streamed()),)), gh200(), BehaviourSpec())
    view = SimpleNamespace(
        job=0, trace=streamed(), in_place_tiers=("host",), resident_bytes=lambda tensor: MIB * (tensor != 2)
    )
    sent = []
    for view.kernel in range(10):
        sent += policy.on_kernel_end(view)
    assert sent == [Evict(tensor, "host") for tensor in (1, *range(3, 9))]


@pytest.mark.parametrize(
    "preset", ["gh200-96g-nvlink-c2c-spec", "gh200-96g-measured-sm", "gh200-96g-measured-ce"]
)
def test_so_they_are_on_grace_hopper(preset):
    result = g10sim.simulate(
        streamed(),
        load_system({"preset": preset, "gpu": {"memory": "1 GiB"}}),
        "in_place",
        record=["timeline"],
        check=True,
    )
    last = result.records.iterations[-1]
    assert {one.kernel for one in result.records.accesses if one.start >= last.start} == set(range(8))
    assert last.in_place_read_bytes == 8 * 512 * MIB
    assert result.summary["stall_in_place_access_cycles"] > 0


@pytest.mark.parametrize(("times", "in_place"), [(1, True), (2, True), (3, False), (10, False)])
def test_the_break_even_is_where_the_link_is_busy_equally_long(times, in_place):
    """No weight fits beside the others: each is used in place if read up to 2.7 times an iteration."""
    trace = streamed(once=0, often=4, size_bytes=900 * MIB, times=times)
    kept = 1  # one has room of its own
    records = g10sim.simulate(trace, gh200(), "in_place", check=True).records
    used = records.iterations[-1].in_place_read_bytes
    assert used == ((4 - kept) * times * 900 * MIB if in_place else 0)


@pytest.mark.parametrize(("write", "in_place"), [("1 GB/s", True), ("0.5 GB/s", False)])
def test_what_is_written_counts_as_well(write, in_place):
    """A page takes 1000 cycles each way as a copy; in place 1000 to be read, 1000 or 2000 to be written."""
    trace = trace_of({"w*": 8, "v*": 8, "u*": 8}, [(1000, "w", "w"), (1000, "v", "v"), (1000, "u", "u")])
    records = simulate(trace, machine(10, kernel_access={"write": write}), create("in_place"))
    assert (records.iterations[-1].in_place_read_bytes > 0) == in_place


def test_what_is_used_most_is_kept_on_the_gpu():
    trace = trace_of({"a*": 10, "b*": 10, "x": 1}, [(1_000, "a", "x"), (1_000, "b", "x"), (1_000, "b", "x")])
    records = simulate(trace, machine(12, kernel_access={}), create("in_place"), iterations=3)
    assert records.iterations[-1].in_place_read_bytes == 10 * PAGE  # a, once
    assert kernel_times(records, 2) == [11_000, 2_000, 2_000]  # x is mapped in 1,000


def test_where_everything_has_room_nothing_is_used_in_place():
    result = g10sim.simulate(streamed(), gh200(gpu={"memory": "8 GiB"}), "in_place")
    assert result.performance == pytest.approx(1.0)
    assert result.records.iterations[-1].in_place_read_bytes == 0


def test_a_machine_without_such_memory_is_refused():
    with pytest.raises(
        UnsupportedError, match="can access no tier of 'a100-40g-pcie3-znand'; allowed: machines"
    ):
        g10sim.simulate(streamed(once=2, often=0), "a100-40g-pcie3-znand", "in_place")


def test_an_activation_that_had_to_leave_is_used_in_place_when_it_returns():
    """It is written once, pushed out, and read once: 10,000 cycles instead of an eviction and a return."""
    trace = trace_of(
        {"a": 10, "b": 10, "x": 1}, [(1_000, "", "a"), (1_000, "", "b"), (1_000, "b", ""), (1_000, "a", "x")]
    )
    records = simulate(trace, machine(12, kernel_access={}), create("in_place"), OWN)
    assert records.iterations[-1].in_place_read_bytes == 8 * PAGE  # two pages stayed here
    assert records.iterations[-1].traffic["host_to_gpu_bytes"] == 0


def test_access_counters_migrate_what_is_used_more_often():
    """Two reads in place of 10,000 cycles each, then a page fault a page; from then on it is here."""
    trace = trace_of({"w*": 10}, [(1_000, "w", "")])
    policy = create({"name": "base_uvm", "access_counter": 2})
    records = simulate(trace, machine(kernel_access={}), policy, iterations=5)
    assert iteration_times(records) == [10_000, 10_000, 21_000, 1_000, 1_000]
    assert [record.page_faults for record in records.iterations] == [0, 0, 10, 0, 0]


def test_access_counters_start_again_when_a_tensor_has_left():
    """From the second iteration on one weight is on the GPU; the other is counted until it pushes it out."""
    trace = trace_of({"v*": 10, "w*": 10}, [(1_000, "v", ""), (1_000, "w", "")])
    policy = create({"name": "base_uvm", "access_counter": 1})
    records = simulate(trace, machine(10, kernel_access={}), policy, iterations=6)
    used = [record.in_place_read_bytes // PAGE for record in records.iterations]
    assert used == [20, 0, 10, 10, 0, 10]


def test_a_kernel_that_reads_more_often_than_the_counter_allows_migrates_at_once():
    trace = trace_of({"w*": 10}, [(1_000, "w", "", 5)])
    policy = create({"name": "base_uvm", "access_counter": 4})
    records = simulate(trace, machine(kernel_access={}), policy)
    assert [record.in_place_read_bytes for record in records.iterations] == [0, 0]


def test_counters_do_not_count_across_runs():
    trace = trace_of({"w*": 10}, [(1_000, "w", "")])
    policy = create({"name": "base_uvm", "access_counter": 2})
    first, second = (simulate(trace, machine(kernel_access={}), policy) for _ in range(2))
    assert first == second
