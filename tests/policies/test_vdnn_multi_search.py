"""Plans that steps of the ladder try out, and which of them they take."""

from math import nextafter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vdnn_networks import chains, titan_x

from g10sim.config.load import load_run
from g10sim.config.system import SystemSpec
from g10sim.errors import CapacityError, UnsupportedError
from g10sim.experiment.expand import expand
from g10sim.policies.designs.vdnn_multi.search import HEADROOMS, LADDER, Plan, Search
from g10sim.policies.interface.registry import create
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

STEPS = ("K0", "K1", "K2", "K3", "K4")


def searched(step, speeds, given=None, default=0.1, **limits):
    """Return the plan that is found when plans take what ``speeds`` says, and all that were tried."""
    tried = []

    def try_out(found, to_beat):
        tried.append(found)
        return next((value for matches, value in speeds if matches(found)), default)

    return Search(try_out, given or {}, **limits).best(step), tried


def plan(step, headroom=0.0, **changes):
    return Plan(**{**vars(LADDER[step]), "headroom": headroom, **changes})


def test_steps_try_themselves_and_those_below_them():
    for step, below in (("K3", ("K1", "K2")), ("K4", ("K1", "K2", "K3"))):
        _, tried = searched(step, [])
        assert {plan(other) for other in (*below, step)} < set(tried)
        assert {plan(step, headroom) for headroom in HEADROOMS} < set(tried)
        assert len(tried) == len(set(tried))


@pytest.mark.parametrize("below", ["K1", "K2", "K3"])
def test_a_step_takes_the_plan_of_one_below_that_is_faster(below):
    assert searched("K4", [(lambda found: found == plan(below), 0.5)])[0] == plan(below)


def test_third_step_does_not_plan_prefetches():
    assert {found.prefetch for found in searched("K3", [])[1]} == {"window"}
    assert {found.prefetch for found in searched("K4", [])[1]} == {"window", "planned"}


def test_ingredients_are_exchanged_one_after_another():
    """From K2, the fastest rung, to planned prefetches and on to a set of its own, each step faster."""
    better = plan("K2", prefetch="planned")
    best = plan("K4", 0.1, arbitration="fair")
    speeds = [(best.__eq__, 0.9), (better.__eq__, 0.6), (plan("K2").__eq__, 0.5)]
    assert searched("K4", speeds)[0] == best


def test_of_equals_the_first_one_is_taken():
    assert searched("K4", [])[0] == plan("K4")
    assert searched("K4", [], default=0.0)[0] == plan("K4")


def test_a_plan_that_hardly_waits_ends_the_search():
    found, tried = searched("K4", [(plan("K4", 0.05).__eq__, 0.9995)])
    assert (found, tried) == (plan("K4", 0.05), [plan("K4"), plan("K4", 0.05)])


def test_plans_that_differ_in_nothing_that_matters_are_tried_once():
    _, tried = searched("K4", [], key=lambda found: found.arbitration)
    assert {found.arbitration for found in tried} == {"deadline", "fair"}
    assert len(tried) == 2


def test_trials_of_plans_that_run_are_counted():
    slowest = [(lambda found: found.headroom == 0.2, 0.9)]
    for trials, expected in ((3, plan("K4")), (4, plan("K4", 0.2))):
        found, tried = searched("K4", slowest, trials=trials)
        assert (found, len(tried)) == (expected, trials)
    found, _ = searched("K4", slowest, default=0.0, trials=1)
    assert found == plan("K4", 0.2)


def test_what_is_given_stays():
    given = {"arbitration": "first_come", "offload": "contention_aware"}
    for step in ("K2", "K3", "K4"):
        _, tried = searched(step, [], given)
        assert {(found.arbitration, found.offload) for found in tried} == {tuple(given.values())}
    _, tried = searched("K4", [], {"layer_end_join": True})
    assert all(found.layer_end_join for found in tried)


def test_steps_without_trials_only_choose_the_headroom():
    _, tried = searched("K2", [], {"offload": "contention_aware"})
    assert tried == [plan("K2", headroom, offload="contention_aware") for headroom in HEADROOMS]


@given(st.randoms(use_true_random=False), st.sampled_from(["K3", "K4"]), st.integers(1, 40))
def test_trials_that_end_early_change_no_choice(random, step, trials):
    speeds = {}

    def whole(found, to_beat=0.0):
        return speeds.setdefault(found, random.choice([0.0, *(random.uniform(0.1, 1.1) for _ in range(4))]))

    def ended(found, to_beat):
        truth = whole(found)
        return truth if truth >= to_beat or not truth else random.uniform(truth, nextafter(to_beat, 0))

    searches = [Search(try_out, {}, trials=trials) for try_out in (whole, ended)]
    assert searches[0].best(step) == searches[1].best(step)
    assert searches[0].trials == searches[1].trials


# --- the steps in order ---


def cards(gpus, memory_bytes):
    """GPUs that share an uplink of a byte per cycle."""
    plain = titan_x("1 GB/s", f"{memory_bytes} B", host="64 GiB").model_dump(mode="json")
    plain["gpu"]["count"] = gpus
    plain["pcie"]["shared"] = [{"name": "uplink", "gpus": list(range(gpus)), "bandwidth": "1 GB/s"}]
    return SystemSpec(**plain)


def performance(trace, system, step):
    """Mean over GPUs of ideal over actual time in the second iteration, 0 if it cannot be run."""
    jobs = tuple(Job(trace, gpu=gpu) for gpu in range(system.gpu.count))
    try:
        records = run(Workload(jobs), system, create({"name": "vdnn_multi", "ladder": step}))
    except (UnsupportedError, CapacityError):
        return 0.0
    return speed(records)


def speed(records):
    last = {record.job: record for record in records.iterations}.values()
    return sum(record.ideal_cycles / (record.end - record.start) for record in last) / len(last)


def peak_bytes(trace):
    records = run(Workload((Job(trace),)), titan_x(), create({"name": "vdnn", "mode": "none"}))
    return max(record.peak_gpu_bytes for record in records.iterations)


@pytest.mark.nightly
@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(chains(largest=60), st.integers(1, 3), st.integers(50, 110))
def test_no_step_is_slower_than_those_below_it(trace, gpus, percent):
    system = cards(gpus, peak_bytes(trace) * percent // 100)
    speeds = {step: performance(trace, system, step) for step in STEPS}
    assert speeds["K3"] >= max(speeds["K1"], speeds["K2"]) * 0.995
    assert speeds["K4"] >= speeds["K3"] * 0.995


@pytest.mark.slow
def test_two_gpus_of_the_experiment_share_fairly_where_that_is_faster():
    """Joined to what K2 does, planned prefetches take less than copies in turn, whatever is offloaded."""
    settings = ["workload.trace=traces/vdnn/vgg19-b160.g10t", "sweep={workload.replicas: [2]}"]
    cells = expand(load_run(Path("experiments/gpus_per_uplink.yaml"), settings)).cells
    speeds = {}
    for cell in cells[2:]:
        records = run(cell.workload(), cell.system, cell.make_policy())
        speeds[cell.make_policy().ladder] = speed(records)
    in_turn = create({"name": "vdnn_multi", "arbitration": "deadline"})
    assert speed(run(cells[-1].workload(), cells[-1].system, in_turn)) < speeds["K2"] <= speeds["K3"]
    assert speeds["K3"] < speeds["K4"]
    assert records.note.startswith("15 layers offload, offload conv, arbitration fair")


def test_a_plan_that_waits_for_half_a_percent_ends_the_search():
    found, tried = searched("K1", [(lambda _: True, 0.995)])
    assert tried == [found]
    _, tried = searched("K1", [(lambda _: True, 0.9949)])
    assert len(tried) > 1
