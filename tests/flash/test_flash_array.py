"""Rates in closed form, against numbers worked out by hand."""

import math

import pytest
from drives import drive
from hypothesis import given
from hypothesis import strategies as st

from g10sim.config.flash_array import request_rate, throughput


def test_programs_of_all_dies_share_their_channels():
    array = drive().array
    assert array.superblock_bytes == 64_000
    # A die takes 1 us to get its page and 7 us to program it; a channel could pass on 1 GB/s.
    assert array.write_rate() == pytest.approx(4 * 1000 / 8e-6)
    assert drive(dies=16).array.write_rate() == pytest.approx(2e9)


def test_reads_are_pipelined_or_go_in_rounds():
    # A die takes 1 us to read and 1 us to deliver: with two of them a channel is never idle.
    assert drive().array.read_rate() == pytest.approx(2e9)
    assert drive(channel_order="rounds").array.read_rate() == pytest.approx(2 * 2000 / 3e-6)
    assert drive(read="9 us").array.read_rate() == pytest.approx(4 * 1000 / 10e-6)
    # A round of four: their commands of 2 us each hide the first one's read, then four pages are delivered.
    slow = drive(channel_order="rounds", dies=4, read_command="2 us")
    assert slow.array.read_rate() == pytest.approx(2 * 4000 / (4 * 2e-6 + 4e-6))


def small_reads(**changes):
    """Two planes a die, rounds: 4 pages in 6 us one a command, 8 pages in 8 us two a command."""
    return {"planes": 2, "read": "4 us", "channel_order": "rounds", "request_size": "2 kB",
            "read_command_plane": "0 ns", "program_command_plane": "0 ns", **changes}  # fmt: skip


def test_small_reads_starve_writes_from_the_rate_of_single_planes_on():
    array = drive(**small_reads()).array
    assert array.read_rate(1) == pytest.approx(4000 / 6e-6)
    assert array.read_rate() == pytest.approx(1e9)
    # 128 kB are read during a program of 9 us at 14.2 GB/s: faster reads are interrupted.
    assert array.starving_rates(2000, 128_000) == pytest.approx((4000 / 6e-6, 128_000 / 9e-6))
    assert array.starving_rates(4000, 256_000) == (math.inf, 0)  # a page of every die


def test_planes_share_commands_and_programs():
    wide = drive(planes=4, program_command="1 us", program_command_plane="500 ns").array
    # The command takes 1 + 3 * 0.5 us, four pages 4 us on the channel, then 7 us.
    assert wide.write_rate() == pytest.approx(4 * 4000 / 13.5e-6)
    assert wide.write_rate(1) == pytest.approx(4 * 1000 / 9e-6)
    assert wide.pages_from_buffer(2) == 4
    assert wide.pages_from_buffer(1) == pytest.approx(4 * 2 / 3)
    assert [wide.pages_together(rows * 4000) for rows in (1, 2, 4, 6, 8, 80)] == [1, 1, 2, 3, 4, 4]


def test_a_single_read_takes_link_flash_and_channel():
    spec = drive()
    rate = request_rate(spec.array, spec.interface, 4000, 1, writes=False)
    # 1 us in the dies, 2 pages on each channel, 4 us on the link.
    assert 4000 / rate == pytest.approx(7e-6)
    assert request_rate(spec.array, spec.interface, 4000, 1000, writes=False) == pytest.approx(1e9, rel=1e-3)


def test_a_single_write_takes_a_round_of_programs_per_stripe():
    spec = drive()
    rate = request_rate(spec.array, spec.interface, 8000, 1, writes=True)
    # 8 us on the link, two pages on each channel, then a program; another page each and a program.
    assert 8000 / rate == pytest.approx((8 + 2 + 7 + 1 + 7) * 1e-6)


@given(depth=st.integers(1, 256), size=st.integers(1, 4000))
def test_more_outstanding_is_never_slower_nor_faster_than_the_drive(depth, size):
    spec = drive(planes=2)
    for writes in (False, True):
        rates = [
            request_rate(spec.array, spec.interface, size * 1000, number, writes=writes)
            for number in (depth, depth + 1)
        ]
        if depth > 1 or not writes:
            assert rates[0] <= rates[1] * (1 + 1e-9)
        assert rates[1] <= spec.interface * (1 + 1e-9)


def test_a_network_of_queues_has_the_throughput_of_its_formula():
    # Two customers, one server of 1 s, 1 s elsewhere: 2 / (1 + 1 + 1/2).
    assert throughput(2, ((1.0, 1.0),), 1.0) == pytest.approx(2 / 2.5)
    assert throughput(1, ((1.0, 1.0), (2.0, 1.0)), 3.0) == pytest.approx(1 / 6)
    assert throughput(1000, ((1.0, 1.0), (2.0, 1.0)), 3.0) == pytest.approx(1 / 2)


def test_collecting_costs_erasing_reading_and_programming():
    array = drive().array
    # A superblock of 64 kB is written in 128 us and its dies are erased in 16 us.
    assert array.collecting_rate(0, 1, 1) == pytest.approx(64_000 / 144e-6)
    slower = [array.collecting_rate(copied, 1 + copied, 1) for copied in (0.1, 0.5, 1, 4)]
    assert slower == sorted(slower, reverse=True)
    # Four copies a byte: five programs, four reads, five erasures; the channel is busy for 9 pages of them.
    assert 1 / slower[-1] > (5 * 8e-6 + 4 * 2e-6 + 5 * 1e-6) / 4000


def test_planes_get_out_of_step_while_copies_run():
    array = drive(planes=4).array
    assert array.pages_while_copying(4) == pytest.approx(2)
    assert array.pages_while_copying(1) == 1
