"""Timelines worked out by hand, for every policy, on the machines of ``machines``."""

import pytest
from machines import GPG10, FollowPlan, iteration_times, kernel_times, machine, planned, simulate, trace_of
from memories import FLASH, GPU, NONE

from g10sim.config.behaviour import BehaviourSpec
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.designs.replay import Replay
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import save_plan
from g10sim.records import MigrationCause, StallReason


def two_kernels():
    """A weight w makes a, a makes b; two pages each, 10,000 cycles each."""
    return trace_of({"w*": 2, "a": 2, "b": 2}, [(10_000, "w", "a"), (10_000, "a", "b")])


def stalls(records, iteration=0):
    return [dict(kernel.stalls) for kernel in records.kernels if kernel.iteration == iteration]


def traffic(records):
    """Pages (from flash, to flash, from host, to host) of each iteration."""
    return [
        tuple(
            count // 1000
            for count in (
                iteration.traffic["ssd_to_gpu_bytes"],
                iteration.traffic["gpu_to_ssd_bytes"],
                iteration.traffic["host_to_gpu_bytes"],
                iteration.traffic["gpu_to_host_bytes"],
            )
        )
        for iteration in records.iterations
    ]


@pytest.mark.parametrize("behaviour", [None, GPG10])
def test_ideal_takes_the_sum_of_durations_whatever_the_machine(behaviour):
    records = simulate(two_kernels(), machine(1, 0), Ideal(), behaviour)
    assert iteration_times(records) == [20_000, 20_000]
    assert traffic(records) == [(0, 0, 0, 0)] * 2
    assert [iteration.page_faults for iteration in records.iterations] == [0, 0]


def test_base_uvm_with_room_for_everything():
    records = simulate(two_kernels(), machine(), BaseUvm())
    # Two weight pages from flash at 5000 each while a's two pages are touched first at 2000 each.
    assert kernel_times(records) == [10_000 + 10_000, 4000 + 10_000]
    assert stalls(records) == [{StallReason.FAULT_FLASH: 10_000}, {StallReason.FIRST_TOUCH: 4000}]
    # Then only a and b, which died, are touched anew.
    assert kernel_times(records, 1) == [14_000, 14_000]
    assert [iteration.page_faults for iteration in records.iterations] == [6, 4]
    assert traffic(records) == [(2, 0, 0, 0), (0, 0, 0, 0)]


def test_base_uvm_evicts_the_weight_to_host_memory_and_fetches_it_back():
    records = simulate(two_kernels(), machine(4), BaseUvm())
    # b's first touches push w out at 1000 a page, faster than they come in.
    assert kernel_times(records) == [20_000, 14_000]
    # w comes back from host memory at 2000 a page.
    assert kernel_times(records, 1) == [14_000, 14_000]
    assert stalls(records, 1)[0] == {StallReason.FAULT_HOST: 4000}
    assert traffic(records) == [(2, 0, 0, 2), (0, 0, 2, 2)]


def test_base_uvm_without_host_memory_waits_for_the_ssd_to_take_victims():
    records = simulate(two_kernels(), machine(4, 0), BaseUvm())
    assert kernel_times(records) == [20_000, 8000 + 10_000]
    assert stalls(records)[1] == {StallReason.EVICTION: 8000}
    assert kernel_times(records, 1) == [20_000, 18_000]
    assert traffic(records) == [(2, 2, 0, 0)] * 2


def test_recency_by_use_keeps_what_was_used_last():
    # w is older than v by arrival but used later.
    tensors = {"w*": 2, "v*": 2, "x": 2}
    kernels = [(1000, "w", ""), (1000, "v", ""), (1000, "w", ""), (1000, "", "x"), (1000, "w", "")]
    by_use = simulate(trace_of(tensors, kernels), machine(4), BaseUvm(), iterations=1)
    assert kernel_times(by_use)[4] == 1000
    by_arrival = simulate(
        trace_of(tensors, kernels),
        machine(4),
        BaseUvm(),
        GPG10.model_copy(update={"transfers": "fluid"}),
        iterations=1,
    )
    assert by_arrival.kernels[4].fault_pages["host_fault_pages"] == 2


def test_gpg_base_uvm_with_room_for_everything():
    records = simulate(two_kernels(), machine(), BaseUvm(), GPG10)
    # w at half a byte per cycle: 4000 beyond the duration; the batch at 10,000 is earlier.
    assert kernel_times(records) == [10_000 + 4000, 10_000 + 2000]
    # Dead tensors stay: nothing faults any more.
    assert kernel_times(records, 1) == [10_000, 10_000]


def test_gpg_base_uvm_with_a_full_gpu():
    records = simulate(two_kernels(), machine(4), BaseUvm(), GPG10)
    assert kernel_times(records) == [14_000, 12_000]
    # w's two pages push out a, which the kernel needs too: it faults again in the same batch and pushes
    # out b. Two faults are charged; the batch at 30,000 is within the kernel's time.
    assert kernel_times(records, 1) == [12_000, 12_000]
    assert traffic(records) == [(2, 0, 0, 2), (0, 0, 6, 6)]


def test_gpg_kernel_ends_with_the_batch_that_brings_its_last_page():
    trace = trace_of({"w*": 12, "a": 1}, [(1000, "w", "a")])
    records = simulate(trace, machine(), BaseUvm(), GPG10, iterations=1)
    # Five pages of w a batch: at 10,000, 20,000 and 30,000; charged 1000 + 12 * 2000 = 25,000.
    assert kernel_times(records) == [30_000]


def test_prefetch_hides_what_fits_behind_the_kernel_before():
    plan = [(0, 2, GPU)]
    trace = trace_of({"w*": 2, "a": 2, "v*": 3}, [(10_000, "w", "a"), (10_000, "a v", "")])
    records = simulate(trace, machine(), FollowPlan(moves=plan), iterations=1)
    # Faults take 0.2 and the prefetch the SSD's remaining 0.3 bytes per cycle: 3 pages in 10,000 cycles.
    assert kernel_times(records) == [20_000, 10_000]
    assert records.iterations[0].page_faults == 4
    without = simulate(trace, machine(), BaseUvm(), iterations=1)
    assert kernel_times(without) == [20_000, 15_000 + 10_000]


def test_late_prefetch_is_waited_for_without_faulting():
    trace = trace_of({"a": 2, "v*": 20}, [(10_000, "", "a"), (10_000, "a v", "")])
    records = simulate(trace, machine(), FollowPlan(moves=[(0, 1, GPU)]), iterations=1)
    # a is touched first for 4000; v's 20 pages take 40,000 from the start, 14,000 of them unseen.
    assert kernel_times(records) == [14_000, 26_000 + 10_000]
    assert stalls(records)[1] == {StallReason.LATE_PREFETCH: 26_000}
    assert records.kernels[1].in_transfer_pages == 13
    assert records.kernels[1].fault_pages["flash_fault_pages"] == 0


def test_planned_allocation_spares_the_first_touch():
    trace = trace_of({"a": 2, "b": 2}, [(10_000, "", "a"), (10_000, "a", "b")])
    records = simulate(trace, machine(), FollowPlan(moves=[(0, 1, GPU)]), iterations=1)
    assert kernel_times(records) == [14_000, 10_000]


def test_planned_eviction_makes_room_ahead_of_demand():
    trace = trace_of({"w*": 2, "a": 2, "b": 2}, [(10_000, "w", "a"), (10_000, "a", ""), (10_000, "a", "b")])
    plan = FollowPlan(moves=[(1, 0, FLASH)])
    records = simulate(trace, machine(4, 0), plan, record=("kernels", "migrations"), iterations=1)
    assert kernel_times(records) == [20_000, 10_000, 14_000]
    assert [
        (record.start, record.end, record.size_bytes)
        for record in records.migrations
        if record.cause is MigrationCause.PLANNED_EVICTION
    ] == [(20_000, 28_000, 2000)]
    assert kernel_times(simulate(trace, machine(4, 0), BaseUvm(), iterations=1)) == [20_000, 10_000, 18_000]


def test_eviction_is_taken_back_when_a_kernel_needs_the_tensor():
    trace = trace_of({"w*": 8, "a": 1}, [(1000, "w", ""), (5000, "", "a"), (1000, "w", "a")])
    records = simulate(trace, machine(), FollowPlan(moves=[(1, 0, FLASH)]), iterations=1)
    # Kernel 1 lasts 2000 + 5000: one page of w is out, the other seven stay.
    assert records.kernels[2].fault_pages["flash_fault_pages"] == 1
    assert kernel_times(records) == [41_000, 7000, 5000 + 1000]


@pytest.mark.parametrize("behaviour", [None, GPG10])
def test_planned_free_makes_room_without_traffic(behaviour):
    trace = trace_of({"a": 4, "b": 4}, [(10_000, "", "a"), (10_000, "a", ""), (10_000, "", "b")])
    records = simulate(trace, machine(4), FollowPlan(moves=[(2, 0, NONE)]), behaviour)
    assert traffic(records)[0] == (0, 0, 0, 0)


def test_moves_after_the_last_kernel_come_first_in_the_next_iteration():
    trace = trace_of({"a": 2, "b": 2}, [(10_000, "", "a"), (10_000, "a", "b")])
    kept = simulate(trace, machine(), FollowPlan(), GPG10)
    assert kernel_times(kept, 1) == [10_000, 10_000]
    freed = simulate(trace, machine(), FollowPlan(moves=[(2, 1, NONE)]), GPG10)
    assert kernel_times(freed, 1) == [10_000, 12_000]


def test_replay_carries_out_a_saved_plan(tmp_path):
    trace = trace_of({"a": 2, "v*": 20}, [(10_000, "", "a"), (10_000, "a v", "")])
    path = tmp_path / "plan.g10p"
    save_plan(MigrationPlan((planned(0, 1, GPU),)), path, trace)
    records = simulate(trace, machine(), Replay(plan_file=str(path)), iterations=1)
    assert kernel_times(records) == [14_000, 36_000]


def test_deepum_prefetches_the_kernels_ahead():
    tensors = {f"w{i}*": 2 for i in range(4)}
    trace = trace_of(tensors, [(10_000, f"w{i}", "") for i in range(4)])
    records = simulate(trace, machine(), DeepUm(look_ahead=1), iterations=1)
    # Only the first kernel faults. What faults leave of the SSD, 0.3 bytes per cycle, suffices for w1.
    assert kernel_times(records) == [20_000, 10_000, 10_000, 10_000]
    assert records.iterations[0].page_faults == 2
    assert kernel_times(simulate(trace, machine(), BaseUvm(), iterations=1)) == [20_000] * 4


def test_deepum_wraps_to_the_next_iteration():
    trace = trace_of({"a": 1, "b": 1, "c": 1}, [(10_000, "", "a"), (10_000, "a", "b"), (10_000, "b", "c")])
    records = simulate(trace, machine(), DeepUm(look_ahead=1))
    assert kernel_times(records) == [12_000, 10_000, 10_000]
    assert kernel_times(records, 1) == [10_000, 10_000, 10_000]


def test_deepum_spares_the_kernels_ahead():
    # Two kernels ahead are protected, so the weight of kernel 0 makes room, used longer ago or not.
    tensors = {f"w{i}*": 2 for i in range(4)}
    trace = trace_of(tensors, [(100_000, f"w{i}", "") for i in range(4)])
    records = simulate(trace, machine(4), DeepUm(look_ahead=1))
    assert kernel_times(records, 1) == [100_000] * 4
    assert records.iterations[1].page_faults == 0


def test_gpg_deepum_drops_dead_pages():
    trace = trace_of({"a": 4, "b": 4}, [(10_000, "", "a"), (10_000, "", "b")])
    deepum = simulate(trace, machine(4), DeepUm(look_ahead=1), GPG10, iterations=1)
    assert traffic(deepum) == [(0, 0, 0, 0)]
    base = simulate(trace, machine(4), BaseUvm(), GPG10, iterations=1)
    assert traffic(base) == [(0, 0, 0, 4)]


def test_kernel_that_ends_with_a_batch_starts_after_it():
    # The batch at 20,000 is over when kernel 1 starts in that cycle: its pages come with the next one.
    trace = trace_of({"a": 1, "b": 1}, [(19_000, "", "a"), (1000, "", "b")])
    records = simulate(trace, machine(), BaseUvm(), GPG10, iterations=1)
    assert [(kernel.start, kernel.end) for kernel in records.kernels] == [(0, 20_000), (20_000, 30_000)]


def test_memory_records_follow_the_kernels():
    records = simulate(two_kernels(), machine(4), BaseUvm(), record=("memory",), iterations=1)
    assert [(r.time, r.gpu_bytes, *r.tier_bytes.values()) for r in records.memory] == [
        (20_000, 4000, 0, 0),
        (34_000, 0, 2000, 0),
    ]
    assert list(records.memory[0].tier_bytes) == ["host_bytes", "flash_bytes"]
    assert records.kernels == ()


def test_peaks_are_those_of_each_iteration():
    records = simulate(two_kernels(), machine(4), BaseUvm())
    peaks = [(i.peak_gpu_bytes, i.peaks["peak_host_bytes"]) for i in records.iterations]
    assert peaks == [(4000, 2000), (4000, 2000)]


def test_a_prefetch_does_not_push_out_what_it_has_brought():
    """x fills one of three pages, so the third page of t waits until the kernel that needs x has ended."""
    trace = trace_of({"x*": 1, "t*": 3}, [(10_000, "x", ""), (10_000, "t", "")])
    records = simulate(trace, machine(3), FollowPlan(moves=[(0, 1, GPU)]), iterations=1)
    assert kernel_times(records) == [15_000, 12_000]
    (iteration,) = records.iterations
    assert iteration.traffic["ssd_to_gpu_bytes"] == 4000
    assert iteration.traffic["gpu_to_host_bytes"] == 1000
    assert records.kernels[1].fault_pages == {"host_fault_pages": 0, "flash_fault_pages": 0}


def test_the_closed_form_of_faults_adds_to_their_transfers_where_kernels_wait_for_all():
    """Five pages of flash: 5,000 cycles each to arrive, 10,000 to compute, and 5,000 B at 0.5 GB/s again."""
    trace = trace_of({"v*": 5}, [(10_000, "v", "")])
    behaviour = BehaviourSpec(addresses="own", fault_cost="profiled", compute_overlap="after_arrival")
    records = simulate(trace, machine(host_pages=0), BaseUvm(), behaviour, iterations=1)
    assert kernel_times(records) == [25_000 + 10_000 + 10_000]
    assert dict(records.kernels[0].stalls) == {StallReason.FAULT_FLASH: 35_000}
