"""The machine, timeline, occupancy and channel that planners share."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines import machine

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import UnsupportedError
from g10sim.policies.designs.g10 import PlanningParameters, draft_g10
from g10sim.policies.interface.machine import link_bandwidth, planned_machine
from g10sim.policies.interface.registry import create
from g10sim.policies.planning.channel import Channel, Interval, queued, queued_backwards
from g10sim.policies.planning.choice import Ranking, Standing, nested
from g10sim.policies.planning.leaving import by_departure
from g10sim.policies.planning.limit import TimeLimit
from g10sim.policies.planning.occupancy import Budget, ExcessOccupancy, Occupancy
from g10sim.policies.planning.swapping.peak import StepFunction
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload


def test_tiers_are_listed_fastest_first_with_rates_to_and_from_each():
    system = load_system("a100-40g-pcie3-znand")
    planned = planned_machine(system, BehaviourSpec())
    assert [(tier.name, tier.kind) for tier in planned.tiers] == [("host", "memory"), ("ssd", "ssd")]
    assert planned.ssd is planned.tier("flash")
    assert planned.tier("host").rate == planned.link_rate == system.pcie.bandwidth / system.gpu.clock
    assert planned.ssd.latency_cycles > planned.tier("host").latency_cycles == 0


CXL = {"name": "cxl", "capacity": "64 GiB", "read": "8 GB/s", "write": "4 GB/s", "latency": "400 ns"}


def listed(*tiers):
    return load_system({"preset": "a100-40g-pcie3-znand", "tiers": list(tiers)})


def test_a_listed_memory_is_planned_with_its_own_rates_and_latency():
    system = listed("host", CXL, "ssd")
    planned = planned_machine(system, BehaviourSpec(), gpus=(0, 1))
    cxl = planned.tier("cxl")
    assert (cxl.kind, cxl.capacity_bytes) == ("memory", 32 << 30)
    assert (cxl.read_rate, cxl.write_rate) == (4e9 / system.gpu.clock, 2e9 / system.gpu.clock)
    assert cxl.latency_cycles == system.gpu.clock * 400 // 10**9
    assert [planned.memory.name, planned.ssd.name] == ["host", "ssd"]


def test_another_tier_stands_in_for_host_memory_or_an_ssd_that_is_missing():
    assert planned_machine(listed(CXL, "ssd"), BehaviourSpec()).tier("host").name == "cxl"
    assert planned_machine(listed("host", CXL), BehaviourSpec()).tier("flash").name == "cxl"


@pytest.mark.parametrize(
    ("policy", "tiers", "message"),
    [
        ("g10_host", ("host", CXL), "found a system without an SSD"),
        ("flashneuron", ("host", CXL), "found a system without an SSD"),
        ("vdnn_multi", (CXL, "ssd"), "found tiers cxl, ssd; allowed: host among them"),
        ("vdnn", (CXL, "ssd"), "found tiers cxl, ssd; allowed: host among them"),
        (
            {"name": "g10_paced", "method": "published"},
            ("host", CXL, "ssd"),
            "'published' with tiers host, cxl, ssd",
        ),
    ],
)
def test_designs_say_which_tiers_they_need(policy, tiers, message):
    with pytest.raises(UnsupportedError, match=message):
        create(policy).plan(Workload((Job(chain(4)),)), listed(*tiers), BehaviourSpec())


def test_host_memory_limits_the_link_only_where_it_is_counted():
    system = load_system({"preset": "a100-40g-pcie3-znand", "host": {"memory_bandwidth": "8 GB/s"}})
    assert link_bandwidth(system, 0, {0}) == system.pcie.bandwidth
    assert link_bandwidth(system, 0, {0}, counts_host_memory=True) == 8 * 10**9
    assert link_bandwidth(system, 0, {0, 1, 2}, counts_host_memory=True) * 3 == 8 * 10**9


def test_a_further_tier_takes_what_the_others_have_no_room_for():
    """Host memory holds one tensor, a slower memory takes the rest, an SSD that is slower still nothing."""
    trace = chain(24, activation_bytes=8 << 20, forward_ticks=2_000_000, backward_ticks=2_000_000)
    system = machine(1)
    gpu = system.gpu.model_copy(update={"memory": 64 << 20, "page_size": 4096})
    planned = planned_machine(system.model_copy(update={"gpu": gpu}), BehaviourSpec())
    host = replace(planned.tier("host"), capacity_bytes=8 << 20)
    slow = replace(
        host, name="cxl", capacity_bytes=1 << 30, read_rate=host.rate / 2, write_rate=host.rate / 2
    )
    ssd = replace(planned.ssd, read_rate=host.rate / 500, write_rate=host.rate / 500)
    draft = draft_g10(trace, replace(planned, tiers=(host, slow, ssd)), PlanningParameters())
    assert {eviction.tier.name for eviction in draft.evictions} == {"host", "cxl"}
    assert draft.used["host"].peak_bytes <= 8 << 20


def test_a_timeline_counts_on_over_the_border():
    line = Timeline([10, 0, 20])
    assert line.period == 30
    assert [line.kernel_at(time) for time in (-5, 0, 9, 10, 29, 99)] == [0, 0, 0, 2, 2, 2]
    assert [line.lap_time(kernel) for kernel in (-1, 0, 2, 3, 5)] == [-20, 0, 10, 30, 40]
    assert [line.lap_first_from(time) for time in (-20, 1, 31)] == [-2, 1, 4]
    assert [line.lap_last_until(time) for time in (-1, 9, 10, 31)] == [-1, 0, 2, 3]
    assert (line.boundary_before(2), line.boundary_after(0)) == (0, 1)


def test_occupancy_spans_the_border_in_both_directions():
    used = Occupancy(np.zeros(4, dtype=np.int64))
    used.add(3, 6, 5)
    used.add(-1, 1, 2)
    assert used.bytes.tolist() == [7, 5, 0, 7]
    assert used.most(1, 3) == 5
    assert used.most(2, 2) == 0
    assert used.above(4, 2, 6) == (3, 5)
    assert used.above(9, 0, 4) is None


def test_pressure_lasts_while_the_limit_is_exceeded():
    pressure = ExcessOccupancy(np.array([1, 3, 3]), np.array([10, 20, 40]), 2)
    assert [pressure.over_cycles(0, stop) for stop in (0, 1, 2, 3, 5)] == [0, 0, 20, 60, 80]
    pressure.add(1, 2, -3)
    assert pressure.over_cycles(0, 3) == 40
    just = ExcessOccupancy(np.array([2, 2]), np.array([10, 20]), 2)
    assert just.over_cycles(0, 2) == 0
    just.add(0, 2, 1)
    assert just.over_cycles(0, 2) == 30
    just.add(0, 1, -1)
    assert just.over_cycles(0, 2) == 20


@pytest.mark.parametrize(
    ("copies", "forwards", "backwards"),
    [
        ([], [], []),
        ([(0, 5), (2, 5), (20, 5)], [(0, 5), (5, 10), (20, 25)], [(-5, 0), (-10, -5), (-15, -10)]),
        ([(30, 5), (20, 5)], [(30, 35), (35, 40)], [(25, 30), (15, 20)]),
    ],
)
def test_copies_of_one_direction_happen_in_order(copies, forwards, backwards):
    times, lengths = np.array(copies, dtype=np.int64).reshape(-1, 2).T
    assert queued(times, lengths).tolist() == [start for start, _ in forwards]
    assert queued_backwards(times, lengths).tolist() == [start for start, _ in backwards]


def test_a_channel_joins_what_is_taken_and_goes_on_over_the_end_of_the_iteration():
    channel = Channel()
    for start, end in ((20, 30), (10, 20), (90, 110)):
        channel.take(Interval(start, end), 100)
    assert channel.taken == ((0, 30), (90, 100))
    assert channel.earliest(Interval(5, 200), 60, 100) == (30, 90)
    assert channel.earliest(Interval(5, 89), 60, 100) is None
    assert channel.earliest(Interval(80, 300), 20, 100) == (130, 150)
    assert channel.latest(Interval(0, 110), 60, 100) == (30, 90)
    assert channel.latest(Interval(0, 135), 5, 100) == (130, 135)
    assert channel.latest(Interval(40, 131), 5, 100) == (85, 90)
    assert (channel.free_since(90), channel.free_since(0)) == (30, 0)
    channel.give_back(Interval(20, 30), 100)
    assert channel.taken == ((0, 20), (90, 100))


def test_the_latest_free_stretch_of_a_window_may_be_all_of_it():
    channel = Channel()
    channel.take(Interval(90, 100), 100)
    assert channel.latest(Interval(80, 90), 10, 100) == (80, 90)
    assert channel.latest(Interval(60, 95), 10, 100) == (80, 90)
    assert channel.latest(Interval(81, 95), 10, 100) is None


def test_a_budget_says_when_transfers_end_and_may_begin():
    # 5 bytes a kernel, but for the last one, which takes no time.
    budget = Budget(np.array([10, 10, 10, 0]), 1.0, {"host": 0.5})
    assert [budget.finish(0, size, "host") for size in (5, 6, 15)] == [0, 1, 2]
    assert [budget.finish(2, size, "host") for size in (5, 6, 15, 20, 21)] == [2, 4, 5, 6, 12]
    assert [budget.latest_start(3, size, "host") for size in (5, 6, 15, 16)] == [2, 1, 0, -1]
    assert [budget.latest_start(5, size, "host") for size in (5, 6, 15)] == [4, 2, 1]
    # Here the first kernel takes no time: what uses up all that is free behind the border begins behind it.
    budget = Budget(np.array([0, 10, 10, 10]), 1.0, {"host": 0.5})
    assert [budget.latest_start(6, size, "host") for size in (5, 6, 10, 20)] == [5, 3, 3, 1]


@pytest.mark.parametrize(("count", "end"), [(1, 2000), (5, 2000), (3000, 2000), (2, 20_000)])
def test_steps_follow_what_is_added_and_taken_away(count, end):
    draw = np.random.default_rng(count)
    times, sizes = draw.integers(0, end, count), draw.integers(-3, 9, count)
    steps, values = StepFunction(times, sizes), np.zeros(end, dtype=np.int64)
    for time, size in zip(times.tolist(), sizes.tolist(), strict=True):
        values[time:] += size
    for _ in range(1500):
        start, stop, size = *sorted(draw.integers(0, end - 1, 2).tolist()), int(draw.integers(-9, 9))
        steps.add(start, stop, size)
        values[start:stop] += size
        first, last = sorted(draw.integers(0, end, 2).tolist())
        assert steps.most(first, last + 1) == max(0, values[first : last + 1].max())
        assert steps.peak[0] == values.max()
    assert steps.peak == (values.max(), values.argmax())
    found = dict(zip(*(column.tolist() for column in steps.arrays()), strict=True))
    assert all(values[time] == value for time, value in found.items())


@pytest.mark.parametrize("place", [500, 1190])
def test_a_peak_stays_where_it_is_while_times_elsewhere_become_many(place):
    sizes = np.zeros(1200, dtype=np.int64)
    sizes[place : place + 2] = 100, -100
    steps = StepFunction(np.arange(1200) * 1000, sizes)
    for number in reversed(range(400)):
        steps.add(900_001 + 2 * number, 900_002 + 2 * number, 1)
        assert steps.peak == (100, 1000 * place)


@pytest.mark.parametrize("seed", range(5))
def test_transfers_end_by_what_those_before_them_have_left(seed):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(2, 40))
    budget = Budget(draw.integers(1, 9, count), 1.0, {"host": 0.5, "ssd": 1.0})
    starts = np.arange(count)
    for _ in range(6):
        for tier, free in budget.free_bytes.items():
            ends = budget.finish(starts, np.full(count, 3), tier)
            for start, end in enumerate(ends.tolist()):
                moved = np.take(free, range(start, end + 1), mode="wrap").cumsum() >= 3
                assert end == 3 * count or (moved[-1] and not moved[:-1].any())
        budget.debit(int(draw.integers(0, count)), int(draw.integers(1, 12)), "host")


def test_the_peak_of_an_occupancy_follows_what_is_added():
    occupancy = Occupancy(np.zeros(10_000, dtype=np.int64))
    occupancy.add(4_000, 9_000, 5)
    occupancy.add(8_999, 10_001, 2)  # over the border of the iteration
    assert occupancy.peak_bytes == 7
    occupancy.add(8_999, 9_000, -6)
    assert occupancy.peak_bytes == 5
    occupancy.add(0, 10_000, -8)
    assert occupancy.peak_bytes == 0


def test_what_a_transfer_uses_is_taken_from_the_kernels_that_it_overlaps():
    budget = Budget(np.array([10, 10, 10]), 1.0, {"host": 0.5, "ssd": 1.0})
    budget.debit(1, 7, "host")
    assert budget.free_bytes["host"].tolist() == [5, 0, 3]
    # Kernel 1 has 5 bytes left on the link, kernel 2 has 8.
    assert budget.free_bytes["ssd"].tolist() == [10, 5, 8]
    budget.debit(2, 4, "host")
    assert budget.free_bytes["host"].tolist() == [4, 0, 0]


def test_boundaries_are_kernels_that_start_at_another_cycle():
    timeline = Timeline(np.array([10, 0, 10, 10]))
    assert [timeline.boundary_after(kernel) for kernel in range(4)] == [1, 3, 3, 3]
    assert [timeline.boundary_before(kernel) for kernel in range(4)] == [0, 0, 0, 2]


def test_of_tensors_that_leave_for_two_tiers_the_one_that_is_gone_first_comes_first():
    """21 bytes at 2 bytes a cycle take half a cycle longer than 10 at 1; what follows on a tier waits."""
    slow, quick = SimpleNamespace(name="ssd", write_rate=1.0), SimpleNamespace(name="host", write_rate=2.0)
    view = SimpleNamespace(in_transfer_bytes={0: 21, 1: 10, 2: 3, 3: 4}.get)
    order = by_departure(view, {0: quick, 1: slow, 2: slow, 3: quick})
    assert order == [(1, 10), (0, 21), (3, 4), (2, 3)]


def test_planning_ends_at_its_limit_and_says_so():
    assert not TimeLimit(None).is_over()
    assert TimeLimit(None).note == ""
    limit = TimeLimit(0.0)
    assert limit.is_over()
    assert limit.note == "planning ended at its limit of 0 s"


def test_the_best_candidate_is_found_by_what_each_was_worth():
    worth, asked = np.array([3.0, 5.0, 0.0, 5.0]), []

    def worths(places):
        asked.extend(places)
        return worth[places]

    standing = Standing()
    assert standing.best(worths) is None
    standing.add([3, 0, 1, 2], np.array([5.0, 9.0, 5.0, 4.0]))
    assert standing.best(worths) == 1
    assert asked == [0, 1, 3, 2]
    standing.remove_best()
    assert standing.best(worths) == 3
    standing.remove_best()
    worth[0] = 0
    assert standing.best(worths) is None


def test_candidates_with_less_than_the_best_are_not_worked_out():
    known, asked = np.arange(100.0), []

    def worths(numbers):
        asked.extend(numbers.tolist())
        return known[numbers]

    standing = Standing()
    standing.add(range(100), known)
    assert standing.best(worths) == 99
    assert asked == list(range(99, 91, -1))


@given(spans=st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 8), st.integers(-3, 3), st.booleans())))
def test_the_peak_is_that_of_all_kernels_whatever_was_added_where(spans):
    occupancy = Occupancy(np.array([3, 0, 2, 3, 1, -1, 0, 2]))
    for first, length, size, is_asked in spans:
        occupancy.add(first, first + length, size)
        if is_asked:
            assert occupancy.peak_bytes == max(0, *occupancy.bytes)
    assert Occupancy(np.zeros(0, dtype=np.int64)).peak_bytes == 0


def test_of_a_ranking_only_what_comes_before_the_best_is_looked_at():
    """Candidate 2 has become worth more than all others, but comes behind what is the best by then."""
    now = np.array([4.0, 3.0, 9.0])
    assert Ranking(np.array([4.0, 3.0, 2.0])).pop(now.__getitem__) == 0


def taken_from_ranking(worth):
    """Yield what is taken, of candidates whose worths may shrink meanwhile; None at the end."""
    ranking = Ranking(worth)
    while True:
        yield ranking.pop(worth.__getitem__)


def taken_from_standing(worth):
    standing = Standing()
    standing.add(range(len(worth)), worth)
    while True:
        yield standing.best(worth.__getitem__)
        standing.remove_best()


@pytest.mark.parametrize("taken", [taken_from_ranking, taken_from_standing])
@given(
    worths=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    losses=st.lists(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 3)), max_size=9), max_size=40),
)
@example(worths=[1, 3, 1, 3, 2, 3, 3], losses=[[(6, 2), (3, 2), (5, 1)]])
def test_of_equally_good_candidates_the_one_with_the_lowest_number_is_taken(taken, worths, losses):
    worth = np.array(worths, dtype=np.float64)
    choice, left = taken(worth), set(range(len(worth)))
    for some in [*losses, *[[]] * (len(worth) + 1)]:
        best = max((one for one in left if worth[one]), key=lambda one: (worth[one], -one), default=None)
        assert next(choice) == best
        if best is None:
            break
        left.remove(best)
        for number, loss in some:
            worth[number % len(worth)] = max(0, worth[number % len(worth)] - loss)


def test_spans_wait_for_the_closest_one_around_them_of_their_kind_and_a_lower_number():
    """0 and 1 are within spans of higher numbers; 5 is like 1 but of another kind."""
    starts, ends, kinds = np.array([[2, 4, 5, 1, 4, 4], [5, 8, 7, 9, 9, 8], [0, 0, 0, 0, 0, 1]])
    assert nested(np.arange(6), kinds, starts, ends) == {-1: [3, 0, 1, 5], 3: [4], 1: [2]}
