"""Bounds on iterations: instances solved by hand, and what has to hold for any instance."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from bounding import Blocks, draw_case, machine, trace_of

from g10sim.analysis.bound.bound import demand_bound, iteration_bound
from g10sim.analysis.bound.certificate import Prices, certified_stall
from g10sim.analysis.bound.demand import Checkpoints, choose_checkpoints, demand_of
from g10sim.analysis.bound.program import LinearProgram
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.errors import CapacityError, ConfigError
from g10sim.policies.interface.registry import create
from g10sim.results.bounds import Premises, bound_machine
from g10sim.trace.format import load_trace
from g10sim.trace.model import Phase
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload

G = 10**9
ALL = 99
BERT = Path(__file__).parents[2] / "traces" / "bert-base-b192-s512.g10t"


def small(memory, host, link, read, write):
    """A machine of gigabytes and gigabytes/second; page and carry are single bytes."""
    stores = [("host", host * G, "in", "out"), ("ssd", 1000 * G, "in read", "out write")]
    rates = {"in": link * G, "out": link * G, "read": read * G, "write": int(write * G)}
    return machine(memory * G, stores, rates)


def used(sizes, *kernels, phase=Phase.OTHER):
    """A trace of kernels of a second that read these tensors (gigabytes)."""
    return trace_of(sizes, [(G, reads, "") for reads in kernels], phase=phase)


PEAK = {"a": 6, "b": 6}
HAND = {
    "fits": (used({"a": 4}, "a", "a", "a"), small(10, 100, 1, 1, 1), 3, 3),
    # 4 of a leave before b is used, and return after it: 2 s each way, while nothing else can run.
    "no slack": (used(PEAK, "a", "b", "a"), small(8, 100, 2, 2, 2), 7, 7),
    "slack of a kernel": (used(PEAK, "a", "", "b", "", "a"), small(8, 100, 2, 2, 2), 7, 7),
    "host too small": (used(PEAK, "a", "b", "a"), small(8, 1, 2, 1, 1), 9, 9),
    "no host": (used(PEAK, "a", "b", "a"), small(8, 0, 2, 1, 1), 11, 11),
    # A weight may be away when an iteration begins or ends, but not for ever.
    "weight used first": (used({"a*": 6, "b": 6}, "a", "b"), small(8, 100, 2, 2, 2), 4, 6),
    "weight used last": (used({"a*": 6, "b": 6}, "b", "a"), small(8, 100, 2, 2, 2), 4, 6),
    # One that is frozen leaves for nothing: 4 of a return between the two kernels.
    "frozen weight": (used({"a*": 6, "b": 6}, "b", "a", phase=Phase.FORWARD), small(8, 100, 2, 2, 2), 4, 4),
    # It returns at half that rate, and the drive's slow writes do not matter.
    "frozen weight on a drive": (
        used({"a*": 6, "b": 6}, "b", "a", phase=Phase.FORWARD),
        small(8, 0, 2, 1, 0.001),
        6,
        6,
    ),
    "asymmetric link": (
        used(PEAK, "a", "b", "a"),
        machine(8 * G, [("host", 100 * G, "in", "out")], {"in": 1 * G, "out": 2 * G}),
        9,
        9,
    ),
    # 4 of b leave while 4 of a return.
    "both directions": (used(PEAK, "a", "b", "a", "b"), small(8, 100, 2, 2, 2), 10, 10),
    "one limit for both directions": (
        used(PEAK, "a", "b", "a", "b"),
        machine(8 * G, [("host", 100 * G, "bus", "bus")], {"bus": 2 * G}),
        12,
        12,
    ),
    "three tiers": (
        used(PEAK, "a", "b", "a"),
        machine(
            8 * G,
            [
                ("host", 1 * G, "in", "out"),
                ("cxl", 1 * G, "in cxl", "out cxl"),
                ("ssd", 100 * G, "in ssd", "out ssd"),
            ],
            {"in": 2 * G, "out": 2 * G, "cxl": 1 * G, "ssd": 1 * G},
        ),
        7,
        7,
    ),
    # Each byte is written to host memory and read from it again on its way to the SSD.
    "a way that crosses twice": (
        used(PEAK, "a", "b", "a"),
        machine(
            8 * G, [("ssd", 100 * G, "in ram ram", "out ram ram")], {"in": 4 * G, "out": 4 * G, "ram": 2 * G}
        ),
        11,
        11,
    ),
}


@pytest.mark.parametrize("steady", [False, True], ids=["iteration", "steady"])
@pytest.mark.parametrize("name", HAND)
def test_instances_solved_by_hand(name, steady):
    trace, system, *seconds = HAND[name]
    found = iteration_bound(trace, system, steady=steady, checkpoints=ALL)
    assert seconds[steady] * G - 100 <= found.cycles <= seconds[steady] * G
    blocks = Blocks(trace, system, G)
    assert (blocks.steady() if steady else blocks.iteration()) == seconds[steady] * G
    assert iteration_bound(trace, system, steady=steady).cycles <= found.cycles


def test_the_resources_of_the_stall_are_named():
    trace, system, *_ = HAND["no host"]
    found = iteration_bound(trace, system, checkpoints=ALL)
    assert sum(found.stalls.values()) == pytest.approx(found.stall_cycles, rel=1e-6)
    assert found.stalls["read"] == pytest.approx(4 * G, rel=1e-6)
    assert found.stalls["write"] == pytest.approx(4 * G, rel=1e-6)
    # 1 % more memory: 0.08 less in each direction. 1 % more rate: 4 s / 101.
    assert found.savings["GPU memory"] == pytest.approx(0.16 * G, rel=1e-3)
    assert found.savings["write"] == pytest.approx(0.04 * G, rel=0.02)
    fits = iteration_bound(*HAND["fits"][:2], checkpoints=ALL)
    assert (fits.resource, fits.stall_cycles) == ("", 0)


def test_the_closed_form_names_its_resources():
    found = iteration_bound(*HAND["no host"][:2])
    # The kernels of a, at 6 bytes of 8, cover a second each way.
    assert found.method == "closed form"
    assert found.stalls == pytest.approx({"write": 3 * G, "read": 3 * G}, rel=1e-6)
    assert found.savings["GPU memory"] == pytest.approx(0.16 * G, rel=1e-3)
    assert found.savings["read"] == pytest.approx(4 * G / 101, rel=1e-3)


@pytest.mark.parametrize("at_once", [1, 3])
def test_the_closed_form_is_the_same_for_any_number_of_kernels_at_once(monkeypatch, at_once):
    cases = [HAND[name][:2] for name in HAND] + [
        (case.trace, case.machine) for case in map(draw_case, range(9))
    ]
    whole = [iteration_bound(*case, steady=steady) for case in cases for steady in (False, True)]
    monkeypatch.setattr("g10sim.analysis.bound.closed_form._KERNELS_AT_ONCE", at_once)
    assert [iteration_bound(*case, steady=steady) for case in cases for steady in (False, True)] == whole


def program_of(case, *, steady, count=ALL):
    demand = demand_of(case.trace, case.machine.clock_hz, case.machine.page_bytes)
    chosen = Checkpoints(demand, choose_checkpoints(demand, count), steady)
    return case.machine, chosen, LinearProgram(case.machine, chosen).solve()


@pytest.mark.parametrize("seed", range(12))
def test_the_certificate_is_at_most_the_program_and_hardly_less(seed):
    for steady in (False, True):
        system, chosen, solution = program_of(draw_case(seed), steady=steady)
        safe, least = certified_stall(solution.prices, system, chosen), solution.stall_cycles.sum()
        assert least * (1 - 1e-6) - 2 <= safe <= least + 1


@pytest.mark.parametrize("seed", range(12))
def test_the_certificate_holds_for_prices_that_no_solver_would_give(seed):
    noise = np.random.default_rng(seed)
    case = draw_case(seed)
    blocks = Blocks(case.trace, case.machine)
    for steady in (False, True):
        system, chosen, solution = program_of(case, steady=steady)
        best = blocks.steady() if steady else blocks.iteration()
        for spread in (0.01, 0.3, 3.0):
            found = [
                array * noise.lognormal(0, spread, array.shape) + noise.exponential(spread / 100, array.shape)
                for array in vars(solution.prices).values()
            ]
            assert chosen.demand.ideal_cycles + certified_stall(Prices(*found), system, chosen) <= best


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [None, 3, ALL])
def test_a_better_machine_has_no_higher_bound(seed, count):
    case = draw_case(seed)
    for steady in (False, True):
        before = iteration_bound(case.trace, case.machine, steady=steady, checkpoints=count).cycles
        for _, better in case.machine.bettered():
            after = iteration_bound(case.trace, better, steady=steady, checkpoints=count).cycles
            assert after <= before + 2


@pytest.mark.parametrize("seed", range(8))
def test_more_checkpoints_never_lower_the_bound(seed):
    case = draw_case(seed)
    for steady in (False, True):
        found = [
            iteration_bound(case.trace, case.machine, steady=steady, checkpoints=count).cycles
            for count in range(1, len(case.trace.kernels) + 1)
        ]
        assert all(after >= before - 2 for before, after in pairwise(found))


def test_checkpoints_of_long_traces_are_nested_and_include_the_peak():
    demand = demand_of(chain(60), G, 4096)
    sets = [set(choose_checkpoints(demand, count).tolist()) for count in (1, 5, 17, 40, 100, 179)]
    assert [len(found) for found in sets] == [1, 5, 17, 40, 100, 179]
    assert all(few < many for few, many in pairwise(sets))
    assert int(demand.live_bytes.argmax()) in sets[0]


@pytest.mark.parametrize("seed", range(12))
def test_tiers_and_limits_that_are_left_out_do_not_matter(seed):
    case = draw_case(seed)
    system, chosen, solution = program_of(case, steady=True)
    demand = chosen.demand
    reduced = system.reduced(demand.peak_bytes)
    found = LinearProgram(reduced, Checkpoints(demand, chosen.kernels, steady=True)).solve()
    assert found.stall_cycles.sum() == pytest.approx(solution.stall_cycles.sum(), rel=1e-6, abs=1)
    assert len(reduced.stores) <= len(system.stores)


def test_the_paths_of_a_system_limit_its_bound():
    system = load_system(
        {
            "preset": "a100-40g-pcie3-znand",
            "ssd": {"path": "host", "bounce": {"bandwidth": "6 GB/s", "latency": "5 us"}},
            "host": {"memory": "0 B", "memory_bandwidth": "20 GB/s"},
        }
    )
    found = bound_machine(system)
    rates = {limit.name: limit.rate for limit in found.limits}
    assert rates["bounce buffer"] == 6 * G
    assert rates["host memory"] == 20 * G
    (ssd,) = [store for store in found.stores if store.name == "ssd"]
    crossed = [found.limits[number].name for number in ssd.inward]
    assert crossed.count("host memory") == 2
    shared = bound_machine(load_system("4xa100-40g-pcie4-shared"), gpu=3)
    assert "GPU 3 out" in [limit.name for limit in shared.limits]


def rerunnable(*, keeps_source):
    """Kernel 0 makes a from s; kernel 1 needs all memory; kernel 2 reads a, and s unless it is gone."""
    reads = "a s" if keeps_source else "a"
    return trace_of({"s": 1, "a": 6, "b": 6}, [(G, "s", "a"), (G, "b", ""), (G, reads, "")])


def test_dropping_takes_the_time_of_the_rerun():
    system = small(8, 100, 2, 2, 2)
    # 4 of 6 bytes come back by two thirds of the kernel; with s to keep it is 5, and a byte of link each way.
    lost = iteration_bound(rerunnable(keeps_source=False), system, recompute=True, checkpoints=ALL)
    assert lost.cycles == pytest.approx(7 * G, rel=1e-6)
    kept = iteration_bound(rerunnable(keeps_source=True), system, recompute=True, checkpoints=ALL)
    assert kept.cycles == pytest.approx((3 + 5 / 6) * G, rel=1e-6)
    assert kept.kind == "iteration with recomputation"
    assert kept.resource == "computing again"
    swapped = iteration_bound(rerunnable(keeps_source=True), system, checkpoints=ALL)
    assert swapped.cycles == pytest.approx(8 * G, rel=1e-6)


def test_a_tensor_that_is_written_next_comes_back_for_nothing():
    trace = trace_of({"a": 6, "b": 6}, [(G, "", "a"), (G, "b", ""), (G, "", "a"), (G, "a", "")])
    found = [
        iteration_bound(trace, small(8, 100, 2, 2, 2), recompute=again, checkpoints=ALL).cycles
        for again in (True, False)
    ]
    assert found == pytest.approx([4 * G, 8 * G], rel=1e-6)


def test_results_that_cannot_be_dropped_do_not_share_the_time_of_a_rerun():
    # The kernel also writes a weight, and scratch that is dead when it ends.
    kernels = [(G, "s", "a w x"), (G, "b", ""), (G, "a s", "")]
    trace = trace_of({"s": 1, "a": 6, "b": 6, "w*": 1, "x": 1}, kernels)
    system = small(9, 100, 2, 2, 2)
    found = iteration_bound(trace, system, recompute=True, checkpoints=ALL)
    # 14 are alive in the second kernel, so 5 of a are dropped; each takes a sixth of the first kernel's time.
    assert found.cycles == pytest.approx((3 + 5 / 6) * G, rel=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_recomputation_never_makes_the_bound_higher(seed):
    case = draw_case(seed)
    for steady in (False, True):
        found = [
            iteration_bound(case.trace, case.machine, steady=steady, recompute=again, checkpoints=ALL).cycles
            for again in (True, False)
        ]
        assert sum(case.trace.duration_cycles(kernel, G) for kernel in case.trace.kernels) <= found[0]
        assert found[0] <= found[1] + 2


def test_what_nothing_can_run_is_refused():
    trace = used(PEAK, "a", "b", "a")
    with pytest.raises(CapacityError, match=r"working set of .*allowed: at most the GPU memory"):
        iteration_bound(trace, small(5, 100, 2, 2, 2))
    tiny = machine(8 * G, [("host", 3 * G, "in", "out")], {"in": G, "out": G})
    with pytest.raises(CapacityError, match=r"alive at a time; allowed: .*memory tiers hold"):
        iteration_bound(trace, tiny)
    with pytest.raises(ConfigError, match="at least one memory tier"):
        replace(tiny, stores=())


def test_a_program_without_a_solution_proves_nothing():
    # Nothing fits below, and nothing can be computed again.
    tiny = machine(8 * G, [("host", 3 * G, "in", "out")], {"in": G, "out": G})
    demand = demand_of(used(PEAK, "a", "b", "a"), G, 1, recompute=True)
    assert demand_bound(demand, tiny, steady=False, checkpoints=ALL).cycles == 3 * G


def test_a_captured_trace_has_the_bounds_that_are_published():
    changes = {"gpu": {"memory": "40 GiB"}, "pcie": {"bandwidth": "15.754 GB/s"}}
    system = load_system({"preset": "a100-40g-pcie3-znand", **changes})
    trace, limits = load_trace(BERT), bound_machine(system)
    seconds = [
        iteration_bound(trace, limits, steady=steady, checkpoints=count).cycles / system.gpu.clock
        for steady, count in ((False, None), (False, 40), (True, 40))
    ]
    assert seconds == pytest.approx([7.323, 7.323, 7.373], abs=5e-4)


OBSTACLES = [
    ("ideal", {}, 1, "unlimited"),
    ("vdnn", {}, 1, "contiguous"),
    ("g10", {}, 2, "2 jobs"),
    ("g10", {"running_tensors": "evictable"}, 1, "compat.running_tensors is 'evictable'"),
    ("g10", {"transfers": "batched"}, 1, "bounds hold for 'fluid'"),
]


@pytest.mark.parametrize(("policy", "changes", "jobs", "words"), OBSTACLES)
def test_runs_outside_the_premises_have_no_bound(policy, changes, jobs, words):
    workload = Workload((Job(chain(2)),) * jobs)
    assert words in Premises(create(policy).requirements, BehaviourSpec(**changes)).obstacle(workload)


def test_paged_runs_of_one_job_have_a_bound():
    for policy in ("base_uvm", "deepum", "g10"):
        assert not Premises(create(policy).requirements, BehaviourSpec()).obstacle(Workload((Job(chain(2)),)))
