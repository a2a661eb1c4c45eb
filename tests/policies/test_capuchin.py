"""The policy ``capuchin`` on small machines: it watches an iteration, then keeps to its memory."""

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import simulate
from swap_machine import MS, system, trace

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec
from g10sim.errors import ConfigError
from g10sim.policies.checks import CHECKS
from g10sim.policies.checks.battery import run_check
from g10sim.policies.checks.subject import Subject
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.capuchin.capuchin import Capuchin
from g10sim.policies.designs.tensile.tensile import Tensile
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload


def copies(records, tensor, iteration):
    """Copies of a tensor in an iteration: (target, start, end) in ms."""
    (found,) = (i for i in records.iterations if i.iteration == iteration)
    return [
        (m.target.name, (m.start - found.start) / MS, (m.end - found.start) / MS)
        for m in records.migrations
        if m.tensor == tensor and found.start <= m.start < found.end and m.source and m.target
    ]


def stalled(record, reason):
    return dict(record.stalls).get(reason, 0) / MS


# T (60 MB, 5 ms) is made by the first kernel and read by the last; the peak is in the third.
SWAPPED = trace(
    {"T": 60, "s": 1, "x": 30}, [(10, "", "T"), (10, "", "s"), (10, "s", "x"), (10, "", ""), (10, "T", "")]
)


def near(value):
    return pytest.approx(value, abs=0.01)


def test_it_watches_first_and_then_does_what_memory_asks_for():
    records = simulate(
        SWAPPED, system(), Capuchin(memory_target="61 MB"), iterations=3, record=("migrations",)
    )
    assert copies(records, 0, 0) == []
    assert records.iterations[0].peak_gpu_bytes == 91 * MS
    for iteration in (1, 2):
        # Out at once; in when the fourth kernel starts, at 30: the last access early enough.
        assert copies(records, 0, iteration) == [
            ("HOST", near(10), near(15)),
            ("GPU", near(30), near(35)),
        ]
        record = records.iterations[iteration]
        assert record.peak_gpu_bytes == 61 * MS
        assert record.end - record.start == pytest.approx(50 * MS, rel=1e-3)


def test_it_is_not_steady_before_it_has_a_plan():
    policy = Capuchin(memory_target="61 MB")
    records = simulate(SWAPPED, system(), policy, iterations="auto")
    # The first iteration, which is watched, takes 50 ms as well.
    assert [record.steady for record in records.iterations] == [None, False, True]
    assert records.iterations[-1].peak_gpu_bytes == 61 * MS


def test_memory_that_suffices_is_left_alone():
    for policy in (Capuchin(), Capuchin(memory_target="91 MB"), Capuchin(saving=0)):
        record = simulate(SWAPPED, system(), policy, iterations=3).iterations[-1]
        assert (record.traffic["gpu_to_host_bytes"], record.peak_gpu_bytes) == (0, 91 * MS)


def test_a_share_of_all_tensors_can_be_saved():
    # The tensors take 91 MB; 68 % of that are 61.88 MB, and without T 61 are left.
    record = simulate(SWAPPED, system(), Capuchin(saving=0.32), iterations=3).iterations[-1]
    assert record.peak_gpu_bytes == 61 * MS


def test_a_full_gpu_evicts_on_demand_until_there_is_a_plan():
    policy = Capuchin()
    first, last = simulate(SWAPPED, system(700), policy, iterations=2).iterations
    assert stalled(first, StallReason.EVICTION) + stalled(first, StallReason.FIRST_TOUCH) > 1
    assert first.traffic["gpu_to_host_bytes"] > 0
    assert last.end - last.start == pytest.approx(50 * MS, rel=1e-3)
    assert last.peak_gpu_bytes <= 70 * MS
    assert "1 swaps, 0 of them waited for, 0 recomputed" in policy.note


RECOMPUTED = trace(
    {"w*": 10, "a": 240, "b": 200},
    [(2, "w", "a"), (3, "w", "b"), (3, "b", ""), (3, "w", ""), (50, "w a", "")],
)


def test_recomputation_and_swaps_that_are_waited_for_cost_what_was_expected():
    recomputed = simulate(RECOMPUTED, system(), Capuchin(memory_target="300 MB")).iterations[-1]
    assert stalled(recomputed, StallReason.RECOMPUTATION) == 2
    assert recomputed.peak_gpu_bytes == 250 * MS
    policy = Capuchin(memory_target="300 MB", recomputation=False)
    swapped = simulate(RECOMPUTED, system(), policy).iterations[-1]
    # Out for 20 ms before b is made; in from 8 on, 17 ms later than the last kernel wants it.
    assert stalled(swapped, StallReason.SYNCHRONIZATION) == near(20)
    assert stalled(swapped, StallReason.LATE_PREFETCH) == near(17)
    assert swapped.end - swapped.start == pytest.approx((61 + 37) * MS, rel=1e-3)
    assert swapped.peak_gpu_bytes == 250 * MS
    # It is late for good: the copy in cannot begin before the copy out has ended.
    for_good = simulate(RECOMPUTED, system(), policy, iterations="auto").iterations
    assert [record.steady for record in for_good] == [None, False, True]


def test_each_dropped_tensor_of_a_chain_is_made_again_once():
    chain = trace(
        {"w*": 1, "s": 120, "t": 120, "x": 200},
        [(1, "w", "s"), (2, "s", "t"), (4, "w", "x"), (4, "x", ""), (4, "t", ""), (4, "s", "")],
    )
    record = simulate(chain, system(), Capuchin(memory_target="250 MB")).iterations[-1]
    assert stalled(record, StallReason.RECOMPUTATION) == 3
    assert record.peak_gpu_bytes == 241 * MS


def test_copies_in_that_come_late_are_asked_for_earlier_every_time():
    """The first iteration is slow because another job computes; then there is less time than planned."""
    many = trace(
        {"T": 240, "x": 100},
        [(10, "", "T"), *[(10, "", "")] * 3, (10, "", "x"), *[(1, "", "")] * 60, (5, "T", "")],
    )
    other = trace({"y": 1}, [(115, "", "y")])

    def late(**parameters):
        jobs = Job(many, iterations=6), Job(other, iterations=1)
        sharing = SharingSpec(compute="concurrent", slowdown=1.0)
        policy = Capuchin(memory_target="240 MB", **parameters)
        records = run(Workload(jobs, sharing=sharing), system(), policy, check=True).iterations
        return [stalled(i, StallReason.LATE_PREFETCH) for i in records if i.job == 0]

    # Planned for kernels of 2 ms, the copy of 20 ms starts 10 kernels ahead, which take 10 ms. A twentieth
    # of it is half of such a kernel.
    found = late()
    assert found == [0, near(10), near(9), near(9), near(8), near(8)]
    assert late(feedback=0) == [0, *[near(10)] * 5]
    assert late(feedback=0.5)[2:] == [near(5), near(0), near(0), near(0)]


def test_it_can_be_given_the_memory_that_tensile_plans_for():
    tensile, capuchin = Tensile(), Capuchin(memory_target="tensile")
    saved = [simulate(SWAPPED, system(), policy).iterations[-1] for policy in (tensile, capuchin)]
    assert saved[0].peak_gpu_bytes == pytest.approx(saved[1].peak_gpu_bytes, rel=0.01)
    assert simulate(SWAPPED, system(), BaseUvm()).iterations[-1].peak_gpu_bytes == 91 * MS


def test_jobs_that_share_a_gpu_share_its_memory():
    jobs = Job(SWAPPED, iterations=3), Job(SWAPPED, iterations=3)
    sharing = SharingSpec(compute="time_sliced", admission_memory="working_set")
    policy = Capuchin()
    records = run(Workload(jobs, sharing=sharing), system(1400), policy, check=True)
    assert len(records.iterations) == 6
    assert ["target 70 MB" in job.note for job in policy.jobs] == [True, True]


@pytest.mark.parametrize("name", ["runs", "never_faster_than_ideal", "reusable", "inputs_unchanged"])
def test_it_does_as_every_policy_must_when_little_memory_is_asked_for(name):
    (check,) = (check for check in CHECKS if check.name == name)
    run_check(check, Subject({"name": "capuchin", "saving": 0.8}))


@settings(max_examples=40, deadline=None)
@given(
    traces(trace, largest=20, tensors=6, kernels=10, cycles=(1, 20)),
    st.floats(0, 1),
    st.integers(1200, 2500),
)
def test_any_trace_runs_with_every_invariant_kept(found, saving, gpu_pages):
    policy = Capuchin(saving=saving)
    records = simulate(found, system(gpu_pages), policy, iterations=3)
    assert len(records.iterations) == 3
    assert records == simulate(found, system(gpu_pages), Capuchin(saving=saving), iterations=3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"memory_target": "much"}, "memory_target: found 'much'.*, or tensile"),
        ({"memory_target": "tensile", "saving": 0.2}, "saving: found 0.2 beside memory_target"),
        ({"saving": 1.5}, "saving: found 1.5; allowed: a number from 0 to 1"),
        ({"feedback": True}, "feedback: found True; allowed: a number from 0 to 1"),
        ({"recomputation": 1}, "recomputation: found 1; allowed: true or false"),
        ({"least_tensor": "3"}, "least_tensor: found '3' without a unit"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(ConfigError, match=message):
        create({"name": "capuchin", **parameters})


def test_planning_needs_no_run_before():
    assert Capuchin().plan(Workload((Job(SWAPPED),)), system(), BehaviourSpec()) == (None,)
