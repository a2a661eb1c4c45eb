import re
from dataclasses import replace

import pytest

import g10sim
from g10sim.analysis.reported import averaged, reported, spread
from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.sharing import VariationSpec
from g10sim.errors import CapacityError, ConfigError, PolicyError, TraceError, UnsupportedError
from g10sim.policies.interface.policy import Policy
from g10sim.records import ContiguousRecord, IterationRecord, StallReason
from g10sim.results.columns import BOUND, CPU, metric_columns, stall_columns
from g10sim.results.summary import summarize
from g10sim.trace.workload import Job, Workload

from .conftest import SYSTEM

POLICIES = ["ideal", "base_uvm", "deepum"]


def test_a_system_with_changes():
    system = g10sim.system("a100-40g-pcie3-znand", host={"memory": "64 GiB"})
    assert system.host.memory == 64 * 2**30
    with pytest.raises(ConfigError, match=r"system.hosts: found an unknown key"):
        g10sim.system("a100-40g-pcie3-znand", hosts={})


@pytest.mark.parametrize("compat", [None, "gpg"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_cycle_of_the_summary_has_an_owner(trace, policy, compat):
    result = g10sim.simulate(trace, SYSTEM, policy, compat=compat, check=True)
    summary = result.summary
    assert tuple(summary)[: len(metric_columns())] == metric_columns()
    assert {*summary} - {*metric_columns()} <= {*CPU.names, *BOUND.names}
    assert (
        summary["ideal_cycles"] + sum(summary[column] for column in stall_columns()) == summary["exec_cycles"]
    )
    assert result.performance == summary["ideal_cycles"] / summary["exec_cycles"]
    assert summary["exec_ms"] == pytest.approx(summary["exec_cycles"] / 1.2e6)
    assert summary["samples_per_s"] == pytest.approx(trace.batch_size / (summary["exec_ms"] / 1e3))
    if compat is None:
        parts = ("compute_cycles", "overlap_cycles", "stall_cycles")
        assert sum(summary[part] for part in parts) == summary["exec_cycles"]


def test_the_ideal_time_is_the_sum_of_the_durations(trace):
    result = g10sim.simulate(trace, SYSTEM, "ideal")
    durations = sum(trace.duration_cycles(kernel, 1_200_000_000) for kernel in trace.kernels)
    assert result.summary["exec_cycles"] == durations
    assert result.performance == 1.0
    assert g10sim.simulate(trace, SYSTEM, "base_uvm").performance < 1.0


def test_tables_are_recorded_on_demand(trace):
    quiet = g10sim.simulate(trace, SYSTEM, "base_uvm")
    for table in ("kernels", "migrations", "memory"):
        with pytest.raises(ConfigError, match=f"{table}: was not recorded"):
            getattr(quiet, table)
    loud = g10sim.simulate(
        trace, SYSTEM, "base_uvm", iterations=3, record=["kernels", "migrations", "memory"]
    )
    assert len(loud.kernels) == 3 * len(trace.kernels)
    last = loud.kernels[loud.kernels["iteration"] == 2]
    assert (last["end"] - last["start"]).sum() == loud.summary["exec_cycles"]
    spread = last["compute_cycles"] + last[list(stall_columns())].sum(axis="columns")
    assert spread.sum() == loud.summary["exec_cycles"]
    assert set(loud.migrations["target"]) <= {"GPU", "HOST", "FLASH", "NONE"}
    assert loud.memory["gpu_bytes"].max() <= 8 * 2**20
    names = {event["name"] for event in loud.timeline()["traceEvents"]}
    assert {"Forward", "Backward", "Update", "compute", "process_name"} <= names


def test_a_trace_file_a_policy_object_and_a_workload_do_as_well(trace, trace_file):
    class Lazy(Policy):
        """Does nothing."""

        name = "lazy"

    by_object = g10sim.simulate(trace_file, SYSTEM, Lazy())
    assert (
        by_object.summary["exec_cycles"] == g10sim.simulate(trace, SYSTEM, "base_uvm").summary["exec_cycles"]
    )
    workload = Workload((Job(trace), Job(trace, arrival_cycles=10)))
    assert len(g10sim.simulate(workload, SYSTEM, "base_uvm").rows) == 2


@pytest.mark.slow
def test_variation_of_kernel_times(trace):
    plain, *varied = (
        g10sim.simulate(trace, SYSTEM, "base_uvm", variation=variation, seed=seed).summary
        for variation, seed in (
            (None, 1),
            ({"magnitude": 0.1}, 1),
            ({"magnitude": 0.1}, 1),
            ({"magnitude": 0.1}, 2),
        )
    )
    assert varied[0] == varied[1]
    assert len({one["ideal_cycles"] for one in (plain, *varied)}) == 3
    assert varied[0]["ideal_cycles"] == pytest.approx(plain["ideal_cycles"], rel=0.1)
    workload = Workload((Job(trace, iterations="auto"),), VariationSpec(magnitude=0.1), seed=2)
    assert g10sim.simulate(workload, SYSTEM, "base_uvm").summary == varied[2]
    with pytest.raises(ConfigError, match=r"variation.distribution: found 'gauss'; allowed: normal, uniform"):
        g10sim.simulate(trace, SYSTEM, "ideal", variation={"distribution": "gauss", "magnitude": 0.1})
    with pytest.raises(ConfigError, match=r"seed: found -1; allowed: a whole number from 0"):
        g10sim.simulate(trace, SYSTEM, "ideal", variation={"magnitude": 0.1}, seed=-1)


def test_kernel_times_for_another_gpu_are_told(trace, tmp_path):
    timed = replace(trace, origin={"gpu": "a100-40g"})
    told = f"{trace.model}: kernel times are for a100-40g; the system has h100: they are used as is"
    told += " (workload.kernel_times: system, or g10sim trace retime, takes those of the system's)"
    with pytest.warns(UserWarning, match=f"^{re.escape(told)}$"):
        g10sim.simulate(timed, "h100-80g-pcie5-nvme", "ideal")
    for system, compat in (
        (SYSTEM, None),
        ({**SYSTEM, "gpu": {"name": ""}}, None),
        ("h100-80g-pcie5-spec", "gpg"),
    ):
        g10sim.simulate(timed, system, "ideal", compat=compat)
    names = [str(tmp_path / f"{name}.g10t") for name in ("one", "two")]
    for name in names:
        g10sim.save_trace(timed, name)
    config = {"name": "told", "workload": {"trace": names}, "system": SYSTEM, "policies": ["ideal"]}
    assert g10sim.run(config, output=tmp_path / "same").warnings == ()
    config["sweep"] = {"system.gpu.name": ["a100-40g", "h100"]}
    told = told.replace(trace.model, f"{names[0]} and 1 more")
    assert g10sim.run(config, output=tmp_path / "swept").warnings == (told,)
    assert g10sim.run({**config, "compat": "gpg"}, output=tmp_path / "published").warnings == ()


def test_bad_arguments(trace, tmp_path):
    with pytest.raises(
        ConfigError, match=r"record: found 'kernel' \(did you mean 'kernels'\?\); allowed: kernels"
    ):
        g10sim.simulate(trace, SYSTEM, "ideal", record=["kernel"])
    for number in (0, 10**9):
        message = f"iterations: found {number}; allowed: auto, or a whole number from 1 to 10000"
        with pytest.raises(ConfigError, match=message):
            g10sim.simulate(trace, SYSTEM, "ideal", iterations=number)
    with pytest.raises(PolicyError, match=r"unknown policy 'ideel' \(did you mean 'ideal'\?\)"):
        g10sim.simulate(trace, SYSTEM, "ideel")
    with pytest.raises(CapacityError, match="working set"):
        g10sim.simulate(trace, {**SYSTEM, "gpu": {"memory": "1 MiB"}}, "base_uvm")
    with pytest.raises(TraceError, match=r"none.g10t"):
        g10sim.simulate(tmp_path / "none.g10t", SYSTEM, "ideal")
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        g10sim.simulat  # noqa: B018


def record(iteration, cycles, *, stalls=(), overlap=0, in_flight=0, job=0, start=0):
    ideal = cycles - sum(waited for _, waited in stalls)
    traffic = dict.fromkeys(("ssd_to_gpu", "gpu_to_ssd", "host_to_gpu", "gpu_to_host"), 0)
    return IterationRecord(
        job=job,
        gpu=0,
        iteration=iteration,
        start=start,
        end=start + cycles,
        ideal_cycles=ideal,
        compute_cycles=ideal,
        overlap_cycles=overlap,
        in_flight_cycles=in_flight,
        stalls=tuple(stalls),
        traffic={f"{way}_bytes": value for way, value in traffic.items()},
        page_faults=0,
        peak_gpu_bytes=0,
        peaks={"peak_host_bytes": 0},
    )


def test_which_iterations_are_reported():
    records = [record(0, 90), record(1, 90), record(2, 95), record(3, 100)]

    def numbers(steady, period=None, **options):
        last = replace(records[-1], steady=steady, period=period)
        return [one.iteration for one in reported([*records[:-1], last], **options)]

    assert numbers(True) == numbers(True, 1) == [3]
    assert numbers(True, 3) == [1, 2, 3]
    assert numbers(False) == [2, 3]
    assert numbers(False, fastest=True) == [1]
    assert [len(reported(records[:count])) for count in (1, 2, 3)] == [1, 1, 1]


def test_an_average_iteration_adds_up():
    stalls = [(StallReason.FAULT_HOST, 7)], [(StallReason.EVICTION, 4), (StallReason.FAULT_HOST, 2)], []
    traffic = {"host_to_gpu": 5}, {"host_to_gpu": 0}, {"host_to_gpu": 6}
    records = [
        replace(record(number, 60 + sum(cycles for _, cycles in some), stalls=some), traffic=moved)
        for number, (some, moved) in enumerate(zip(stalls, traffic, strict=True))
    ]
    found = averaged(records)
    assert found.end - found.start == 64  # of 193 / 3
    assert (found.compute_cycles, dict(found.stalls)) == (60, {"eviction": 1, "fault_host": 3})
    assert found.traffic == {"host_to_gpu": 3}
    assert spread(records) == pytest.approx(7 / (193 / 3))
    assert averaged(records[:1]) is records[0]


def test_an_average_iteration_of_contiguous_memory_has_its_peaks_and_its_mean_over_time():
    found = averaged(
        [
            replace(record(0, 60), contiguous=ContiguousRecord(10, 4, 6, 5.0)),
            replace(record(1, 20), contiguous=ContiguousRecord(8, 2, 7, 1.0)),
            record(2, 70),
        ]
    )
    assert found.contiguous == ContiguousRecord(10, 2, 7, (5 * 60 + 1 * 20) / 80)
    assert averaged([record(0, 60), record(1, 20)]).contiguous is None


STALLS = [(StallReason.FAULT_HOST, 30), (StallReason.EVICTION, 10)]


def breakdown(trace, behaviour, **policy):
    iterations = [record(0, 100, stalls=STALLS, overlap=20, in_flight=50, start=50)]
    system = g10sim.system(SYSTEM)
    (row,) = summarize(Workload((Job(trace),)), system, behaviour, iterations, events=7, **policy)
    assert (row["exec_cycles"], row["ideal_cycles"], row["events"]) == (100, 60, 7)
    assert (row["stall_fault_host_cycles"], row["stall_eviction_cycles"]) == (30, 10)
    assert row["stall_barrier_cycles"] == 0
    return row["compute_cycles"], row["overlap_cycles"], row["stall_cycles"]


def test_the_breakdown_of_an_iteration(trace):
    assert breakdown(trace, BehaviourSpec(), moves_ahead=True) == (40, 20, 40)
    assert breakdown(trace, BehaviourSpec(), moves_ahead=False) == (40, 20, 40)


def test_the_breakdown_as_published(trace):
    assert breakdown(trace, GPG, moves_ahead=True) == (50, 20, 50)
    assert breakdown(trace, GPG, moves_ahead=False) == (50, 0, 30)


def test_what_no_policy_can_run_is_unsupported(trace):
    system = {**SYSTEM, "gpu": {"memory": "1 MiB"}}
    with pytest.raises(UnsupportedError, match="working set"):
        g10sim.simulate(trace, system, "base_uvm")
