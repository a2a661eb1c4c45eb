"""Every column that the page on results defines, computed by hand from runs small enough to follow."""

import math
import re
from pathlib import Path

import pytest
from drives import drive, with_drive
from machines import OWN, FollowPlan, machine, planned, trace_of
from memories import GPU, HOST, NONE

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.host import CpuSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec
from g10sim.config.system import SystemSpec
from g10sim.experiment.execution import simulate
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.ideal import Ideal
from g10sim.policies.designs.zero_offload import ZeroOffload
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Requirements
from g10sim.records import ContiguousRecord, FlashRecord, IterationRecord, StallReason
from g10sim.results.columns import BOUND, CONTEXT, metric_columns
from g10sim.results.summary import summarize
from g10sim.results.tables import TABLES, records_table
from g10sim.trace.format import save_trace
from g10sim.trace.model import Device, Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder
from g10sim.trace.workload import Job, Workload

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
YEAR = 365 * 86_400

WAITS = {
    StallReason.FAULT_HOST: 1,
    StallReason.FAULT_FLASH: 20,
    StallReason.FIRST_TOUCH: 300,
    StallReason.LATE_PREFETCH: 4000,
    StallReason.EVICTION: 50_000,
    StallReason.LINK_CONTENTION: 600_000,
    StallReason.ALLOCATION: 7_000_000,
    StallReason.SYNCHRONIZATION: 80_000_000,
    StallReason.BARRIER: 200_000_000,
    StallReason.COMPUTE_SHARING: 1_000_000_000,
    StallReason.RECOMPUTATION: 2_000_000_000,
    StallReason.IN_PLACE_ACCESS: 400_000_000,
    StallReason.COPY_CONTENTION: 599_000_000,
    StallReason.MAPPING: 1_000_000,
}
"""Cycles that the iteration below waits: 4,287,654,321 in all."""


def record(**changes):
    """An iteration from cycle 500 on that computes for 712,345,679 cycles: 5,000,000,000 with all waits."""
    values = {
        "job": 0,
        "gpu": 0,
        "iteration": 0,
        "start": 500,
        "end": 5_000_000_500,
        "ideal_cycles": 1_000_000_000,
        "compute_cycles": 712_345_679,
        "overlap_cycles": 2_345_679,
        "in_flight_cycles": 9,
        "stalls": tuple(WAITS.items()),
        "traffic": {"ssd_to_gpu_bytes": 1, "gpu_to_ssd_bytes": 2}
        | {"host_to_gpu_bytes": 3, "gpu_to_host_bytes": 4},
        "page_faults": 5,
        "peak_gpu_bytes": 6000,
        "peaks": {"peak_host_bytes": 7},
    }  # fmt: skip
    return IterationRecord(**values | changes)


def row_of(iteration, system=None, behaviour=None, **options):
    """The row of a job with batches of 8 samples and tensors of 1500 and 4500 bytes: a GPU of 8000 bytes."""
    builder = TraceBuilder("tiny", batch_size=8)
    for name, size_bytes in (("a", 1500), ("b", 4500)):
        builder.tensor(name, size_bytes, TensorKind.ACTIVATION)
    builder.kernel("one", 1, [], [0, 1])
    gpu = machine(8).gpu.model_copy(update={"clock": 2 * 10**9})
    system = (system or machine(8)).model_copy(update={"gpu": gpu})
    workload = Workload((Job(builder.build()),))
    behaviour = behaviour or BehaviourSpec()
    (row,) = summarize(workload, system, behaviour, [iteration], events=11, moves_ahead=True, **options)
    return row


BY_HAND = {
    "ideal_cycles": 1_000_000_000,
    "exec_cycles": 5_000_000_000,
    "exec_ms": 2500.0,
    "performance": 0.2,
    "samples_per_s": 8 / 2.5,
    "compute_cycles": 710_000_000,
    "overlap_cycles": 2_345_679,
    "stall_cycles": 4_287_654_321,
    "stall_fault_host_cycles": 1,
    "stall_fault_flash_cycles": 20,
    "stall_first_touch_cycles": 300,
    "stall_late_prefetch_cycles": 4000,
    "stall_eviction_cycles": 50_000,
    "stall_link_contention_cycles": 600_000,
    "stall_allocation_cycles": 7_000_000,
    "stall_synchronization_cycles": 80_000_000,
    "stall_barrier_cycles": 200_000_000,
    "stall_compute_sharing_cycles": 1_000_000_000,
    "stall_recomputation_cycles": 2_000_000_000,
    "stall_in_place_access_cycles": 400_000_000,
    "stall_copy_contention_cycles": 599_000_000,
    "stall_mapping_cycles": 1_000_000,
    "ssd_to_gpu_bytes": 1,
    "gpu_to_ssd_bytes": 2,
    "host_to_gpu_bytes": 3,
    "gpu_to_host_bytes": 4,
    "page_faults": 5,
    "peak_gpu_bytes": 6000,
    "peak_host_bytes": 7,
    "footprint_bytes": 6000,
    "oversubscription": 0.75,
    "events": 11,
    "iterations": 1,
    "steady": False,
    "period": 2,
    "spread": 0.0,
}


def test_metrics_of_a_record():
    assert row_of(record(steady=False, period=2)) == BY_HAND
    assert "steady" not in row_of(record())  # nothing to compare it with
    assert set(BY_HAND) == set(metric_columns())


def test_times_of_copies_may_be_those_of_six_digits_in_milliseconds():
    row = row_of(record(), behaviour=BehaviourSpec(reported_digits="six"), copies_tensors=True)
    # 2500 ms and 355 ms are what they were; 1.1728395 ms and 2143.8271605 ms are not.
    assert (row["exec_cycles"], row["compute_cycles"]) == (5_000_000_000, 710_000_000)
    assert (row["overlap_cycles"], row["stall_cycles"]) == (2_345_680, 4_287_660_000)


# Machines of one byte a cycle: a page crosses PCIe in 1000 cycles, comes from the SSD in 5000 as a page
# fault, goes there in 4000, and is first touched in 2000. Two kernels of 10,000 cycles; the weight w is read
# by the first, which makes a, from which the second makes b; two pages each, and room for four.
RUNS = {
    # w comes from the SSD, a is touched meanwhile; b then waits until w is on the SSD again.
    "ssd": (
        0,
        {"exec_cycles": 38_000, "ideal_cycles": 20_000, "compute_cycles": 20_000, "stall_cycles": 18_000}
        | {"stall_fault_flash_cycles": 10_000, "stall_eviction_cycles": 8000}
        | {"ssd_to_gpu_bytes": 2000, "gpu_to_ssd_bytes": 2000, "page_faults": 6, "peak_gpu_bytes": 4000}
        | {"overlap_cycles": 0, "host_to_gpu_bytes": 0, "peak_host_bytes": 0, "samples_per_s": 1e9 / 38_000}
        | {"iterations": 2, "steady": True},
    ),
    # w is in host memory instead, 2000 cycles a page; b's first touches push it out while they last. In the
    # first iteration it came from the SSD.
    "host": (
        1000,
        {"exec_cycles": 28_000, "stall_cycles": 8000, "performance": 20 / 28, "exec_ms": 0.028}
        | {"stall_fault_host_cycles": 4000, "stall_first_touch_cycles": 4000, "stall_eviction_cycles": 0}
        | {"host_to_gpu_bytes": 2000, "gpu_to_host_bytes": 2000, "peak_host_bytes": 2000}
        | {"footprint_bytes": 6000, "oversubscription": 1.5, "ssd_to_gpu_bytes": 0}
        | {"iterations": 2, "steady": False},
    ),
}


@pytest.mark.parametrize("case", RUNS)
def test_metrics_of_a_run(case):
    host_pages, expected = RUNS[case]
    trace = trace_of({"w*": 2, "a": 2, "b": 2}, [(10_000, "w", "a"), (10_000, "a", "b")])
    _, (row,) = simulate(Workload((Job(trace),)), machine(4, host_pages), BaseUvm(), OWN)
    assert {column: row[column] for column in expected} == expected


class Copies(FollowPlan):
    """A plan carried out by copies of whole tensors."""

    name = "copies"
    requirements = Requirements(placement="contiguous")


CONTIGUOUS_BY_HAND = {
    "reserved_gpu_bytes": 9000,
    "fragmentation": 9 / 7,
    "largest_hole_bytes": 11_000,
    "peak_pinned_bytes": 0,
    "mean_gpu_bytes": 6500.0,
}


def test_contiguous_memory():
    # a (2 pages), b (2) and c (2) lie side by side; when b is gone, d (3) finds no room in its hole of 2. So
    # 6 pages are in use for 2000 cycles, then 7 for 2000.
    trace = trace_of(
        {"a": 2, "b": 2, "c": 2, "d": 3},
        [(1000, "", "a b c"), (1000, "b", ""), (1000, "", "d"), (1000, "a c d", "")],
    )
    workload = Workload((Job(trace),))
    _, (row,) = simulate(workload, machine(20), Copies(), BehaviourSpec())
    assert row["peak_gpu_bytes"] == 7000
    assert {column: row[column] for column in CONTIGUOUS_BY_HAND} == CONTIGUOUS_BY_HAND
    made_up = row_of(record(contiguous=ContiguousRecord(12_000, 3, 4, 5.5)))
    assert [made_up[column] for column in CONTIGUOUS_BY_HAND] == [12_000, 2.0, 3, 4, 5.5]
    least = row_of(record(peak_gpu_bytes=1, contiguous=ContiguousRecord(3, 0, 0, 1.0)))
    assert least["fragmentation"] == 3


def test_memory_that_a_copy_gives_back_counts_until_it_ends():
    # a (2 pages, 1000 cycles each) leaves during the second kernel, and comes back during the third: 4 pages
    # are in use for 1000 cycles, 6 for 2000, 4 for 1000, and 6 for 5000.
    kernels = [(1000, "", "a b"), (3000, "b", "c"), (4000, "b c", ""), (1000, "a b c", "")]
    workload = Workload((Job(trace_of({"a": 2, "b": 2, "c": 2}, kernels), iterations=2),))
    _, (row,) = simulate(workload, machine(20), Copies(moves=[(1, 0, HOST), (2, 0, GPU)]), BehaviourSpec())
    assert row["exec_cycles"] == 9000
    assert row["mean_gpu_bytes"] == 50_000_000 / 9000


# The iteration above lasts 2.5 s. It writes 1000 bytes to two drives, of which 600 and 400 bytes are copied.
FLASH_BY_HAND = {
    "ssd_written_bytes": 1000,
    "ssd_flash_written_bytes": 2000,
    "ssd_write_amplification": 2.0,
    "ssd_run_write_amplification": 1.5,
    "ssd_erased_bytes": 64_000,
    "ssd_written_bytes_per_year": 400 * YEAR,
    "ssd_drive_writes_per_day": 400 * 86_400 / 9_600_000,
    "ssd_rated_drive_writes_per_day": 10**9 / 4_800_000 / (365 * 5),
    "ssd_years_to_rated_cycles": 1000 * 12_800_000 / (800 * YEAR),
    "ssd_years_to_rated_writes": 2 * 10**9 / (400 * YEAR),
}


def test_flash():
    # 100 superblocks of 64 kB each, three quarters offered; a drive is rated 1000 cycles, 1 GB in 5 years.
    system = with_drive(drive(drives=2), gpu_pages=8)
    row = row_of(record(flash=FlashRecord(9, 1000, 600, 400, 64_000, 4000, 6000)), system)
    assert {column: row[column] for column in FLASH_BY_HAND} == pytest.approx(FLASH_BY_HAND)
    idle = row_of(record(flash=FlashRecord(9, 0, 0, 0, 0, 0, 0)), system)
    assert idle["ssd_write_amplification"] == idle["ssd_run_write_amplification"] == 1
    assert idle["ssd_years_to_rated_cycles"] == idle["ssd_years_to_rated_writes"] == math.inf


IN_PLACE_BY_HAND = {"in_place_read_bytes": 70, "in_place_written_bytes": 8}


def test_use_in_place():
    """Bytes of tensors in memory that kernels can access; without such memory there are no columns."""
    used = record(**IN_PLACE_BY_HAND)
    plain = machine(8, kernel_access={}).model_dump(mode="json")
    beside = {"name": "cxl", "kind": "memory", "capacity": "1 MB", "at": "socket0", "read": "1 GB/s"}
    for tiers in (["host"], ["host", beside | {"write": "1 GB/s"}]):
        row = row_of(used, SystemSpec(**plain | {"tiers": tiers}))
        assert {column: row[column] for column in IN_PLACE_BY_HAND} == IN_PLACE_BY_HAND
    assert row_of(used).keys().isdisjoint(IN_PLACE_BY_HAND)


CPU_BY_HAND = {"cpu_cycles": 5000, "cpu_fetched_bytes": 2000, "stall_cpu_cycles": 3000}


def test_cpu():
    # The CPU waits for the two pages of m, which the SSD reads in 4000 cycles, and computes for 5000. The GPU
    # computes for 6000 and then waits for m, which comes from host memory in 2000.
    builder = TraceBuilder("offloaded")
    m = builder.tensor("m", 2000, TensorKind.OPTIMIZER_STATE, persistent=True)
    builder.kernel("Step", 0, [m], [m], device=Device.CPU, parameters=2500)
    builder.kernel("Other", 6000, [], [])
    builder.kernel("Reads", 1000, [m], [])
    system = machine(fault="0 s").model_copy(update={"cpu": CpuSpec(optimizer_rate="0.5 G/s")})
    workload = Workload((Job(builder.build(), iterations=1),))
    records, (row,) = simulate(workload, system, BaseUvm(), OWN, tables=("kernels",))
    assert {column: row[column] for column in CPU_BY_HAND} == CPU_BY_HAND
    assert (row["ideal_cycles"], row["exec_cycles"], row["stall_cycles"]) == (7000, 12_000, 5000)
    assert row["bound_kind"] == "none: kernels run on the CPU; bounds hold for kernels on the GPU"
    assert list(records_table("kernels", records)["stall_cpu_cycles"]) == [0, 0, 3000]


EXCHANGED_BY_HAND = {"exchanged_bytes": 3000}


def test_exchanged_bytes():
    # Of the gradient of 4000 bytes half goes to the other replica, and of the weight of 2000 bytes half.
    builder = TraceBuilder("replicated")
    weight = builder.tensor("w", 2000, TensorKind.WEIGHT, persistent=True)
    gradient = builder.tensor("g", 4000, TensorKind.GRADIENT)
    builder.kernel("Backward", 5000, [weight], [gradient], Phase.BACKWARD)
    builder.kernel("Update", 3000, [gradient], [weight], Phase.OPTIMIZER)
    trace = builder.build()
    workload = Workload((Job(trace), Job(trace, gpu=1)), exchange=ExchangeSpec())
    system = machine(20, gpus=2).model_copy(update={"cpu": CpuSpec(optimizer_rate="1 G/s")})
    _, rows = simulate(workload, system, ZeroOffload(), BehaviourSpec())
    assert [{column: row[column] for column in EXCHANGED_BY_HAND} for row in rows] == [EXCHANGED_BY_HAND] * 2


def test_contexts():
    """Every job that may be on the GPU has a context; jobs one after another have one at a time."""
    changed = machine(20).gpu.model_copy(update={"context_memory": 3000})
    system = machine(20).model_copy(update={"gpu": changed})
    jobs = (Job(computing(10_000, 3)), Job(computing(10_000, 4)))
    for compute, taken in (("time_sliced", 6000), ("exclusive", 3000)):
        _, rows = simulate(Workload(jobs, sharing=SharingSpec(compute=compute)), system, BaseUvm(), OWN)
        assert [row[CONTEXT.names[0]] for row in rows] == [taken, taken]
        assert [row["peak_gpu_bytes"] for row in rows] == [3000, 4000]
    _, (row,) = simulate(Workload(jobs[:1]), machine(20), BaseUvm(), OWN)
    assert CONTEXT.names[0] not in row


JOBS_BY_HAND = {
    # Job 1 waits for job 0, which has the same GPU; the third of the three GPUs has a job, the second none.
    "job": [0, 1, 2],
    "gpu": [0, 0, 2],
    "priority": [1, 1, 1],
    "refused": [0, 0, 0],
    "arrival_cycles": [1000, 2000, 3000],
    "start_cycles": [1000, 21_000, 3000],
    "end_cycles": [21_000, 26_000, 11_000],
    "slowdown": [1.0, 24 / 5, 1.0],
    "peak_gpu_bytes_of_all": [3000, 1000, 2000],
    "makespan_cycles": [25_000] * 3,
    "gpu_utilization": [33_000 / 50_000] * 3,
    "total_samples_per_s": [4 * 10**9 / 25_000] * 3,
}


def computing(cycles, pages):
    return trace_of({"w*": pages}, [(cycles, "w", "")])


def test_jobs(tmp_path):
    jobs = []
    for number, (cycles, pages, options) in enumerate(
        [
            (10_000, 3, {"arrival": "1 us", "iterations": 2}),
            (5000, 1, {"arrival": "2 us", "iterations": 1}),
            (8000, 2, {"arrival": "3 us", "iterations": 1, "gpu": 2}),
        ]
    ):
        save_trace(computing(cycles, pages), tmp_path / f"{number}.g10t")
        jobs.append({"trace": str(tmp_path / f"{number}.g10t"), **options})
    system = machine(gpus=3).model_dump(mode="json", exclude_unset=True)
    config = {"workload": {"jobs": jobs}, "system": system, "policies": ["ideal"]}
    table = g10sim.run(config, output=tmp_path / "out").table
    assert table[list(JOBS_BY_HAND)].to_dict("list") == JOBS_BY_HAND


def test_a_refused_job_counts_for_no_work():
    # Job 1 finds 4 of 10 pages free and needs 6.
    jobs = (
        Job(computing(10_000, 6), iterations=2, arrival_cycles=500),
        Job(computing(7000, 6), iterations=1, arrival_cycles=600),
    )
    sharing = SharingSpec(compute="concurrent", admission="refuse")
    _, rows = simulate(Workload(jobs, sharing=sharing), machine(10), BaseUvm(), OWN)
    # Six pages from the SSD take 30,000 cycles, once.
    assert [(row["refused"], row["start_cycles"], row["end_cycles"]) for row in rows] == [
        (0, 500, 50_500),
        (1, 600, 600),
    ]
    assert rows[0]["slowdown"] == 2.5
    assert "slowdown" not in rows[1]
    assert [row["makespan_cycles"] for row in rows] == [50_000] * 2
    assert [row["gpu_utilization"] for row in rows] == [0.4] * 2
    assert [row["total_samples_per_s"] for row in rows] == [40_000] * 2


CELLS_BY_HAND = {
    "cell": [0, 1, 2, 3],
    "name": ["columns"] * 4,
    "model": ["tiny"] * 4,
    "batch_size": [1] * 4,
    "policy": ["ideal", "vdnn_multi"] * 2,
    "seed": [5] * 4,
    "status": ["ok", "unsupported"] * 2,
    "system.host.memory": ["0 B", "0 B", "1 MB", "1 MB"],
}


def test_cells(tmp_path):
    # a and b are alive together, which the design that offloads nothing cannot run in less than four pages.
    kernels = [(1000, "", "a"), (1000, "", "b"), (1000, "a", ""), (1000, "b", "")]
    save_trace(trace_of({"a": 2, "b": 2}, kernels), tmp_path / "one.g10t")
    config = {
        "name": "columns",
        "seed": 5,
        "workload": {"trace": str(tmp_path / "one.g10t")},
        "system": machine(3).model_dump(mode="json", exclude_unset=True),
        "policies": ["ideal", {"name": "vdnn_multi", "ladder": "K0"}],
        "sweep": {"system.host.memory": ["0 B", "1 MB"]},
    }
    table = g10sim.run(config, output=tmp_path / "out").table
    assert table[list(CELLS_BY_HAND)].to_dict("list") == CELLS_BY_HAND
    assert set(table["trace"]) == {str(tmp_path / "one.g10t")}
    assert list(table["message"].fillna("") != "") == [False, True] * 2


def test_tables():
    # w is evicted to host memory while the second kernel computes; the third waits for it and for a.
    trace = trace_of({"w*": 2, "a": 1}, [(10_000, "w", ""), (10_000, "", ""), (10_000, "w", "a")])
    policy = FollowPlan(moves=[(1, 0, HOST)])
    workload, tables = Workload((Job(trace, iterations=1),)), ("kernels", "migrations", "memory")
    records, _ = simulate(workload, machine(4), policy, OWN, tables=tables)
    found = {name: records_table(name, records) for name in TABLES}
    kernels = found["kernels"].to_dict("list")
    waits = {column: kernels.pop(column) for column in list(kernels) if column.startswith("stall_")}
    assert {column: cycles for column, cycles in waits.items() if any(cycles)} == {
        "stall_fault_host_cycles": [0, 0, 4000],
        "stall_fault_flash_cycles": [10_000, 0, 0],
    }
    assert kernels == {
        "job": [0, 0, 0],
        "gpu": [0, 0, 0],
        "iteration": [0, 0, 0],
        "kernel": [0, 1, 2],
        "start": [0, 20_000, 30_000],
        "end": [20_000, 30_000, 44_000],
        "compute_cycles": [10_000] * 3,
        "overlap_cycles": [0, 2000, 0],
        "in_flight_cycles": [10_000, 2000, 4000],
        "in_transfer_pages": [0, 0, 0],
        "host_fault_pages": [0, 0, 2],
        "flash_fault_pages": [2, 0, 0],
        "first_touch_pages": [0, 0, 1],
        "gpu_pages": [2, 0, 2],
        "host_pages": [0, 2, 0],
    }
    assert found["memory"].to_dict("list") == {
        "time": [20_000, 30_000, 44_000],
        "gpu": [0, 0, 0],
        "gpu_bytes": [2000, 0, 2000],
        "host_bytes": [0, 2000, 0],
        "flash_bytes": [0, 0, 0],
    }
    migrations = found["migrations"].drop(columns=["gpu", "job"])
    assert list(migrations.itertuples(index=False, name=None)) == [
        (0, "FLASH", "GPU", "PAGE_FAULT", 0, 10_000, 2000),
        (0, "GPU", "HOST", "PLANNED_EVICTION", 20_000, 22_000, 2000),
        (1, "NONE", "GPU", "PAGE_FAULT", 30_000, 32_000, 1000),
        (0, "HOST", "GPU", "PAGE_FAULT", 30_000, 34_000, 2000),
    ]
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Tables") : text.index("## validation.csv")]
    assert {name for table in (kernels, found["memory"], migrations) for name in table} <= set(
        re.findall(r"`(\w+)`", section)
    )


def test_the_page_defines_these_columns_and_no_others():
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## results.csv") : text.index("## timing.csv")]
    cells = re.findall(r"^\| (`[^|]*|swept keys) \|", section, re.MULTILINE)
    found = [name for cell in cells for name in re.findall(r"`(\w+)`|(swept keys)", cell)]
    more = CONTIGUOUS_BY_HAND, FLASH_BY_HAND, IN_PLACE_BY_HAND, CPU_BY_HAND, EXCHANGED_BY_HAND
    groups = (BY_HAND, BOUND.names, *more, JOBS_BY_HAND, CELLS_BY_HAND)
    known = {name for group in groups for name in group} | {"trace", "message", CONTEXT.names[0]}
    assert {name or "system.host.memory" for name, _ in found} == known


# A page crosses PCIe in 10,000 cycles. The first and the last kernel use a, the one between them b.
PEAK = trace_of({"a": 30, "b": 30}, [(10_000, "", "a"), (1000, "b", ""), (10_000, "a", "")])
SLOW = machine(40, pcie="0.1 GB/s")


class DropsA(FollowPlan):
    """Drops a while b is in use."""

    name = "drops_a"
    requirements = Requirements(addresses="own")

    def plan_job(self, job, system, behaviour):
        return MigrationPlan.ordered([planned(1, 0, NONE, drops=True)])


BOUNDS_BY_HAND = {
    # 20 of 60 pages leave before b is used and return after it; of 8 each way parts may have crossed before.
    "paged": (PEAK, SLOW, BaseUvm(), {"bound_cycles": 120_000 + 1000 + 120_000, "bound_kind": "iteration"}),
    "fits": (PEAK, machine(60), BaseUvm(), {"bound_cycles": 21_000, "bound_kind": "iteration"}),
    "unlimited": (PEAK, SLOW, Ideal(), {"bound_kind": "none: GPU memory is unlimited"}),
    "contiguous": (
        PEAK,
        machine(60),
        Copies(),
        {"bound_kind": "none: GPU memory is contiguous; bounds hold for paged memory"},
    ),
    "dropped": (
        PEAK,
        SLOW,
        DropsA(),
        {"bound_kind": "none: tensors were dropped; their bound is that of g10sim bound --recompute"},
    ),
}


@pytest.mark.parametrize("case", BOUNDS_BY_HAND)
def test_bounds(case):
    trace, system, policy, expected = BOUNDS_BY_HAND[case]
    _check_bound(Job(trace, iterations=1), system, policy, expected)


def test_the_bound_of_steady_iterations():
    expected = BOUNDS_BY_HAND["paged"][-1] | {"bound_kind": "steady"}
    _check_bound(Job(PEAK, iterations=4), SLOW, BaseUvm(), expected)


def _check_bound(job, system, policy, expected):
    _, (row,) = simulate(Workload((job,)), system, policy, BehaviourSpec())
    found = {column: row[column] for column in BOUND.names if column in row}
    if "bound_cycles" in expected:
        assert found.pop("of_bound") == expected["bound_cycles"] / row["exec_cycles"] <= 1
    assert found == expected
