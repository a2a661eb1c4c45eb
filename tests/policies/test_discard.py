"""Unified memory whose dead pages are discarded: they leave without traffic."""

import pytest
from machines import machine, simulate, trace_of

from g10sim.config.behaviour import BehaviourSpec
from g10sim.policies.interface.registry import create

KEPT = BehaviourSpec(addresses="own", dead_tensors="kept")

# Of 100 pages a and c have 60 each, dead before the other is born: 20 of the dead leave for the one to come.
TURNS = trace_of({"a": 60, "c": 60}, [(9000, *io) for io in (("", "a"), ("a", ""), ("", "c"), ("c", ""))])


def out(policy, trace, gpu_pages, **parameters):
    """Bytes that leave in the second iteration, and how long that takes."""
    records = simulate(
        trace, machine(gpu_pages, mapping="100 GB/s"), create({"name": policy, **parameters}), KEPT
    )
    last = records.iterations[-1]
    return last.traffic["gpu_to_host_bytes"], last.end - last.start


@pytest.mark.parametrize("policy", ["base_uvm", "deepum"])
def test_dead_pages_leave_without_being_copied(policy):
    assert out(policy, TURNS, 100, discard=False)[0] == 2 * 20 * 1000
    assert out(policy, TURNS, 100, discard=True)[0] == 0


@pytest.mark.parametrize("policy", ["base_uvm", "deepum"])
def test_a_page_that_takes_the_place_of_a_dead_one_waits_for_no_copy(policy):
    # Each of 2 x 20 pages is mapped in 10 cycles, or in the 1000 in which the dead page is written out. The
    # rate of faults is a whole number of bytes a second, which takes 2 cycles in all.
    _, slow = out(policy, TURNS, 100, discard=False)
    _, fast = out(policy, TURNS, 100, discard=True)
    assert slow - fast == pytest.approx(2 * 20 * (1000 - 10), abs=2)


@pytest.mark.parametrize("policy", ["base_uvm", "deepum"])
def test_what_is_alive_is_copied_all_the_same(policy):
    # a lies in memory until the end: 20 pages leave for c, and return.
    trace = trace_of({"a": 60, "c": 60}, [(9000, *io) for io in (("", "a"), ("", "c"), ("c", ""), ("a", ""))])
    assert out(policy, trace, 100, discard=True)[0] >= 20 * 1000


def test_deepum_discards_by_itself_and_plain_unified_memory_does_not():
    assert out("deepum", TURNS, 100) == out("deepum", TURNS, 100, discard=True)
    assert out("base_uvm", TURNS, 100) == out("base_uvm", TURNS, 100, discard=False)
