"""The policy ``tensile`` on small machines: what its plans do, and how it plans anew."""

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine, simulate
from memories import FLASH
from swap_machine import MS, system, trace

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import SharingSpec, VariationSpec
from g10sim.errors import ConfigError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.tensile.tensile import Tensile
from g10sim.policies.interface.registry import create
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

# T (60 MB, 5 ms) is made by the first kernel and read by the last; the peak is in the third.
SWAPPED = trace(
    {"T": 60, "s": 1, "x": 30}, [(10, "", "T"), (10, "", "s"), (10, "s", "x"), (10, "", ""), (10, "T", "")]
)


def copies(records, tensor, iteration=1):
    """Copies of a tensor in an iteration: (source, target, start, end) in ms, rounded."""
    (found,) = (i for i in records.iterations if i.iteration == iteration)
    return [
        (m.source.name, m.target.name, (m.start - found.start) / MS, (m.end - found.start) / MS)
        for m in records.migrations
        if m.tensor == tensor and found.start <= m.start < found.end and m.source and m.target
    ]


def test_the_plan_happens_and_nobody_waits():
    records = simulate(SWAPPED, system(), Tensile(), record=("migrations",))
    out, back = copies(records, 0)
    assert out == ("GPU", "HOST", pytest.approx(10, abs=0.01), pytest.approx(15, abs=0.01))
    assert back == ("HOST", "GPU", pytest.approx(35, abs=0.01), pytest.approx(40, abs=0.01))
    last = records.iterations[1]
    assert last.end - last.start == pytest.approx(50 * MS, rel=1e-3)
    assert last.peak_gpu_bytes == pytest.approx(61 * MS, rel=0.01)
    kept = simulate(SWAPPED, system(), BaseUvm()).iterations[1]
    assert kept.peak_gpu_bytes == 91 * MS


def test_a_barrier_lets_the_next_kernel_wait_for_copies_out():
    short = trace(
        {"T": 60, "s": 1, "x": 30},
        [(10, "", "T"), (2, "", "s"), (20, "", "s"), (10, "s", "x"), (10, "", ""), (10, "T", "")],
    )
    free = simulate(short, system(), Tensile()).iterations[1]
    barrier = simulate(short, system(), Tensile(swap_out_barrier=True)).iterations[1]
    assert StallReason.SYNCHRONIZATION not in dict(free.stalls)
    # The copy of 5 ms is issued during the second kernel, which takes 2 ms.
    assert dict(barrier.stalls)[StallReason.SYNCHRONIZATION] == pytest.approx(3 * MS, rel=0.01)
    assert barrier.end - barrier.start == pytest.approx(free.end - free.start + 3 * MS, rel=1e-3)


def test_optimizer_states_are_away_in_the_forward_pass():
    adam = trace(
        {"m*": 24, "a": 60, "b": 1},
        [(10, "", ""), (10, "", "a"), (10, "a", "b"), (10, "b a", ""), (10, "", ""), (10, "m", "m")],
    )
    records = simulate(adam, system(), Tensile(), iterations=3, record=("migrations",))
    assert records.iterations[2].peak_gpu_bytes < 62 * MS
    assert [(s, t) for s, t, _, _ in copies(records, 0, 2)] == [("GPU", "HOST"), ("HOST", "GPU")]
    assert dict(records.iterations[2].stalls).get(StallReason.FAULT_HOST) is None
    without = simulate(adam, system(), Tensile(across_iterations=False), iterations=3)
    assert without.iterations[2].peak_gpu_bytes == 85 * MS


RECOMPUTED = trace(
    {"w*": 10, "a": 240, "b": 200}, [(2, "w", "a"), (3, "w", "b"), (3, "b", ""), (3, "w", ""), (2, "w a", "")]
)


def test_recomputation_fits_what_swapping_does_not():
    roomy = simulate(RECOMPUTED, system(4501), Tensile()).iterations[1]
    assert StallReason.RECOMPUTATION not in dict(roomy.stalls)
    tight = simulate(RECOMPUTED, system(4500), Tensile()).iterations[1]
    assert dict(tight.stalls)[StallReason.RECOMPUTATION] == 2 * MS
    assert tight.peak_gpu_bytes < 260 * MS
    wanted = simulate(RECOMPUTED, system(), Tensile(memory_target="300 MB")).iterations[1]
    assert dict(wanted.stalls)[StallReason.RECOMPUTATION] == 2 * MS
    never = simulate(RECOMPUTED, system(4500), Tensile(recomputation=False)).iterations[1]
    assert StallReason.RECOMPUTATION not in dict(never.stalls)


def test_a_memory_target_is_enough():
    policy = Tensile(memory_target="91 MB")
    records = simulate(SWAPPED, system(), policy, record=("migrations",))
    assert records.iterations[1].traffic["gpu_to_host_bytes"] == 0


def test_wrong_predictions_are_corrected_after_an_iteration():
    kernels = [(10, "", "T"), (10, "", "s"), (10, "s", "x"), *[(2, "", "")] * 10, (10, "T", "")]
    many = trace({"T": 60, "s": 1, "x": 30}, kernels)
    exact = Tensile().plan_job(Job(many), system(), BehaviourSpec())
    cold = Tensile(prediction_error=0.9, prediction_seed=1)
    assert cold.plan_job(Job(many), system(), BehaviourSpec()) != exact
    records = simulate(many, system(), cold, iterations=3)
    assert "planned 2 times" in cold.note
    stays = Tensile(prediction_error=0.9, prediction_seed=1, replan_threshold=None)
    simulate(many, system(), stays, iterations=3)
    assert "planned 1 times" in stays.note
    times = [i.end - i.start for i in records.iterations]
    assert times[2] <= times[0]


def test_it_is_not_steady_before_it_has_planned_with_measured_times():
    kernels = [(10, "", "T"), (10, "", "s"), (10, "s", "x"), *[(2, "", "")] * 10, (10, "T", "")]
    many = trace({"T": 60, "s": 1, "x": 30}, kernels)
    told = simulate(many, system(), Tensile(), iterations="auto").iterations
    cold = Tensile(prediction_error=0.9, prediction_seed=1)
    learnt = simulate(many, system(), cold, iterations="auto").iterations
    assert "planned 2 times" in cold.note
    assert [record.steady for record in learnt] == [None, False, True]
    assert len(told) <= 3
    longer = simulate(
        many, system(), Tensile(prediction_error=0.9, prediction_seed=1), iterations=6
    ).iterations
    assert {i.end - i.start for i in longer[2:]} == {learnt[-1].end - learnt[-1].start}


@pytest.mark.parametrize(("threshold", "plans"), [(0.05, 2), (0.3, 2), (None, 1)])
def test_times_that_vary_are_learnt_once(threshold, plans):
    policy = Tensile(replan_threshold=threshold)
    job = Job(SWAPPED, iterations=5)
    workload = Workload((job,), VariationSpec(distribution="uniform", magnitude=0.5), seed=3)
    records = run(workload, system(), policy, check=True)
    assert f"planned {plans} times" in policy.note
    assert len(records.iterations) == 5


def shared(jobs, policy, **sharing):
    workload = Workload(tuple(jobs), sharing=SharingSpec(**{"compute": "time_sliced", **sharing}))
    return run(workload, system(), policy, check=True, record=("kernels",))


def test_jobs_that_slow_each_other_are_planned_anew():
    policy = Tensile()
    records = shared([Job(SWAPPED, iterations=6), Job(SWAPPED, iterations=6)], policy)
    assert "planned 1 times" not in policy.note
    assert len(records.iterations) == 12
    assert records == shared([Job(SWAPPED, iterations=6), Job(SWAPPED, iterations=6)], Tensile())


def test_jobs_that_come_and_go_change_the_plans_of_the_others():
    # Alone, a job's peak is within the target; together with the other one it is not.
    policy = Tensile(memory_target="100 MB", replan_threshold=None)
    late = Job(SWAPPED, iterations=2, arrival_cycles=120 * MS)
    records = shared([Job(SWAPPED, iterations=10), late], policy, compute="concurrent", slowdown=0.0)
    moved = {(i.job, i.iteration): i.traffic["gpu_to_host_bytes"] > 0 for i in records.iterations}
    arrival = 120 * MS
    for record in records.iterations:
        if record.job == 0 and record.end <= arrival:
            assert not moved[0, record.iteration]
    assert any(moved[0, i] or moved[1, 0] for i in range(3, 6))
    assert not moved[0, 8]
    assert not moved[0, 9]
    assert "planned 3 times" in policy.note


def test_jobs_one_after_another_are_planned_by_themselves():
    policy = Tensile()
    records = run(Workload((Job(SWAPPED), Job(SWAPPED))), system(), policy, check=True)
    assert len({i.end - i.start for i in records.iterations if i.iteration == 1}) == 1
    assert policy.note.count("planned 1 times") == 2


def test_flash_can_be_the_place_to_wait():
    long = trace(
        {"T": 6, "s": 1, "x": 30},
        [(10, "", "T"), (60, "", "s"), (10, "s", "x"), (60, "", ""), (10, "T", "")],
    )
    records = simulate(long, system(), Tensile(target="flash"), record=("migrations",))
    assert {(m.target, m.tensor) for m in records.migrations if m.target is FLASH} == {(FLASH, 0)}
    assert records.iterations[1].peak_gpu_bytes < 37 * MS


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target": "disk"}, "target: found 'disk'; allowed: host, ssd, flash"),
        ({"channels": "none"}, "channels: found 'none'; allowed: divided, per_job, shared"),
        ({"accounting": "mine"}, "accounting: found 'mine'; allowed: physical, published"),
        ({"memory_target": "20"}, "memory_target: "),
        ({"duplex": 1}, "duplex: found 1; allowed: true or false"),
        ({"swap_share": 1.5}, "swap_share: found 1.5; allowed: a number from 0 to 1"),
        ({"prediction_error": -1}, "prediction_error: found -1; allowed: a number from 0 to 1"),
        ({"prediction_seed": -1}, "prediction_seed: found -1; allowed: a whole number from 0"),
        ({"replan_threshold": "x"}, "replan_threshold: found 'x'; allowed: a number from 0"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(ConfigError, match="policy 'tensile': ") as caught:
        create({"name": "tensile", **parameters})
    assert message in str(caught.value)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.lists(traces(tensors=7, kernels=10), min_size=1, max_size=3),
    st.integers(36, 60),
    st.sampled_from(["exclusive", "time_sliced", "concurrent"]),
    st.fixed_dictionaries(
        {
            "prediction_error": st.sampled_from([0.0, 0.7]),
            "swap_out_barrier": st.booleans(),
            "accounting": st.sampled_from(["physical", "published"]),
            "channels": st.sampled_from(["divided", "per_job", "shared"]),
        }
    ),
    st.integers(0, 1000),
)
def test_any_jobs_run_to_their_end_and_alike(workloads, pages, compute, parameters, seed):
    jobs = tuple(Job(trace, iterations=3, arrival_cycles=500 * n) for n, trace in enumerate(workloads))
    variation = VariationSpec(distribution="uniform", magnitude=0.5)
    workload = Workload(jobs, variation, seed, SharingSpec(compute=compute))
    records = run(workload, machine(pages, 1000), Tensile(**parameters), check=True)
    assert len(records.iterations) == 3 * len(jobs)
    again = run(workload, machine(pages, 1000), Tensile(**parameters), check=True)
    assert records == again
