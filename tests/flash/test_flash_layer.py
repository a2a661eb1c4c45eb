"""The translation layer: nothing is lost, the emptiest goes first, and what dies together costs nothing."""

import random

import pytest
from drives import drive
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from g10sim.errors import CapacityError, InvariantError
from g10sim.hardware.flash.ftl import TranslationLayer
from tools.rewriting import Rewriting, rewrite


def layer(superblocks=10, size=100, **changes):
    return TranslationLayer(superblocks, size, **changes)


def test_writes_fill_superblocks_one_after_the_other():
    log = layer()
    log.write("a", 250)
    assert log.valid[:3] == [100, 100, 50]
    assert (log.free_superblocks, log.room_bytes()) == (7, 50)
    log.write("b", 50)
    assert (log.free_superblocks, log.room_bytes()) == (7, 0)
    log.check()


def test_what_is_written_together_is_mixed_in_proportion():
    log = layer()
    log.write_together([("a", 150), ("b", 50)])
    log.discard("b", 50)
    assert log.valid[:2] == [75, 75]
    log.check()


def test_bytes_written_first_die_first():
    log = layer()
    log.write("a", 200)
    log.discard("a", 130)
    assert log.valid[:2] == [0, 70]
    with pytest.raises(InvariantError, match="30 B less of extent a"):
        log.discard("a", 100)


def test_the_emptiest_closed_superblock_is_collected():
    log = layer()
    for extent, dead in (("a", 40), ("b", 90), ("c", 10)):
        log.write(extent, 100)
        log.discard(extent, dead)
    assert log.victim() == 1
    assert log.collect(1) == 10
    assert (log.erases[1], log.free_superblocks, log.copied_bytes) == (1, 7, 10)
    assert log.victim() == 0
    log.check()


def test_what_dies_while_a_superblock_waits_is_copied_all_the_same():
    log = layer()
    log.write("a", 60)
    log.write("b", 40)
    log.lock(0)
    assert log.victim() is None
    assert (log.awaited("a", 1), log.awaited("c", 1)) == (0, None)
    log.discard("a", 20)
    assert log.start(0) == 100
    assert log.awaited("a", 1) is None
    log.discard("b", 30)  # its turn has come: that is not copied any more
    assert log.collect(0) == 70
    assert (log.copied_bytes, log.extent_bytes("a"), log.extent_bytes("b")) == (70, 40, 10)
    assert log.valid_bytes == 50
    assert log.room_bytes(1) == 30  # the dead bytes take room
    log.check()


def test_the_oldest_is_collected_where_that_is_asked_for():
    log = layer(victims="oldest")
    for extent, dead in (("a", 40), ("b", 90)):
        log.write(extent, 100)
        log.discard(extent, dead)
    assert log.victim() == 0


def test_copies_keep_their_age():
    log = layer()
    log.write("a", 100)
    log.write("b", 100)
    log.discard("b", 99)
    log.write("a", 100)
    log.discard("a", 10)
    log.collect(0)  # the old bytes of a now lie behind its new ones
    log.discard("a", 90)
    assert log.valid[2] == 100
    log.check()


def test_a_superblock_full_of_valid_bytes_is_no_victim():
    log = layer()
    log.write("a", 300)
    assert log.victim() is None


def test_a_full_drive_says_so():
    log = layer(3)
    with pytest.raises(CapacityError, match="no erased block left"):
        log.write("a", 301)


def test_the_least_worn_superblock_is_opened_next():
    log = layer(3)
    for _ in range(4):
        log.write("a", 100)
        log.discard("a", 100)
        log.collect(log.victim())
    assert sorted(log.erases) == [1, 1, 2]


class Drive(RuleBasedStateMachine):
    """Any order of writes, deaths and collections keeps the books right."""

    def __init__(self):
        super().__init__()
        self.log = layer(12, 64, streams=2)
        self.alive = dict.fromkeys("abcd", 0)
        self.chosen = []

    @property
    def free(self):
        return 6 * 64 - sum(self.alive.values())

    @rule(extent=st.sampled_from("abcd"), size=st.integers(1, 200), stream=st.integers(0, 1))
    def write(self, extent, size, stream):
        size = min(size, self.free)
        while size and self.log.free_superblocks < 5 and self.log.victim() is not None:
            self.log.collect(self.log.victim())
        if size and self.log.free_superblocks >= 5:
            self.log.write(extent, size, stream)
            self.alive[extent] += size

    @precondition(lambda self: any(self.alive.values()))
    @rule(data=st.data())
    def die(self, data):
        extent = data.draw(st.sampled_from([key for key, size in self.alive.items() if size]))
        size = data.draw(st.integers(1, self.alive[extent]))
        self.log.discard(extent, size)
        self.alive[extent] -= size

    @rule(waits=st.booleans())
    def choose(self, waits):
        victim = self.log.victim()
        if victim is not None:
            self.log.lock(victim)
            self.chosen.append(victim)
            if not waits:
                self.log.start(victim)

    @precondition(lambda self: self.chosen and self.log.free_superblocks > 1)
    @rule()
    def collect(self):
        self.log.collect(self.chosen.pop(0))

    @invariant()
    def books_are_right(self):
        self.log.check()
        assert self.log.valid_bytes == sum(self.alive.values())
        assert {key: self.log.extent_bytes(key) for key in self.alive} == self.alive


Drive.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestDrive = Drive.TestCase


def long_run(size=8, number=560, order="random", together=1, **changes):
    """Rewrite 70 % of a drive of 200 superblocks of 64 kB, in extents of ``size`` kB."""
    spec = drive(blocks=200, **changes)
    work = Rewriting([size * 1000] * (number * 8 // size), order, 8000, 3.0, together)
    return rewrite(spec, work)


def test_amplification_falls_with_extents_that_grow_to_a_superblock():
    found = [long_run(size, 1120).write_amplification for size in (8, 16, 32, 64, 128)]
    assert found[0] > found[1] > found[2] > 1.02
    assert found[3:] == [1.0, 1.0]


def test_amplification_falls_with_spare_room():
    found = [long_run(number=number).write_amplification for number in (1200, 1000, 700, 400)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2


@pytest.mark.parametrize("together", [1, 4])
def test_rewriting_in_the_same_order_copies_nothing(together):
    result = long_run(order="periodic", together=together, number=1120)
    assert result.write_amplification == 1.0
    assert result.write_rate == pytest.approx(64_000 / 144e-6, rel=0.02)


def test_rewriting_each_once_per_round_in_a_new_order_copies_less_than_at_random():
    found = [long_run(order=order, number=1120).write_amplification for order in ("random", "permuted")]
    assert found[0] > found[1] > 1


@pytest.mark.parametrize("capacity", ["100 kB", "1 MB"])
def test_the_long_run_is_the_last_two_fifths_of_the_writes(capacity):
    # Of 3200 kB the first go to single-level cells, at twice the rate; nothing is collected.
    spec = drive(blocks=200, slc={"capacity": capacity, "program": "3 us"})
    result = rewrite(spec, Rewriting([64_000] * 100, "periodic", 8000, 0.5))
    assert (result.write_amplification, result.write_rate) == (1.0, pytest.approx(500e6))


@pytest.mark.parametrize("request_bytes", [1, 1000, 8000])
def test_where_nothing_is_copied_requests_of_any_size_are_equally_fast(request_bytes):
    result = rewrite(drive(), Rewriting([4000], "periodic", request_bytes, 1.0))
    assert result.write_rate == pytest.approx(500e6)


def test_superblocks_chosen_ahead_are_copied_in_vain_in_part():
    found = [
        long_run(size, 1120, collection={"start": 0.1, "urgent": 0.05, "at_once": at_once})
        for at_once in (1, 10)
        for size in (16, 64)
    ]
    assert found[2].write_amplification > found[0].write_amplification + 0.02
    assert found[2].write_rate < found[0].write_rate
    assert [one.write_amplification for one in (found[1], found[3])] == [1.0, 1.0]


def test_what_is_in_line_to_be_copied_holds_up_extents_of_a_stripe_and_no_smaller_ones():
    ahead = {"start": 0.1, "urgent": 0.05, "at_once": 10}
    stripes, smaller = (long_run(size, 1120, collection=ahead) for size in (4, 2))
    assert stripes.write_rate < smaller.write_rate


def test_extents_below_a_stripe_are_as_stripes_to_a_plane():
    assert drive().array.stripe_bytes == 4000
    assert long_run(1, 1120) == long_run(4, 1120)
    assert long_run(2, 1120) == long_run(4, 1120)
    assert long_run(4, 1120, drives=2) == long_run(8, 1120, drives=2)


def test_collection_slows_writes_down():
    slow, fast = long_run(number=1200), long_run(number=400)
    assert slow.write_rate < fast.write_rate < drive().write_bandwidth


@given(seed=st.integers(0, 5))
@settings(max_examples=3, deadline=None)
def test_the_same_seed_gives_the_same_result(seed):
    work = Rewriting([8000] * 1000, "random", 8000, 1.0, seed=seed)
    spec = drive(blocks=200)
    assert rewrite(spec, work) == rewrite(spec, work)


def test_data_is_scattered_a_byte_a_superblock_at_least():
    log = layer(20)
    log.scatter("others", 3, 1e-9)
    assert sorted(log.valid, reverse=True)[:4] == [1, 1, 1, 0]


def test_data_put_there_before_time_starts():
    log = layer(20)
    log.lay_out("a", 250)
    log.scatter("others", 300, 0.5)
    log.wear_in(4)
    assert (log.free_superblocks, log.host_bytes, log.valid_bytes) == (4, 0, 550)
    assert sorted(log.valid) == [0] * 11 + [50] * 7 + [100] * 2
    rng = random.Random(1)
    for _ in range(50):
        size = rng.randrange(1, 80)
        log.write("b", size)
        log.discard("b", size)
        while log.free_superblocks < 4 and log.victim() is not None:
            log.collect(log.victim())
    log.check()
