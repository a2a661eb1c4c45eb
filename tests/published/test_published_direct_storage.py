"""The published results of the designs that copy whole tensors."""

import csv
import gzip
import math

import numpy as np
import pytest

from g10sim.analysis.timeline import kernel_starts
from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system
from g10sim.errors import UnsupportedError
from g10sim.experiment.execution import simulate
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.registry import create, find
from g10sim.reproduce.validation import PUBLISHED_SYSTEM, read_published, trace_directory
from g10sim.trace.workload import Job, Workload

DIRECT = ["flashneuron", "g10_gds", "g10_host"]


@pytest.fixture(scope="session")
def outcomes(published):
    """A row of results (None: unsupported) for every published row of the designs, and the row itself."""
    rows = read_published(published, policies=DIRECT)
    traces, done, found = {}, {}, []
    for row in rows:
        key = (*row.trace, row.texts["policy"], row.texts["ssd_gbps"], row.texts["host_gb"])
        if key not in done:
            if row.trace not in traces:
                traces[row.trace] = import_gpg(trace_directory(published, row), *row.trace)
            done[key] = outcome(traces[row.trace], row.system(), plan_of(published, row))
        found.append((row, done[key]))
    return found


def plan_of(published, row):
    policy = find(row.texts["policy"])
    guide = policy.reference_plan and trace_directory(published, row) / policy.reference_plan
    return policy.with_reference_plan(guide) if guide and guide.is_file() else create(policy.name)


def outcome(trace, system, policy):
    try:
        return simulate(Workload((Job(trace),)), system, policy, GPG)[1][0]
    except UnsupportedError:
        return None


def errors(outcomes, policy, *metrics):
    """Relative errors of the rows of a policy that both sides support."""
    return [
        row.relative_error(row.simulated(result, row.system()))
        for row, result in outcomes
        if row.texts["policy"] == policy and row.texts["metric"] in metrics and result is not None
    ]


def test_what_is_supported_is_what_the_published_simulator_supports(outcomes):
    for row, result in outcomes:
        assert math.isinf(row.value) == (result is None), row.texts
    unsupported = {row.trace for row, result in outcomes if result is None}
    assert unsupported == {
        ("BERT_Base", 768),
        ("BERT_Base", 1024),
        ("Inceptionv3", 1536),
        ("Inceptionv3", 1792),
    }


def test_flashneuron_in_a_fixed_order(outcomes):
    found = np.abs(errors(outcomes, "flashneuron", "exec_cycles"))
    assert len(found) == 29
    assert np.median(found) < 1e-4
    assert found.max() < 0.004
    assert (found == 0).sum() >= 10


def test_flashneuron_moves_exactly_the_published_pages(outcomes):
    pages = ["ssd_to_gpu_pages", "gpu_to_ssd_pages", "host_to_gpu_pages", "gpu_to_host_pages"]
    found = errors(outcomes, "flashneuron", *pages)
    assert len(found) == 8
    assert found == [0.0] * 8


def test_flashneuron_splits_its_time_as_published(outcomes):
    found = errors(outcomes, "flashneuron", "compute_ms", "stall_ms", "overlap_ms")
    assert len(found) == 6
    assert np.abs(found).max() < 0.012


@pytest.mark.parametrize("policy", ["g10_gds", "g10_host"])
def test_published_plans_take_the_published_time_to_the_digit(outcomes, policy, published):
    found = errors(outcomes, policy, "exec_cycles")
    assert len(found) == 3
    assert found == [0.0] * 3


@pytest.mark.parametrize(("policy", "milliseconds"), [("g10_gds", 6576.22), ("g10_host", 6233.65)])
def test_plans_whose_evictions_lag_behind_their_prefetches_do_too(published, policy, milliseconds):
    guide = published / "open" / "VIT-1280" / find(policy).reference_plan
    trace = import_gpg(published / "traces" / "VIT" / "1280", "VIT", 1280)
    result = outcome(trace, load_system(PUBLISHED_SYSTEM), find(policy).with_reference_plan(guide))
    assert result["exec_cycles"] == round(milliseconds * 1_200_000)


@pytest.mark.parametrize("policy", ["g10_gds", "g10_host"])
@pytest.mark.parametrize(("model", "batch"), [("BERT_Base", 256), ("Inceptionv3", 1536)])
def test_own_plans_are_within_a_percent_or_faster(published, policy, model, batch):
    system = load_system(PUBLISHED_SYSTEM)
    trace = import_gpg(published / "traces" / model / str(batch), model, batch)
    result = outcome(trace, system, create(policy))
    rows = read_published(published, figures=["fig11"], models=[model], policies=[policy])
    assert -0.02 < rows[0].relative_error(result["exec_cycles"]) < 0.01


def test_flashneuron_stalls_where_the_published_simulator_does(published):
    with gzip.open(published / "kernel_log" / "BERT_Base-flashneuron.txt.gz", "rt") as file:
        slowdowns = [float(value) for (value,) in csv.reader(file)]
    trace = import_gpg(published / "traces" / "BERT_Base" / "256", "BERT_Base", 256)
    system = load_system(PUBLISHED_SYSTEM)
    workload = Workload((Job(trace),))
    records, _ = simulate(workload, system, create("flashneuron"), GPG, tables=("kernels",), check=True)
    durations = np.diff(kernel_starts(trace, system.gpu.clock))
    ours = [(kernel.end - kernel.start) / durations[kernel.kernel] - 1 for kernel in records.kernels]
    assert len(ours) == len(slowdowns) == 1369
    # Where offloads that start together finish, and what the largest hole is, depends on a pointer order.
    agree = np.isclose(ours, slowdowns, rtol=1e-4, atol=1e-4)
    assert agree[:400].all()
    assert (~agree).sum() <= 12
