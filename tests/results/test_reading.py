"""Directories of results: what was not written by a run is refused, and cells and kernels are found."""

import json

import pandas as pd
import pyarrow as pa
import pytest

from g10sim.errors import ConfigError
from g10sim.files import bytes_hash, sealed
from g10sim.results.columns import metric_columns
from g10sim.results.legends import designs, legend, policy_labels
from g10sim.results.reading import (
    KEYS,
    TableFile,
    of_cell,
    read_provenance,
    read_results,
    read_sizing,
    read_table,
    reported_kernels,
    row_of_cell,
    seconds_per_cycle,
)
from g10sim.results.seeds import CASES, range_lines
from g10sim.results.written import keys_of, write_keyed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kernel,start\n0,1\n", "found no column 'cell'"),
        ("cell,trace,policy,status,exec_cycles\n0,t,p,ok,fast\n", "found text in column 'exec_cycles'"),
    ],
)
def test_a_file_of_something_else_is_no_result(tmp_path, text, found):
    (tmp_path / "results.csv").write_text(text)
    with pytest.raises(ConfigError, match=f"results.csv: {found}; allowed: a file written by 'run'"):
        read_results(tmp_path)


def test_an_unknown_status_is_refused(tmp_path):
    (tmp_path / "results.csv").write_text("cell,trace,policy,status\n0,t,p,done\n")
    with pytest.raises(ConfigError, match="status: found 'done'; allowed: ok, unsupported, failed"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"traces": {"t": 5}}, "traces.t: found 5"),
        ({"traces": {}, "cells": [{"cell": -1, "key": "a"}]}, "cells.0.cell: found -1"),
    ],
)
def test_a_description_of_another_form_is_refused(tmp_path, found, words):
    (tmp_path / "provenance.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=f"provenance.json: {words}"):
        read_provenance(tmp_path)


def test_cells_without_cases_have_no_ranges(tmp_path):
    assert range_lines(tmp_path, 0) == []
    table = tmp_path / CASES
    table.write_text("cell,case,exec_ms,performance\n0,0,1.0,1.0\n")
    described = {"traces": {}, "files": {table.name: bytes_hash(table.read_bytes())}}
    (tmp_path / "provenance.json").write_text(json.dumps(described))
    assert range_lines(tmp_path, 1) == []


def test_a_run_of_which_nothing_succeeded_can_be_read(tmp_path):
    (tmp_path / "results.csv").write_text("cell,trace,policy,status,exec_cycles\n0,t,p,failed,\n")
    assert list(read_results(tmp_path)["status"]) == ["failed"]


def test_a_table_has_the_rows_of_cells_that_are_in_the_results(tmp_path):
    path = tmp_path / "memory.parquet"
    columns = {"time": [0, 5, 0, 0], "gpu": [0] * 4, "gpu_bytes": [7, 8, 7, 9]}
    table = pa.table({"cell": [0, 0, 1, 2], **columns})
    write_keyed(table, {"0": "a", "1": "before", "2": "c"}, path)
    cells = [{"cell": 0, "key": "a"}, {"cell": 1, "key": "b"}, {"cell": 2, "key": "c"}]
    described = {"traces": {}, "files": {path.name: bytes_hash(path.read_bytes())}, "cells": cells}
    (tmp_path / "provenance.json").write_text(json.dumps(described))
    found = read_table(tmp_path, "memory")
    assert found["cell"].tolist() == [0, 0, 2]
    assert found["gpu_bytes"].tolist() == [7, 8, 9]
    assert found.index.tolist() == [0, 1, 2]
    assert found.attrs[KEYS] == {0: "a", 2: "c"}


def test_a_table_of_one_cell_can_be_written_to(tmp_path):
    path = tmp_path / "memory.parquet"
    table = pa.table({"cell": [0, 0], "time": [0, 5], "gpu": [0, 0], "gpu_bytes": [7, 8]})
    write_keyed(table, {"0": "a"}, path)
    described = {
        "traces": {},
        "files": {path.name: bytes_hash(path.read_bytes())},
        "cells": [{"cell": 0, "key": "a"}],
    }
    (tmp_path / "provenance.json").write_text(json.dumps(described))
    found = read_table(tmp_path, "memory")
    found.loc[1, "gpu_bytes"] = 9
    assert found["gpu_bytes"].tolist() == [7, 9]


@pytest.mark.parametrize("at_once", [1, 8, 10**6])
def test_of_kernels_the_reported_iteration_alone_is_read(tmp_path, monkeypatch, at_once):
    """Of three cells, and of two iterations the one that took 20 cycles, however few numbers at a time."""
    monkeypatch.setattr("g10sim.results.reading._NUMBERS_AT_ONCE", at_once)
    path = tmp_path / "kernels.parquet"
    rows = [(cell, iteration, kernel) for cell in range(3) for iteration in range(2) for kernel in range(2)]
    found = pd.DataFrame(rows, columns=["cell", "iteration", "kernel"])
    found = found.assign(job=0, gpu=0, compute_cycles=7, overlap_cycles=0, stall_fault_host_cycles=3)
    found["start"] = 100 * found["iteration"] + 10 * found["kernel"]
    found["end"] = found["start"] + 10 + found["cell"] * (found["iteration"] == 1)
    write_keyed(pa.Table.from_pandas(found), {"0": "a", "1": "b", "2": "c"}, path)
    cells = [{"cell": number, "key": key} for number, key in enumerate("abc")]
    described = {"traces": {}, "files": {path.name: bytes_hash(path.read_bytes())}, "cells": cells}
    (tmp_path / "provenance.json").write_text(json.dumps(described))
    file = TableFile(tmp_path, "kernels")
    for cell, cycles, iteration in ((0, 20, 1), (2, 20, 0), (2, 22, 1)):
        row = {"cell": cell, "exec_cycles": cycles}
        kernels = file.reported(row)
        assert kernels["iteration"].tolist() == [iteration] * 2
        whole = reported_kernels(of_cell(read_table(tmp_path, "kernels"), row), row)
        pd.testing.assert_frame_equal(kernels, whole, check_like=True)
        assert kernels["stall_cycles"].tolist() == [3, 3]


def test_results_carry_the_keys_of_their_cells(tmp_path):
    named = ["cell", "trace", "policy", "status", "name", "model", "batch_size", "seed", "message"]
    lines = [",".join((*named, *metric_columns()))]
    lines += [
        f"{cell},t,{policy},ok,n,m,1,0," + ",1" * len(metric_columns()) for cell, policy in enumerate("pq")
    ]
    text = "\n".join([*lines, ""])
    (tmp_path / "results.csv").write_text(text)
    cells = [{"cell": 0, "key": "a"}, {"cell": 1, "key": "b"}]
    described = {"traces": {}, "files": {"results.csv": bytes_hash(text.encode())}, "cells": cells}
    (tmp_path / "provenance.json").write_text(json.dumps(described))
    assert read_results(tmp_path).attrs[KEYS] == {0: "a", 1: "b"}


def test_a_table_of_another_program_carries_no_keys():
    schema = pa.schema([("cell", pa.int64())])
    assert keys_of(schema) == {}
    assert keys_of(schema.with_metadata({"g10sim.cells": "[0]"})) == {}
    assert keys_of(schema.with_metadata({"g10sim.cells": '{"0": "a"}'})) == {"0": "a"}


def test_the_row_of_a_cell_is_one_that_ran():
    results = pd.DataFrame({"cell": [0, 1, 2], "status": ["ok", "failed", "ok"], "exec_cycles": [5, None, 7]})
    assert row_of_cell(results, 2)["exec_cycles"] == 7
    with pytest.raises(ConfigError, match="cell 1: found status 'failed'; allowed: one that ran, 0, 2"):
        row_of_cell(results, 1)
    assert row_of_cell(results[:2])["cell"] == 0


def test_a_sizing_is_read_as_it_was_written(tmp_path):
    texts = {"sizing.csv": "policy,found\ng10,3\n", "curves.csv": "policy,amount\ng10,1\ng10,2\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    described = {"files": {name: bytes_hash(text.encode()) for name, text in texts.items()}}
    (tmp_path / "sizing.json").write_text(json.dumps(sealed(described)))
    sizing, curves = read_sizing(tmp_path)
    assert (sizing["found"].tolist(), curves["amount"].tolist()) == ([3], [1, 2])
    (tmp_path / "curves.csv").write_text("policy,amount\ng10,7\n")
    with pytest.raises(ConfigError, match=r"curves\.csv: "):
        read_sizing(tmp_path)


def test_series_are_named_as_papers_name_policies():
    assert legend("vdnn_multi").label == "vDNN multi-GPU"
    results = pd.DataFrame({"policy": ["vdnn_multi", "vdnn(mode=conv)", "mine:my_own(of=my_own)"]})
    assert policy_labels(results) == {
        "vdnn_multi": "vDNN multi-GPU",
        "vdnn(mode=conv)": "vDNN(mode=conv)",
        "mine:my_own(of=my_own)": "my own(of=my_own)",
    }


def test_a_table_of_all_cells_is_cut_to_a_cell_and_a_job():
    rows = pd.DataFrame({"cell": [0, 1, 1, 1], "job": [0, 0, 1, 1], "kernel": [5, 6, 7, 8]})
    found = of_cell(rows, {"cell": 1, "job": 1, "kernel": 7})
    assert found.to_dict("list") == {"job": [1, 1], "kernel": [7, 8]}
    assert of_cell(rows, {"cell": 1})["kernel"].tolist() == [6, 7, 8]
    single = rows.drop(columns="cell")
    assert of_cell(single, {"cell": 1, "job": 0})["kernel"].tolist() == [5, 6]


def test_a_cycle_is_as_long_as_the_milliseconds_say():
    assert seconds_per_cycle({"exec_ms": 3.0, "exec_cycles": 4_000_000}) == 0.75e-9
    assert seconds_per_cycle({"exec_ms": 0.0, "exec_cycles": 0}) == 0


def test_kernels_are_those_of_the_iteration_that_is_reported():
    kernels = pd.DataFrame(
        {
            "iteration": [0, 0, 1, 1],
            "start": [0, 10, 30, 40],
            "end": [10, 30, 40, 50],
            "stall_fault_host_cycles": [0, 5, 1, 2],
            "stall_late_prefetch_cycles": [0, 5, 0, 3],
        }
    )
    assert reported_kernels(kernels, {"exec_cycles": 30})["stall_cycles"].tolist() == [0, 10]
    assert reported_kernels(kernels, {"exec_cycles": 31})["stall_cycles"].tolist() == [0, 10]


def test_names_of_designs_come_from_their_parameters():
    found = designs(pd.DataFrame({"policy": ["vdnn(mode=conv,algorithms=memory)", "my:Own_design", "ideal"]}))
    assert [(one.key, one.label, one.title, one.variant) for one in found.values()] == [
        ("vdnn", "vDNN", "vDNN(mode=conv,algorithms=memory)", "conv memory"),
        ("my:Own_design", "Own design", "Own design", ""),
        ("ideal", "Ideal", "Ideal", ""),
    ]
