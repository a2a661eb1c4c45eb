"""Costs of faults: groups that wait, and the published closed form with its divisions by zero."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.config.presets import load_system
from g10sim.config.system import PageFaultSpec
from g10sim.hardware.faults import (
    FaultCount,
    ProfiledFaultCost,
    demand_rate,
    fault_batches,
    one_after_another,
)
from g10sim.trace.model import FaultProfile

PAGE = 4096
CLOCK = 1_200_000_000
LINK, SSD = 15.754e9, 3.2e9


def machine(ssd="3.2 GB/s"):
    return load_system(
        {"preset": "a100-40g-g10-paper", "ssd": {"read_bandwidth": ssd, "write_bandwidth": ssd}}
    )


def side(pages=0, flash=0, host=0, absent=0):
    return FaultCount([absent, 0, host, flash], pages)


def cost(inputs=None, outputs=None, *, duration=0, profile=None, system=None):
    sides = inputs or side(), outputs or side()
    return ProfiledFaultCost(system or machine(), CLOCK).cycles(duration, profile, *sides)


def cycles(size_bytes, rate):
    return int(size_bytes / rate * CLOCK)


def seconds(count):
    return count * CLOCK


@given(
    size=st.integers(1, 1 << 34),
    bandwidth=st.integers(10**6, 10**11),
    latency=st.integers(0, 10**9),
    group=st.integers(1, 1 << 24),
)
def test_demand_rate_is_size_over_waiting_and_sending(size, bandwidth, latency, group):
    groups = (size + group - 1) // group
    time_ps = groups * latency + Fraction(size * 10**12, bandwidth)
    assert fault_batches(size, 1, PageFaultSpec(latency="1 us", group=f"{group} B")) == groups
    rate = demand_rate(size, bandwidth, latency, groups)
    assert rate == 1 or rate <= size * 10**12 / time_ps < (rate + 1) * (time_ps + 1) / time_ps


def test_one_group_waits_once():
    # 2 MiB after 45 us at 2 MiB per 55 us: 2 MiB per 100 us.
    size = 2 << 20
    assert demand_rate(size, size * 10**6 // 55, 45 * 10**6, 1) == pytest.approx(size * 10**4, rel=1e-6)
    assert demand_rate(size + 1, 10**15, 45 * 10**6, 2) == pytest.approx((size + 1) / 90e-6, rel=1e-3)


def test_bytes_that_move_twice_take_both_times():
    # 600 bytes take a second and then two.
    assert one_after_another(600, 300) == 200
    # Not even the slowest rates add up to none.
    assert one_after_another(1, 1) == demand_rate(1, 1, 10**12, 1) == 1


@pytest.mark.parametrize(
    ("batch", "batches"),
    [
        # One leaf at a time: 64 KiB, 64, then 3 of 4 leaves are there (4), 5 of 8 (8), 9 of 16, 17 of 32.
        (16, 6),
        # Half of the block is not more than 51 % of it.
        (256, 2),
        (272, 1),
        (None, 1),
    ],
)
def test_subtrees_that_are_half_there_come_along(batch, batches):
    fault = PageFaultSpec(latency="45 us", batch=batch)
    assert fault_batches(2 << 20, 4096, fault) == batches
    assert fault_batches(8 << 20, 4096, fault) == 4 * batches
    assert fault_batches(1, 4096, fault) == 1


def test_a_page_larger_than_a_leaf_is_a_leaf():
    fault = PageFaultSpec(latency="45 us", batch=1)
    # 16 pages of 128 KiB, one at a time: 1, 2, then 3 of 4 are there (4), 5 of 8 (8), 9 of 16.
    assert fault_batches(2 << 20, 128 << 10, fault) == 5


def test_resident_data_cost_nothing():
    assert cost(side(1000), side(500), duration=seconds(1), profile=FaultProfile(seconds(5), seconds(9))) == 0


@pytest.mark.parametrize("kind", ["host", "absent"])
def test_first_touch_costs_as_much_as_faults_from_host(kind):
    assert cost(side(1000, **{kind: 1000})) == pytest.approx(cycles(1000 * PAGE, LINK), abs=1)


def test_only_the_share_that_faults_counts():
    assert cost(side(1000, host=250)) == pytest.approx(cycles(250 * PAGE, LINK), abs=1)


def test_inputs_and_outputs_add_up():
    assert cost(side(1000, host=1000), side(300, absent=300)) == pytest.approx(
        cycles(1300 * PAGE, LINK), abs=1
    )


def test_flash_runs_at_its_own_rate():
    assert cost(side(1000, flash=1000)) == pytest.approx(cycles(1000 * PAGE, SSD), abs=1)


def test_host_gets_what_flash_leaves_of_the_link_and_the_slower_one_counts():
    flash_bound = cost(side(2000, flash=1000, host=1000))
    assert flash_bound == pytest.approx(cycles(1000 * PAGE, SSD), abs=1)
    host_bound = cost(side(10_000, flash=1, host=9_999))
    assert host_bound == pytest.approx(cycles(9_999 * PAGE, LINK - SSD), abs=1)


def test_profiled_durations_count_in_whole_seconds():
    slow = FaultProfile(outputs_faulting=seconds(1), all_faulting=seconds(3))
    pages = 1000
    assert cost(side(pages, host=pages), duration=seconds(1), profile=slow) == pytest.approx(
        seconds(2), abs=1
    )
    nearly = FaultProfile(outputs_faulting=seconds(1), all_faulting=seconds(2) - 1)
    assert cost(side(pages, host=pages), duration=seconds(1), profile=nearly) == pytest.approx(
        cycles(pages * PAGE, LINK), abs=1
    )


def test_outputs_take_the_difference_between_outputs_faulting_and_duration():
    profile = FaultProfile(outputs_faulting=seconds(4), all_faulting=seconds(4))
    assert cost(None, side(100, absent=50), duration=seconds(1), profile=profile) == pytest.approx(
        seconds(3) // 2, abs=1
    )


def test_profiled_flash_rate_adds_its_latency():
    profile = FaultProfile(outputs_faulting=seconds(1), all_faulting=seconds(2))
    expected = seconds(1) * (45 + 20) / 45
    assert cost(side(1000, flash=1000), duration=seconds(1), profile=profile) == pytest.approx(
        expected, abs=2
    )


def test_ssd_that_leaves_the_host_nothing_makes_host_faults_free():
    # x/0 is infinite, and an infinite time counts as none.
    assert cost(side(1000, flash=500, host=500), side(10, host=10), system=machine("15.754 GB/s")) == 0


def test_ssd_that_fills_the_link_alone_counts():
    # 0/0 is not a number, also when added to an infinite time, and only the SSD's term is left.
    only_ssd = pytest.approx(cycles(500 * PAGE, LINK), abs=1)
    assert cost(side(1000, flash=500), system=machine("15.754 GB/s")) == only_ssd
    assert cost(side(1000, flash=500, host=500), system=machine("15.754 GB/s")) == only_ssd


def test_profile_of_a_kernel_without_outputs_leaves_the_ssd_term():
    profile = FaultProfile(outputs_faulting=seconds(2), all_faulting=seconds(2))
    only_flash = cost(side(1000, flash=1000), duration=seconds(1), profile=profile)
    assert only_flash == pytest.approx(cycles(1000 * PAGE, SSD), abs=1)
    assert cost(side(1000, host=1000), duration=seconds(1), profile=profile) == 0


def test_faults_without_latency_leave_flash_no_rate_and_are_free():
    system = load_system({"preset": "a100-40g-g10-paper", "page_fault": {"latency": "0 s"}})
    assert cost(side(100, flash=10), system=system) == 0
    assert cost(side(100, host=10), system=system) > 0
