"""Kernel by kernel, page by page: the published simulator's own log and tables."""

import csv
import gzip
import re

import pytest

from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.registry import create
from g10sim.reproduce.validation import PUBLISHED_SYSTEM
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

LINE = re.compile(r"(\d+)\+(\d+):\[(\d+),(\d+)\]\((\d+),\d+\)<(\d+),(\d+),(\d+),(\d+)>\((\d+),(\d+)\)")
# Iteration, kernel, start, end, duration, pages in transfer, host, flash and first-touch faults.
WHAT = ["iteration", "kernel", "start", "end", "duration", "in_transfer", "host", "flash", "first_touch"]


@pytest.fixture(scope="session")
def simulated(published):
    """Records of (model, batch size, policy) on the published system, each simulated once."""
    done = {}

    def simulate(model, batch, policy):
        key = model, batch, policy
        if key not in done:
            directory = published / "traces" / model / str(batch)
            spec = {"name": policy}
            if policy == "g10":
                spec = {"name": "replay", "plan_file": str(directory / "prefetch_guide.config.gz")}
            workload = Workload((Job(import_gpg(directory)),))
            system = load_system(PUBLISHED_SYSTEM)
            done[key] = run(workload, system, create(spec), GPG, record=("kernels",))
        return done[key]

    return simulate


@pytest.fixture(scope="session")
def table(published):
    """Published values by (figure, metric, model, batch, policy) at the default system."""
    with (published / "published.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if default_system(row)]
    return {
        (row["figure"], row["metric"], row["model"], int(row["batch"]), row["policy"]): float(row["value"])
        for row in rows
    }


def default_system(row):
    return (row["host_gb"], row["ssd_gbps"], row["pcie_gbps"], row["variation"]) == (
        "128",
        "3.2",
        "15.754",
        "0.0",
    )


def reported(records):
    """The faster iteration, which the tables report."""
    return min(records.iterations, key=lambda iteration: iteration.end - iteration.start)


def log_of(published, policy):
    path = published / "kernel_log" / f"BERT_Base-{policy}.txt.gz"
    with gzip.open(path, "rt") as lines:
        found = [LINE.match(line) for line in lines]
    return [tuple(map(int, match.groups())) for match in found if match]


@pytest.mark.parametrize("policy", ["base_uvm", "g10"])
def test_every_kernel_starts_ends_and_faults_as_published(published, simulated, policy):
    log = log_of(published, policy)
    records = simulated("BERT_Base", 256, policy)
    assert len(log) == len(records.kernels) == 2 * 1369
    for line, record in zip(log, records.kernels, strict=True):
        ours = (
            record.iteration,
            record.kernel,
            record.start,
            record.end,
            record.compute_cycles,
            record.in_transfer_pages,
            record.fault_pages["host_fault_pages"],
            record.fault_pages["flash_fault_pages"],
            record.first_touch_pages,
        )
        assert dict(zip(WHAT, ours, strict=True)) == dict(zip(WHAT, line[:9], strict=True))


def test_base_uvm_fills_host_and_gpu_memory_as_published(published, simulated):
    # Planned moves change memory while kernels run, and the log does not read it at their end.
    log = log_of(published, "base_uvm")
    records = simulated("BERT_Base", 256, "base_uvm")
    assert [record.tier_pages["host_pages"] for record in records.kernels] == [line[9] for line in log]
    assert [record.gpu_pages for record in records.kernels] == [line[10] for line in log]


@pytest.mark.parametrize("policy", ["base_uvm", "g10"])
@pytest.mark.parametrize(
    ("metric", "field"),
    [
        ("ssd_to_gpu_pages", "ssd_to_gpu_bytes"),
        ("gpu_to_ssd_pages", "gpu_to_ssd_bytes"),
        ("host_to_gpu_pages", "host_to_gpu_bytes"),
        ("gpu_to_host_pages", "gpu_to_host_bytes"),
    ],
)
def test_traffic_is_that_of_figure_14(simulated, table, policy, metric, field):
    iteration = reported(simulated("BERT_Base", 256, policy))
    assert iteration.traffic[field] / 4096 == table["fig14", metric, "BERT_Base", 256, policy]


@pytest.mark.parametrize("policy", ["base_uvm", "g10"])
@pytest.mark.parametrize(
    ("model", "batch"),
    [("BERT_Base", 128), ("BERT_Base", 256), ("BERT_Base", 512), ("Inceptionv3", 512), ("SENet154", 256)],
)
def test_iteration_takes_exactly_the_published_cycles(simulated, table, model, batch, policy):
    iteration = reported(simulated(model, batch, policy))
    assert iteration.end - iteration.start == table["fig15", "exec_cycles", model, batch, policy]


@pytest.mark.parametrize(("model", "batch"), [("BERT_Base", 256), ("Inceptionv3", 512), ("SENet154", 256)])
def test_ideal_is_exact(simulated, table, model, batch):
    iteration = reported(simulated(model, batch, "ideal"))
    assert iteration.end - iteration.start == table["fig15", "exec_cycles", model, batch, "ideal"]


@pytest.mark.parametrize(
    ("model", "batch", "tolerance"), [("BERT_Base", 256, 2e-3), ("Inceptionv3", 512, 1e-6)]
)
def test_deepum_is_close(simulated, table, model, batch, tolerance):
    # The order of its prefetches within a kernel is that of addresses, which no trace tells.
    iteration = reported(simulated(model, batch, "deepum"))
    published = table["fig15", "exec_cycles", model, batch, "deepum"]
    assert iteration.end - iteration.start == pytest.approx(published, rel=tolerance)
