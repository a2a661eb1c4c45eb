"""Results that somebody else made: no code is imported unasked, and a wrong file gets one line."""

import json
import sys

import pandas as pd
import pytest
import yaml

import g10sim
from g10sim.config.document import Document
from g10sim.errors import ConfigError
from g10sim.experiment.run import run_experiment
from g10sim.experiment.store import CellStore
from g10sim.experiment.stored_cells import open_cell, open_cells
from g10sim.files import file_hash, sealed

from .changing import InThisProcess

POLICY = """\
from pathlib import Path
from g10sim.policies.interface import Policy

(Path(__file__).parent / "executed").write_text("")


class Theirs(Policy):
    name = "theirs"
"""


def run(config, output):
    return run_experiment(Document(config, ""), output=output, executor=InThisProcess())


@pytest.fixture
def theirs(config, tmp_path, monkeypatch):
    """A directory of results that names a policy of another directory."""
    (tmp_path / "strange_policy.py").write_text(POLICY)
    monkeypatch.syspath_prepend(tmp_path)
    run(
        {**config, "policies": ["base_uvm", "strange_policy:Theirs"], "record": ["kernels"]}, tmp_path / "out"
    )
    del sys.modules["strange_policy"]
    (tmp_path / "executed").unlink()
    yield tmp_path / "out"
    sys.modules.pop("strange_policy", None)


def test_code_that_results_name_is_imported_only_with_trust(theirs):
    executed = theirs.parent / "executed"
    assert open_cell(theirs, 0).row["policy"] == "base_uvm"
    assert [opened.row["cell"] for opened in open_cells(theirs, 10)] == [0]
    with pytest.raises(ConfigError, match=r"strange_policy:Theirs is code that would be imported.*--trust"):
        open_cell(theirs, 1)
    assert not executed.exists()
    assert open_cell(theirs, 1, trust=True).row["policy"] == "strange_policy:Theirs"
    assert executed.exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found.update(cells="x"), "cells: found 'x'"),
        (lambda found: found["cells"][0].pop("key"), r"cells\.0\.key: found"),
        (lambda found: found["cells"][0].update(cell=-1), r"cells\.0\.cell: found -1"),
        (lambda found: found.update(files=[1]), r"files: found \[1\]"),
        (lambda found: found["traces"].update(a=None), r"traces\.a: found None"),
        (lambda found: found.update(traces={"a": {"path": 1, "sha256": ""}}), r"traces\.a\.path: found 1"),
    ],
)
def test_a_provenance_of_another_form_is_refused(config, tmp_path, change, said):
    run({**config, "policies": ["ideal"]}, tmp_path)
    path = tmp_path / "provenance.json"
    found = json.loads(path.read_text())
    del found["sha256"]
    change(found)
    path.write_text(json.dumps(sealed(found)))
    with pytest.raises(ConfigError, match=said):
        open_cell(tmp_path)


@pytest.mark.parametrize(
    ("workload", "said"),
    [({"jobs": [3]}, r"workload\.jobs\.0: found 3"), ({"jobs": 5}, r"workload\.jobs: found 5")],
)
def test_a_configuration_of_another_form_is_refused(config, tmp_path, workload, said):
    run({**config, "policies": ["ideal"]}, tmp_path)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**written, "workload": workload}))
    path = tmp_path / "provenance.json"
    found = json.loads(path.read_text())
    del found["sha256"], found["files"]
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=said):
        open_cell(tmp_path)


def reseal(directory, name):
    path = directory / "provenance.json"
    found = json.loads(path.read_text())
    del found["sha256"]
    found["files"][name] = file_hash(directory / name)
    path.write_text(json.dumps(sealed(found)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.drop(columns="exec_cycles"), "no column 'exec_cycles'"),
        (lambda table: table.drop(columns="name"), "no column 'name'"),
        (lambda table: table.assign(exec_ms="fast"), "text in column 'exec_ms'"),
        (lambda table: table.assign(exec_cycles=None), "in column 'exec_cycles'"),
        (lambda table: table.assign(cell=0.5), "no whole numbers"),
        (lambda table: table.assign(status="great"), "status: found 'great'"),
        (lambda table: table.assign(policy=3), "no text in column 'policy'"),
    ],
)
def test_results_of_another_form_are_refused(config, tmp_path, change, said):
    run({**config, "policies": ["ideal"]}, tmp_path)
    change(pd.read_csv(tmp_path / "results.csv")).to_csv(tmp_path / "results.csv", index=False)
    reseal(tmp_path, "results.csv")
    with pytest.raises(ConfigError, match=said):
        open_cell(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("kernels", lambda table: table.assign(kernel=1000), "kernel 1000 of job 0"),
        ("kernels", lambda table: table.assign(job=7), "of job 7"),
        ("kernels", lambda table: table.drop(columns="start"), "no column 'start'"),
        ("migrations", lambda table: table.assign(tensor=-1), "whole numbers from 0 in column 'tensor'"),
        ("migrations", lambda table: table.assign(source="MOON"), "source: found 'MOON'"),
        ("migrations", lambda table: table.assign(target=None), "no text in column 'target'"),
    ],
)
def test_tables_of_another_form_are_refused(config, tmp_path, name, change, said):
    run({**config, "policies": ["base_uvm"], "record": ["kernels", "migrations"]}, tmp_path)
    path = tmp_path / f"{name}.parquet"
    table = pd.read_parquet(path)
    changed = change(table)
    write_like(changed, path)
    reseal(tmp_path, path.name)
    with pytest.raises(ConfigError, match=said):
        open_cell(tmp_path)


def write_like(table, path):
    """Write a table with the keys of cells that the file has carried."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    carried = pq.read_schema(path).metadata
    kept = {key: value for key, value in carried.items() if not key.startswith((b"pandas", b"ARROW"))}
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(kept), path)


def test_the_lock_holds_until_tables_are_written(config, tmp_path, monkeypatch):
    seen = []

    def merge(self, table, cells, directory):
        with pytest.raises(ConfigError, match="is being written by another run"), CellStore(tmp_path).alone():
            pass
        seen.append(table)
        return real(self, table, cells, directory)

    real = CellStore.merge_table
    monkeypatch.setattr(CellStore, "merge_table", merge)
    run({**config, "policies": ["ideal"], "record": ["kernels"]}, tmp_path)
    assert seen == ["kernels"]
    with CellStore(tmp_path).alone():
        pass


@pytest.mark.parametrize("raised", ["KeyboardInterrupt('mine')", "BaseException('odd')", "SystemExit(3)"])
def test_whatever_a_plug_in_raises_is_a_failure_with_its_line(config, tmp_path, monkeypatch, raised):
    lines = [
        "from g10sim.policies.interface import Policy",
        "class Mine(Policy):",
        "    name = 'mine'",
    ]
    lines += ["    def on_kernel_start(self, view):", f"        raise {raised}", ""]
    (tmp_path / "raising_policy.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run({**config, "policies": ["raising_policy:Mine"]}, tmp_path / "out")
    ((_, message),) = outcome.failures
    assert f"{raised.partition('(')[0]}: " in message
    assert "raising_policy.py, line 5, in on_kernel_start" in message
    sys.modules.pop("raising_policy", None)


def test_tables_that_were_not_recorded_are_refused(trace, config):
    result = g10sim.simulate(trace, config["system"], "g10", record="kernels")
    assert len(result.kernels)
    with pytest.raises(ConfigError, match="migrations: was not recorded; allowed after"):
        _ = result.migrations
    with pytest.raises(ConfigError, match="record: found True; allowed: a list of summary"):
        g10sim.simulate(trace, config["system"], "g10", record=True)
