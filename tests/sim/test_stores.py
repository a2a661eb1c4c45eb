"""Copies from host memory to an SSD, clean evictions, and buffers for data of kernels on the CPU."""

import pytest
from machines import FROM_SSD, PAGE
from test_cpu import cpu_spans, system, trace_of

from g10sim.errors import PolicyError
from g10sim.policies.interface.moves import Await, Evict, Store
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


class Scripted(Policy):
    """Moves after kernels, by kernel."""

    name = "scripted"

    def __init__(self, moves, buffers=None, before=()):
        self.moves, self.buffers, self.starts = moves, buffers, dict(before)

    @property
    def requirements(self):
        return Requirements(cpu_buffers=self.buffers)

    def on_kernel_start(self, view):
        return self.starts.get(view.kernel, ())

    def on_kernel_end(self, view):
        return self.moves.get(view.kernel, ())


def simulated(trace, policy, iterations=2, **changes):
    workload = Workload((Job(trace, iterations=iterations),))
    return run(workload, system(**changes), policy, FROM_SSD, record=("timeline",), check=True)


# The SSD reads half a byte a cycle and writes a quarter.
STEP = trace_of({"g": 2, "m*": 5}, [(20_000, "", "g"), (500, "g m", "m", "cpu"), (30_000, "", "")])
TENSORS = {name: number for number, name in enumerate("gm")}


def test_what_a_kernel_on_the_cpu_has_used_goes_back_to_the_ssd():
    records = simulated(STEP, Scripted({1: [Store(TENSORS["m"])]}))
    # It comes in 10,000 cycles, goes back in 20,000, and comes again in the next iteration.
    assert [one.cpu.fetched_bytes for one in records.iterations] == [5 * PAGE] * 2
    assert [one.traffic["gpu_to_ssd_bytes"] for one in records.iterations] == [0, 0]
    first, second = (cpu_spans(records, iteration)[0] for iteration in (0, 1))
    assert first == (22_000 + 10_000, 22_500 + 10_000)
    assert second[0] - first[0] == 52_000


def test_without_it_the_data_stay_in_host_memory():
    records = simulated(STEP, Scripted({}))
    assert [one.cpu.fetched_bytes for one in records.iterations] == [5 * PAGE, 0]


def test_a_kernel_can_wait_until_it_has_left():
    end = {2: [Await(frozenset([TENSORS["m"]]))]}
    records = simulated(STEP, Scripted({1: [Store(TENSORS["m"])], 2: end[2]}), iterations=1)
    # The third kernel has computed in cycle 52,000; the copy began in 32,500.
    assert records.iterations[0].end == 32_500 + 20_000
    assert dict(records.iterations[0].stalls)[StallReason.SYNCHRONIZATION] == 500


def test_a_kernel_that_needs_the_data_keeps_them():
    again = trace_of(
        {"g": 2, "m*": 5},
        [(20_000, "", "g"), (500, "g m", "m", "cpu"), (13_000, "", ""), (500, "m", "m", "cpu")],
    )
    records = simulated(again, Scripted({1: [Store(TENSORS["m"])]}), iterations=1)
    # Launched in cycle 35,000, while the copy is under way: nothing comes from the SSD again.
    assert records.iterations[0].cpu.fetched_bytes == 5 * PAGE
    assert cpu_spans(records)[1] == (35_000, 35_500)


def three_steps():
    names = {f"{kind}{number}{'*' if kind == 'm' else ''}": 5 for number in range(3) for kind in "m"}
    return trace_of(names, [(1000, "", ""), *((1000, f"m{k}", f"m{k}", "cpu") for k in range(3))])


@pytest.mark.parametrize(
    ("buffers", "starts"),
    [
        # All share the SSD's reads; rates are whole bytes a second.
        (None, [31_001, 32_001, 33_001]),
        # One after another: each computes for 1000 and leaves in 20,000 before the next one comes.
        (1, [11_000, 42_000, 73_000]),
        # The second comes right after the first. From cycle 22,000 on both leave, half of the first is left:
        # it is away in cycle 42,000, and the third comes.
        (2, [11_000, 21_000, 52_000]),
        (3, [11_000, 21_000, 31_000]),
    ],
)
def test_data_come_one_after_another_into_so_many_buffers(buffers, starts):
    trace = three_steps()
    moves = {k + 1: [Store(k)] for k in range(3)}
    records = simulated(trace, Scripted(moves, buffers), iterations=1)
    assert [start for start, _ in cpu_spans(records)] == starts


def test_clean_tensors_leave_without_a_copy():
    trace = trace_of({"w*": 5, "x": 1}, [(1000, "w", ""), (1000, "", "x"), (1000, "w x", "")])
    leaves = [Evict(0, is_clean=True), Await()]
    first, last = simulated(trace, Scripted({0: leaves, 2: leaves})).iterations
    assert first.traffic["gpu_to_host_bytes"] == 5 * PAGE  # it has not been there before
    assert (last.traffic["host_to_gpu_bytes"], last.traffic["gpu_to_host_bytes"]) == (10 * PAGE, 0)
    assert last.end - last.start == 3000 + 2 * 5000


def test_what_was_made_and_has_returned_leaves_without_a_copy():
    trace = trace_of(
        {"x": 5}, [(1000, "", "x"), (1000, "", ""), (1000, "x", ""), (1000, "", ""), (1000, "x", "")]
    )
    first, again = [Evict(0), Await()], [Evict(0, is_clean=True), Await()]
    last = simulated(trace, Scripted({0: first, 2: again})).iterations[-1]
    assert (last.traffic["gpu_to_host_bytes"], last.traffic["host_to_gpu_bytes"]) == (5 * PAGE, 10 * PAGE)
    with pytest.raises(PolicyError, match=r"evicts as clean .*, which kernels on the GPU write"):
        simulated(trace, Scripted({0: again}))


def test_what_is_only_read_goes_back_to_the_ssd_without_a_copy():
    reads, waits = (1000, "k", "g", "cpu"), (60_000, "", "")
    kernels = [(1000, "", "k"), reads, waits, reads, (15_000, "", ""), reads, waits]
    trace = trace_of({"k": 5, "g": 1}, kernels)
    stores = {kernel: [Store(0, is_clean=True)] for kernel in (1, 3, 5)}
    for iteration in simulated(trace, Scripted(stores)).iterations:
        # New in every iteration, it is copied in 20,000 cycles; then it is there again at once, and is read
        # by the last kernel, too, which would find a copy under way otherwise.
        assert iteration.cpu.fetched_bytes == 2 * 5 * PAGE


def test_what_came_from_two_tiers_is_copied_though_it_is_said_to_be_clean():
    trace = trace_of({"w*": 5, "x": 1}, [(1000, "w", ""), (1000, "", "x"), (1000, "w x", "")])
    parts = [Evict(0, size_bytes=2 * PAGE), Await(), Evict(0, "ssd"), Await()]
    leaves = [Evict(0, is_clean=True), Await()]
    last = simulated(trace, Scripted({0: parts, 2: leaves})).iterations[-1]
    assert last.traffic["gpu_to_host_bytes"] == (2 + 5) * PAGE


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (
            Evict(0, is_clean=True),
            "evicts as clean .*, which kernels on the GPU write; allowed: tensors that",
        ),
        (Store(0), "stores .*, which no kernel on the CPU uses; allowed: where some do"),
        (Store(0, "host"), "stores .*, which is to go to host; allowed: another tier"),
    ],
)
def test_what_cannot_be_is_refused(move, message):
    trace = trace_of({"w*": 5, "x": 1}, [(1000, "w", "w"), (1000, "", "x")])
    with pytest.raises(PolicyError, match=message):
        simulated(trace, Scripted({0: [move]}))


def test_what_kernels_change_is_not_stored_as_clean():
    message = "stores as clean .*, which kernels change; allowed: tensors that they only read, once they are"
    with pytest.raises(PolicyError, match=message):
        simulated(STEP, Scripted({1: [Store(TENSORS["m"], is_clean=True)]}))
