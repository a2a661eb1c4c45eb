"""Iterations that are reported as steady go on as they are, for eight periods more."""

from dataclasses import replace
from itertools import pairwise

import pytest
from drawn_cases import draw_case
from drives import drive, with_drive
from machines import FLASH, GPU, FollowPlan, machine, simulate, trace_of

from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.policies.interface.registry import available, create
from g10sim.sim.accounts.repetition import TOLERANCE, agree
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

MORE = 8
# Trials choose among its designs, and have as many iterations as the run.
CHOSEN = {"g10_paced": {"method": "waiting"}}
NEEDS_A_FILE = {"replay"}
POLICIES = sorted(set(available()) - NEEDS_A_FILE)


def simulated(case, policy, iterations):
    workload = Workload((Job(case.trace, iterations=iterations),))
    design = create({"name": policy, **CHOSEN.get(policy, {})})
    return run(workload, case.system, design, case.behaviour).iterations


def what_happens(record):
    return [record.end - record.start, *record.traffic.values()]


def departures(case, policy):
    """Yield by how much later iterations differ from steady ones, and whether these repeat exactly."""
    ended = simulated(case, policy, "auto")
    last, count = ended[-1], len(ended)
    if not last.steady:
        return
    period = last.period or 1
    longer = simulated(case, policy, count + MORE * period)
    assert list(map(what_happens, longer[:count])) == list(map(what_happens, ended))
    for number, record in enumerate(longer[count:]):
        pairs = zip(what_happens(record), what_happens(ended[number % period - period]), strict=True)
        yield max(abs(found - told) / max(1, found, told) for found, told in pairs), last.period is not None


def waiting(case):
    """The case on a machine where every copy waits before it starts."""
    system = case.system.model_dump(mode="json")
    system["pcie"]["per_copy"] = "20 us"
    return replace(case, system=SystemSpec.model_validate(system))


def go_on(case, policy):
    try:
        found = list(departures(case, policy))
    except (UnsupportedError, CapacityError):
        return
    for share, is_exact in found:
        assert share * TOLERANCE <= (not is_exact), (case.seed, policy)


@pytest.mark.parametrize("seed", range(24))
def test_what_is_steady_goes_on(seed):
    go_on(draw_case(seed, largest=30), POLICIES[seed % len(POLICIES)])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(500))
def test_what_is_steady_goes_on_in_many_cases(seed):
    case = draw_case(seed)
    for policy in POLICIES:
        go_on(case, policy)
        go_on(waiting(case), policy)


@pytest.mark.parametrize(
    ("policy", "seed"), [("base_uvm", 201), ("pressure", 229), ("pressure", 262), ("tensile", 398)]
)
def test_where_few_pages_move_one_of_them_elsewhere_is_too_much(policy, seed):
    """Two iterations in a row are alike but for a page in the order, or a part of one on a link."""
    go_on(draw_case(seed), policy)


@pytest.mark.parametrize(
    ("policy", "seed", "period"),
    [("teraio", 21, 3), ("teraio", 29, 3), ("base_uvm", 30, 2), ("stream", 296, 4)],
)
def test_two_equal_iterations_are_not_enough(policy, seed, period):
    """Two in a row take equally long and move as much, and the next ones do not."""
    case = draw_case(seed, largest=30)
    ended = simulated(case, policy, "auto")
    assert ended[-1].period == period
    longer = simulated(case, policy, len(ended) + period)
    alike = [agree(one, other) for one, other in pairwise(longer[1:])]
    assert any(alike)
    assert not all(alike[alike.index(True) :])
    go_on(case, policy)


def test_nobody_knows_when_the_same_comes_again_from_a_drive_that_wears():
    """The drive is empty when an iteration ends."""
    trace = trace_of({"a": 4, "w*": 4}, [(1000, "", "a"), (90_000, "w", ""), (90_000, "a", "")])
    policy = FollowPlan(moves=[(1, 0, FLASH), (2, 0, GPU)])
    iterations = simulate(trace, with_drive(drive()), policy, iterations=8).iterations
    assert iterations[-1].traffic["gpu_to_ssd_bytes"] == 4000
    assert [one.period for one in iterations] == [None] * 8


@pytest.mark.parametrize(
    ("policy", "seed"),
    [("deepum", 5), ("base_uvm", 7), ("g10", 30), ("pressure", 36), ("g10", 48), ("pressure", 262)],
)
def test_what_has_begun_to_leave_goes_on_as_fast_as_it_began(policy, seed):
    """A copy that waits before it starts counts in how fast its pages leave, until all of them have."""
    go_on(waiting(draw_case(seed, largest=30)), policy)


def test_part_of_a_page_in_a_cache_counts():
    """The cache takes two pages and a half, and an iteration writes one or none."""
    trace = trace_of({"a": 1, "w*": 1}, [(1000, "", "a"), (9000, "w", ""), (1000, "a", "")])
    system = machine().model_dump(mode="json")
    system["ssd"]["write_cache"] = {"capacity": "2500 B", "sustained": "50 MB/s"}
    found = []
    for iterations in ("auto", 13):
        policy = FollowPlan(moves=[(1, 0, FLASH), (2, 0, GPU)])
        records = simulate(trace, SystemSpec.model_validate(system), policy, iterations=iterations).iterations
        found.append([record.end - record.start for record in records])
    ended, longer = found
    assert longer[: len(ended)] == ended == [20_000, 15_000, 13_000, 15_000, 13_000, 13_000, 15_000]
    assert longer[len(ended) :] == [13_000, 13_000, 15_000] * 2
