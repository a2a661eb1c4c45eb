"""What a drive can do now, and until when."""

import pytest
from drives import drive
from hypothesis import given
from hypothesis import strategies as st

from g10sim.hardware.flash.device import FlashDevice
from g10sim.hardware.flash.ftl import TranslationLayer

CLOCK = 10**9


def device(**changes):
    spec = drive(**changes)
    layer = TranslationLayer(spec.blocks, spec.array.superblock_bytes * spec.drives, spec.streams)
    return FlashDevice(spec, layer, CLOCK)


def collecting(valid, *, erased=1, **changes):
    """A drive of 20 superblocks, one erased: its urgent level; all closed ones with so many valid bytes."""
    spec = drive(blocks=20, overprovisioning=0.5, **changes)
    layer = TranslationLayer(20, spec.array.superblock_bytes * spec.drives)
    if valid:
        layer.scatter("others", valid * (20 - erased), valid / layer.superblock_bytes)
    layer.wear_in(erased)
    return FlashDevice(spec, layer, CLOCK)


def test_an_idle_drive_reads_and_writes_at_its_rates():
    found = device()
    assert (found.read_limit(writes=False), found.write_limit(0)) == (drive().read_bandwidth, 500_000_000)
    assert found.cycles_to_change(0, 0) is None
    assert not found.collects


@given(read=st.integers(0, 1_000_000_000))
def test_reads_take_their_share_of_the_array_from_writes(read):
    limit = device().write_limit(read)
    assert limit / 500e6 + read / 2e9 == pytest.approx(1, abs=1e-6)


def test_a_drive_read_as_much_as_it_is_written_divides_the_time_of_its_array():
    # A byte is read in 0.5 ns and written in 2 ns.
    found = device()
    assert found.equal_rates() == pytest.approx(400e6)
    # What it may write while nothing is read, and as much to read: to the last digit.
    writes = found.drain_limit(0)
    assert found.equal_rates() == writes / (1 + writes / 2e9)


def test_the_first_stream_that_may_open_a_superblock_counts():
    found = device(blocks=20, overprovisioning=0.5, streams=2)
    found.layer.write("a", 15 * 64_000)
    found.layer.write("b", 60_000, stream=1)
    # Collection starts at two erased superblocks, and there are four: one more of 64 kB may be filled.
    assert found.layer.free_superblocks == 4
    assert found.cycles_to_change(0, 500e6) == 128_000


def test_reads_leave_writes_their_floor():
    slow = device(read="8 us", write_floor=0.25)
    alone, beside = slow.read_limit(writes=False), slow.read_limit(writes=True)
    assert beside == pytest.approx(alone * 0.75, rel=1e-3)
    assert slow.write_limit(beside) == pytest.approx(125e6, rel=1e-3)


def test_small_reads_that_never_let_go_of_a_die_leave_writes_no_more_than_their_floor():
    small = {"planes": 2, "read": "4 us", "channel_order": "rounds", "request_size": "2 kB",
             "read_command_plane": "0 ns", "program_command_plane": "0 ns"}  # fmt: skip
    alone = device(**small).write_limit(0)
    assert device(**small).write_limit(600e6) == pytest.approx(alone * 0.4, rel=1e-6)
    assert device(**small).write_limit(800e6) == 0
    assert device(**small, write_floor=0.1).write_limit(800e6) == pytest.approx(alone * 0.1, rel=1e-6)
    assert device(**small | {"request_size": "4 kB"}).write_limit(800e6) == pytest.approx(alone / 5, rel=1e-6)
    assert device(**small, queue_depth=3).write_limit(800e6) > 0
    assert device(**small, drives=2).write_limit(1200e6) > device(**small, drives=2).write_limit(1400e6) == 0


def test_drives_of_an_array_work_side_by_side():
    one, four = device(), device(drives=4)
    assert four.write_limit(0) == 4 * one.write_limit(0)
    assert four.read_capacity == 4 * one.read_capacity


@pytest.mark.parametrize("erased", [1, 3])
def test_drives_of_an_array_collect_side_by_side(erased):
    """At the urgent level, where writes wait for it, and before."""
    levels = {"collection": {"start": 0.2, "urgent": 0.05}}
    one = collecting(32_000, erased=erased, **levels)
    four = collecting(4 * 32_000, erased=erased, drives=4, **levels)
    assert four.write_limit(0) == pytest.approx(4 * one.write_limit(0), abs=4)
    assert four.cycles_to_change(0, 0) == one.cycles_to_change(0, 0)


def test_the_buffer_takes_writes_at_the_speed_of_the_link_until_it_is_full():
    found = device(write_buffer="1 MB")
    assert found.write_limit(0) == 10**9
    # It fills with what comes faster than it goes: 500 MB/s.
    assert found.cycles_to_change(0, 10**9) == 2_000_000
    found.advance(2_000_000, 0, 10**9)
    assert found.write_limit(0) == 500_000_000
    assert found.cycles_to_change(0, 0) == 2_000_000
    found.rest(3_000_000)
    assert found.write_limit(0) == 10**9


def test_a_buffer_with_less_than_a_byte_of_room_is_full():
    found = device(write_buffer="1 MB")
    found.advance(1_999_999, 0, 10**9)
    assert found.write_limit(0) == 500_000_000


def test_a_single_level_region_is_fast_until_it_is_full_and_empties_in_idle_time():
    found = device(slc={"capacity": "1 MB", "program": "3 us"})
    assert found.write_limit(0) == 1_000_000_000
    assert found.cycles_to_change(0, 500_000_000) == 2_000_000
    found.advance(2_000_000, 0, 500_000_000)
    assert found.write_limit(0) == 500_000_000
    # A byte is read at 2 GB/s and written at 500 MB/s.
    found.rest(2_500_000)
    assert found.folded_bytes == pytest.approx(10**6)
    assert found.write_limit(0) == 1_000_000_000


def test_urgent_collection_slows_writes_to_the_room_it_makes():
    found = collecting(32_000)
    balanced = drive().array.collecting_rate(1, 2, 1)
    assert found.collects
    assert found.write_limit(0) == int(balanced)
    cycles = found.cycles_to_change(0, balanced)
    assert cycles == pytest.approx(32_000 / balanced * CLOCK, abs=2)
    found.advance(cycles, 0, balanced)
    assert (found.layer.erased, found.layer.copied_bytes) == (1, 32_000)


def test_collection_uses_the_time_that_reads_leave():
    found = collecting(32_000)
    alone, beside = found.cycles_to_change(0, 0), found.cycles_to_change(10**9, 0)
    assert alone is not None
    assert beside == pytest.approx(2 * alone, abs=2)


def test_beside_copies_the_planes_of_a_die_seldom_program_together():
    two = {"planes": 2, "program_command_plane": "0 ns", "collection": {"start": 0.2, "urgent": 0.05}}
    # Each of 4 dies programs 2 pages in 2 + 7 us; while superblocks are copied, 4/3 pages in 4/3 + 7 us.
    assert device(**two).write_limit(0) == 888_888_888
    assert collecting(64_000, erased=3, **two).write_limit(0) == pytest.approx(640_000_000, abs=1)


def test_a_drive_full_of_valid_data_finds_nothing_to_collect():
    found = collecting(64_000)
    assert not found.collects
    assert found.write_limit(0) == 500_000_000


def test_dead_superblocks_cost_their_erasing_only():
    found = collecting(0)
    found.rest(100_000_000)
    assert found.layer.copied_bytes == 0
    assert found.layer.free_superblocks == 3  # one more than the level at which collection starts


@pytest.mark.parametrize(("at_once", "chosen"), [(1, 1), (2, 2), (5, 2)])
def test_one_superblock_is_chosen_for_each_that_is_missing(at_once, chosen):
    found = collecting(0, collection={"start": 0.1, "urgent": 0.05, "at_once": at_once})
    assert found.layer.victim() == chosen  # those before it are chosen


def test_waiting_for_a_superblock_takes_the_time_of_those_before_it():
    found = collecting(32_000, collection={"start": 0.1, "urgent": 0.05, "at_once": 2})
    first = found.cycles_to_change(0, 0)
    assert found.layer.awaited("others", 32_000) is None  # in the superblock that is being copied
    assert found.layer.awaited("others", 32_001) == 1
    assert found.wait_for(1) == 2 * first
    assert found.wait_for(1) == 0
    assert found.layer.copied_bytes == 64_000


def test_resting_in_one_go_is_resting_bit_by_bit():
    whole, parts = collecting(16_000), collecting(16_000)
    whole.rest(1_000_000)
    for _ in range(1000):
        parts.rest(1000)
    assert whole.layer.erases == parts.layer.erases
    assert whole.layer.valid == parts.layer.valid
