import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import g10sim
from g10sim.config.document import load_document
from g10sim.config.load import load_run, run_config
from g10sim.errors import ConfigError
from g10sim.experiment.cells import CellResult
from g10sim.experiment.run import slow_policies
from g10sim.experiment.store import CellStore
from g10sim.results.columns import BOUND, CPU, JOBS, metric_columns
from g10sim.results.reading import read_results, read_table
from g10sim.trace.format import save_trace

PLUGINS = "experiment.plugins"
CXL = {"name": "cxl", "kind": "memory", "capacity": "1 MiB"}


def plugin(name, **parameters):
    return {"name": f"{PLUGINS}:{name}", **parameters}


def plans(log):
    return log.read_text().count("planned") if log.exists() else 0


@pytest.mark.slow
def test_results(config, tmp_path):
    swept = {**config, "sweep": {"system.host.memory": ["0 B", "4 MiB"]}}
    outcome = g10sim.run(swept, output=tmp_path / "out")
    assert (outcome.reused, outcome.failures) == (0, [])
    table = read_results(tmp_path / "out")
    first = ["cell", "name", "trace", "model", "batch_size", "policy", "system.host.memory", "seed"]
    more = ["status", "message", "system.host.memory_bytes"]
    assert list(table.columns) == [*first, *more, *metric_columns(), *BOUND.names, *CPU.names]
    assert list(table["cell"]) == [0, 1, 2, 3, 4, 5]
    assert list(table["policy"]) == ["ideal", "base_uvm", "deepum"] * 2
    assert list(table["system.host.memory"]) == ["0 B"] * 3 + ["4 MiB"] * 3
    assert list(table["system.host.memory_bytes"]) == [0] * 3 + [2**22] * 3
    assert set(table["status"]) == {"ok"}
    assert (table.loc[table["policy"] == "ideal", "performance"] == 1.0).all()
    assert table.loc[1, "exec_cycles"] > table.loc[4, "exec_cycles"] > table.loc[0, "exec_cycles"]
    metrics = list(metric_columns())
    pd.testing.assert_frame_equal(outcome.table[metrics], table[metrics], check_dtype=False)


def test_swept_quantities_are_numbers_in_the_unit_of_their_column(config, tmp_path):
    sweep = {
        "system.pcie.bandwidth": ["12 GB/s", "1 GiB/s"],
        "system.page_fault.latency": ["20 us", "1 ms"],
        "policies.2.look_ahead": [4, 8],
    }
    outcome = g10sim.run({**config, "sweep": sweep}, output=tmp_path / "out")
    assert not outcome.failures
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert set(table["system.pcie.bandwidth_bytes_per_s"]) == {12_000_000_000, 2**30}
    assert set(table["system.page_fault.latency_s"]) == {20e-6, 1e-3}
    assert set(table["policies.2.look_ahead"].dropna()) == {4, 8}
    assert [name for name in table if name.startswith("policies.")] == ["policies.2.look_ahead"]


def test_a_cell_gives_what_simulating_it_gives(config, trace, tmp_path):
    outcome = g10sim.run({**config, "policies": ["deepum"]}, output=tmp_path / "out")
    direct = g10sim.simulate(trace, config["system"], "deepum")
    assert {
        key: outcome.rows[0].get(key) for key in (*metric_columns(), *CPU.names, *BOUND.names)
    } == direct.summary


def _not_steady(outcome):
    """Warnings of cells that did not become steady; there are others, of the time that passes."""
    return [warning for warning in outcome.warnings if warning.startswith("not steady")]


@pytest.mark.slow
def test_cells_that_do_not_become_steady_are_named(config, tmp_path):
    own = {"addresses": "own", "recency": "use"}
    spoilt = {**config, "policies": ["ideal", plugin("Alternates"), "base_uvm"], "compat": own}
    outcome = g10sim.run(spoilt, output=tmp_path / "out")
    trace = Path(config["workload"]["trace"]).name
    named = [f"not steady after 12 iterations: cell 1 ({outcome.rows[1]['trace']}, {PLUGINS}:Alternates)"]
    assert _not_steady(outcome) == named
    assert trace in named[0]
    table = read_results(tmp_path / "out")
    assert list(table["steady"]) == [True, False, True]
    assert list(table["iterations"]) == [2, 12, 3]
    assert _not_steady(g10sim.run(spoilt, output=tmp_path / "out")) == named
    # A number that the user gave is the user's business, and one iteration has nothing to agree with.
    for iterations, steady in ((12, [True, False, True]), (2, [True, False, False]), (1, [None] * 3)):
        wanted = {**spoilt, "workload": {**config["workload"], "iterations": iterations}}
        again = g10sim.run(wanted, output=tmp_path / str(iterations))
        assert _not_steady(again) == []
        assert [row.get("steady") for row in again.rows] == steady
        read = read_results(tmp_path / str(iterations))
        assert [None if pd.isna(found) else found for found in read["steady"]] == steady


def test_as_published_two_iterations_are_run(config, tmp_path):
    published = {**config, "compat": "gpg"}
    number = {**published, "workload": {**config["workload"], "iterations": 2}}
    first, second = (g10sim.run(c, output=tmp_path / str(n)) for n, c in enumerate((published, number)))
    assert first.rows == second.rows
    assert {row["iterations"] for row in first.rows} == {2}


@pytest.mark.slow
def test_one_worker_or_two_give_the_same_bytes(config, tmp_path):
    swept = {
        **config,
        "sweep": {"system.host.memory": ["0 B", "4 MiB"]},
        "record": ["kernels", "migrations", "memory", "timeline"],
    }
    files = ("results.csv", "kernels.parquet", "migrations.parquet", "memory.parquet", "timeline/3.json.gz")
    g10sim.run(swept, output=tmp_path / "one", workers=1)
    g10sim.run(swept, output=tmp_path / "two", workers=2)
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    kernels = pd.read_parquet(tmp_path / "one" / "kernels.parquet")
    assert list(kernels.columns[:2]) == ["cell", "job"]
    assert list(kernels["cell"].unique()) == [0, 1, 2, 3, 4, 5]
    results = read_results(tmp_path / "one").set_index("cell")
    last = kernels[kernels["iteration"] == kernels["cell"].map(results["iterations"]) - 1].groupby("cell")
    assert (last["end"].max() - last["start"].min()).equals(results["exec_cycles"])


@pytest.mark.parametrize(
    "sweep",
    [
        {"system.gpu.memory": ["8 MiB", "12 MiB"]},
        {"system.ssd": [{"read_bandwidth": "1 GB/s"}, {"write_bandwidth": "1 GB/s"}]},
        {"system.preset": ["h100-80g-pcie5-nvme", "a100-80g-pcie4-nvme"]},
    ],
)
def test_the_configuration_of_a_sweep_gives_the_same_cells_again(config, tmp_path, sweep):
    system = {"preset": "h100-80g-pcie5-nvme", "host": {"memory": "4 MiB"}}
    g10sim.run({**config, "system": system, "policies": ["base_uvm"], "sweep": sweep}, output=tmp_path)
    assert g10sim.run(tmp_path / "config.yaml", output=tmp_path).reused == 2


def test_what_is_written_beside_the_results(config, tmp_path):
    directory = tmp_path / "out"
    g10sim.run(config, output=directory)
    resolved = load_document(directory / "config.yaml").data
    assert resolved["system"]["gpu"]["memory"] == "8 MiB"
    assert resolved["system"]["ssd"]["read_bandwidth"] == "3.2 GB/s"
    assert resolved["compat"]["transfers"] == "fluid"
    provenance = json.loads((directory / "provenance.json").read_text())
    assert provenance["g10sim"] == g10sim.__version__
    assert provenance["seed"] == 0
    (trace,) = provenance["traces"].values()
    assert len(trace["sha256"]) == 64
    timing = pd.read_csv(directory / "timing.csv")
    seconds = ["wall_seconds", "cpu_seconds", "policy_seconds", "planning_cpu_seconds"]
    assert list(timing.columns) == ["cell", "key", *seconds, "peak_memory_bytes", "worker"]
    assert (timing["peak_memory_bytes"] > 10 * 2**20).all()
    assert not list(directory.rglob("*.tmp"))
    again = g10sim.run(directory / "config.yaml", output=directory)
    assert again.reused == 3


def test_tables_of_cells_have_the_columns_of_all_of_them(config, trace, tmp_path):
    numbered = tuple(replace(one, micro_batch=1 + one.id % 2) for one in trace.kernels)
    save_trace(replace(trace, kernels=numbered), tmp_path / "batches.g10t")
    workload = {"trace": [config["workload"]["trace"], str(tmp_path / "batches.g10t")]}
    tiers = [["host", "ssd"], ["host", CXL, "ssd"]]
    swept = {"workload": workload, "sweep": {"system.tiers": tiers}, "policies": ["base_uvm"]}
    g10sim.run({**config, **swept, "record": ["kernels", "memory"]}, output=tmp_path / "out")
    kernels, memory = (read_table(tmp_path / "out", name) for name in ("kernels", "memory"))
    assert kernels.groupby("cell")["micro_batch"].max().tolist() == [0, 0, 2, 2]
    assert (memory.groupby("cell")["cxl_bytes"].max() > 0).tolist() == [False, True, False, True]
    assert set(kernels.dtypes) == {np.dtype("int64")}


def test_finished_cells_are_not_run_again(config, tmp_path):
    log, directory = tmp_path / "log", tmp_path / "out"
    config["policies"] = ["ideal", plugin("Slow", log=str(log))]
    g10sim.run(config, output=directory)
    before = {name: (directory / name).read_bytes() for name in ("results.csv", "timing.csv")}
    again = g10sim.run(config, output=directory)
    assert (again.reused, plans(log)) == (2, 1)
    assert before == {name: (directory / name).read_bytes() for name in before}
    more = g10sim.run({**config, "sweep": {"seed": [0, 1]}}, output=directory)
    assert (more.reused, plans(log)) == (2, 2)
    g10sim.run(config, output=directory, force=True)
    assert plans(log) == 3
    (directory / "cells" / f"{again.cells[1].key}.json").write_text('{"status": "ok"')
    assert g10sim.run(config, output=directory).reused == 1
    assert plans(log) == 4
    assert (directory / "results.csv").read_bytes() == before["results.csv"]


def test_a_missing_table_runs_its_cell_again(config, tmp_path):
    config.update(policies=["ideal"], record=["kernels"])
    outcome = g10sim.run(config, output=tmp_path)
    (tmp_path / "cells" / f"{outcome.cells[0].key}.kernels.parquet").unlink()
    assert g10sim.run(config, output=tmp_path).reused == 0
    assert g10sim.run(config, output=tmp_path).reused == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_dies_takes_no_other_with_it(config, tmp_path, workers):
    config["policies"] = [plugin("Killed"), "ideal", plugin("Leaves"), plugin("Raises"), "base_uvm"]
    outcome = g10sim.run(config, output=tmp_path / "out", workers=workers)
    table = read_results(tmp_path / "out")
    assert list(table["status"]) == ["failed", "ok", "failed", "failed", "ok"]
    messages = [message for _, message in outcome.failures]
    assert messages[0] == "the worker process was killed by signal SIGKILL"
    assert messages[1] == "the worker process ended with exit code 7"
    assert "raises" in messages[2]
    assert "KeyError" in messages[2]
    assert list(table["exec_cycles"].isna()) == [True, False, True, True, False]
    assert (table["model"] == "chain8").all()


def test_failures_are_tried_again_and_verdicts_are_kept(config, tmp_path):
    marker = tmp_path / "marker"
    config["policies"] = [plugin("Flaky", marker=str(marker)), plugin("Unsupported")]
    first = g10sim.run(config, output=tmp_path / "out")
    assert [row["status"] for row in first.rows] == ["failed", "unsupported"]
    assert first.rows[1]["message"] == "needs a bigger machine"
    marker.touch()
    second = g10sim.run(config, output=tmp_path / "out")
    assert [row["status"] for row in second.rows] == ["ok", "unsupported"]
    assert second.reused == 1
    words = {"results": str(tmp_path / "out"), "cells": "2", "reused": "0"}
    assert first.display() == {**words, "failed": "1"}
    assert second.display() == {**words, "reused": "1"}


def test_several_jobs_give_one_row_each(config, trace_file, tmp_path):
    config["system"] = {**config["system"], "gpu": {"memory": "8 MiB", "count": 2}}
    config["workload"] = {
        "jobs": [
            {"trace": str(trace_file), "gpu": 1, "iterations": 3},
            {"trace": str(trace_file), "arrival": "1 ms"},
        ]
    }
    outcome = g10sim.run({**config, "policies": ["ideal", "base_uvm"]}, output=tmp_path / "out")
    table = outcome.table
    assert tuple(table.columns[-len(JOBS.names) :]) == JOBS.names
    assert list(table["priority"]) == [1] * 4
    assert list(table["refused"]) == [0] * 4
    assert (table["makespan_cycles"] == table.groupby("cell")["end_cycles"].transform("max")).all()
    assert list(zip(table["cell"], table["job"], table["gpu"], strict=True)) == [
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 1, 0),
    ]
    assert run_config(load_run(tmp_path / "out" / "config.yaml")).workload.jobs[1].arrival == 10**9


def test_outputs_that_cannot_be_written_are_refused_before_anything_runs(config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"output .*file/out: cannot be written: Not a directory; allowed"):
        g10sim.run(config, output=tmp_path / "file" / "out")


def test_a_directory_that_another_run_writes_is_refused_until_it_ends(config, tmp_path):
    first = CellStore(tmp_path / "out")
    first.prepare()
    with first.alone(), pytest.raises(ConfigError, match="is being written by another run; allowed: another"):
        g10sim.run(config, output=tmp_path / "out")
    assert not (tmp_path / "out" / "results.csv").exists()
    assert g10sim.run(config, output=tmp_path / "out").rows


def test_results_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"results.csv: cannot be read: .*allowed: a directory written by"):
        read_results(tmp_path)


def test_the_output_of_the_configuration_and_its_default(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config["policies"] = ["ideal"]
    assert g10sim.run(config).directory == Path("results/small")
    assert g10sim.run({**config, "output": "elsewhere"}).directory == Path("elsewhere")
    assert (tmp_path / "elsewhere" / "results.csv").is_file()


@pytest.mark.parametrize(
    ("wall", "policy", "plug_in", "warned"),
    [(4.0, 3.0, True, True), (4.0, 1.0, True, False), (4.0, 3.0, False, False), (0.4, 0.3, True, False)],
)
def test_plugins_that_take_most_of_the_time_are_warned_of(wall, policy, plug_in, warned):
    timing = {"wall_seconds": wall, "policy_seconds": policy}
    origin = {"plug_in": {"mine": {}} if plug_in else {}}
    result = CellResult("ok", "", (), timing, origin)
    found = list(slow_policies([SimpleNamespace(label="mine:Mine")], [result]))
    assert [text.partition(" of the time")[0] for text in found] == ["policy mine:Mine took 75%"] * warned
