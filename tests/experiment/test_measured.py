"""Measured machines: the lists that come with g10sim, and rows that are made, run and judged."""

import csv
import shlex
from pathlib import Path

import pytest
import yaml

from g10sim.analysis.gpus import gpu_names
from g10sim.config.document import Document
from g10sim.config.presets import validated
from g10sim.config.run import UncertaintySpec
from g10sim.errors import ConfigError, TraceError
from g10sim.experiment.expand import expand
from g10sim.reproduce.measured import (
    ALL,
    DIRECTORY,
    FITTED,
    PREDICTED,
    check_measured,
    factor,
    load_measured,
    of_classes,
    summaries,
    widths,
)
from g10sim.reproduce.measured_traces import ScanSpec, shipped
from g10sim.trace.format import save_trace

ROWS = load_measured()
LIST = """
sources: {{book: A book, spare: Another}}
defaults:
  of: paging
  part: faults
  source: book
  machine: made up
  used: predicted
  unit: ms
  scan: {{tensors: 4, size: 2 MiB, kernel: 1 ms}}
  run: {{system: a100-40g-pcie3-znand, policies: [ideal], workload: {{iterations: 1}}}}
  measure: {{of: quantity, column: exec_ms}}
rows:
  - {{name: exact, says: as it is, measured: 4}}
  - {{name: twice, says: half as long, measured: 2, used: fitted, lacks: a clock}}
  - name: rate
    source: spare
    says: a rate
    unit: 1/s
    measured: 500
    measure: {{of: quantity, column: exec_ms, over: 4000}}
    {more}
"""


SCAN = "scan: {tensors: 4, size: 2 MiB, kernel: 1 ms}"


def listed(directory, more=""):
    path = directory / "list.yaml"
    path.write_text(LIST.format(more=more))
    return path


def judged(directory, **options):
    return check_measured(load_measured(listed(directory)), directory / "out", capture=None, **options)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.spec.name)
def test_rows_of_the_list_can_be_run(row, tmp_path):
    spec = row.spec
    if spec.cannot:
        return
    assert spec.gpu is None or spec.gpu in gpu_names()
    trace = tmp_path / "scan.g10t"
    save_trace(ScanSpec(tensors=1, size="1 MiB", kernel="1 us").trace("scan"), trace)
    document = row.run_document(trace)
    document.data["workload"].pop("kernel_times", None)
    assert len(expand(document).cells) == 1
    assert spec.capture is None or "--gpu" not in spec.capture


def test_the_list_is_as_large_as_its_page_says():
    simulated = [row for row in ROWS if not row.spec.cannot]
    assert len(simulated) >= 60
    assert len({row.source for row in simulated}) >= 15
    assert {row.spec.used for row in simulated} == {PREDICTED, FITTED}


def test_traces_that_ship_belong_to_rows():
    traces = shipped()
    assert all(path.is_file() for path in traces.values())
    assert set(traces) <= {tuple(shlex.split(row.spec.capture)) for row in ROWS if row.spec.capture}


def test_rows_are_simulated_and_judged(tmp_path):
    exact, twice, rate = judged(tmp_path)
    assert (exact.predicted, exact.ratio, exact.cause) == (4.0, 1.0, "")
    assert twice.ratio == 2.0
    assert twice.cause.startswith("a clock; ideal: computing 100.0%")
    assert rate.cause.startswith("cause not known; ideal")
    assert rate.ratio == 2.0, "4,000 / 4 ms, of 500"
    with (tmp_path / "out" / "measured.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == ["exact", "twice", "rate"]
    assert rows[1]["source"] == "A book"
    assert float(rows[2]["predicted"]) == 1000.0


def test_how_far_times_are_off_is_an_uncertainty_of_the_parts(tmp_path):
    path = listed(tmp_path)
    rows = check_measured(load_measured(path), tmp_path / "out", capture=None)
    # Measured over predicted time of predicted rows: 1, and 1,000 units a second for 500, which is 2.
    assert widths(rows)["faults"] == [1.0, 1.9]
    text = (tmp_path / "out" / "uncertainty.yaml").read_text()
    spec = validated(UncertaintySpec, yaml.safe_load(text), Document({}, "test"))
    assert (spec.faults, spec.kernels) == ((1.0, 1.9), (1.0, 1.0))
    assert "2 predicted rows" in spec.sources["faults"]


def test_a_row_that_cannot_be_simulated_says_why_and_counts_nowhere(tmp_path):
    path = listed(tmp_path)
    path.write_text(path.read_text().replace("lacks: a clock", "scan: null, cannot: no clock"))
    rows = check_measured(load_measured(path), tmp_path / "out", capture=None)
    assert [row.message for row in rows] == ["", "cannot be simulated: no clock", ""]
    assert {one.used for one in summaries(rows)} == {PREDICTED}
    assert "twice,paging,faults,fitted,2.0,,," in (tmp_path / "out" / "measured.csv").read_text()


def test_summaries_keep_fitted_rows_apart(tmp_path):
    predicted, all_predicted, fitted, _ = summaries(judged(tmp_path))
    assert (predicted.of, predicted.used, predicted.rows, predicted.median) == ("paging", PREDICTED, 2, 1.5)
    assert (all_predicted.of, all_predicted.near, all_predicted.worst) == (ALL, 0.5, 2.0)
    assert predicted.factor == pytest.approx(2**0.5)
    assert (fitted.used, fitted.rows, fitted.near) == (FITTED, 1, 0.0)
    assert factor(0.5) == factor(2.0) == 2.0


def test_a_capture_is_made_once_for_all_gpus_and_again_with_force(tmp_path):
    made = []

    def capture(words, path):
        made.append((list(words), path.name))
        save_trace(ScanSpec(tensors=1, size="1 MiB", kernel="1 us").trace("scan"), path)

    path = listed(tmp_path)
    text = path.read_text().replace(
        "scan: {tensors: 4, size: 2 MiB, kernel: 1 ms}", "capture: timm:net\n  gpu: v100"
    )
    path.write_text(text.replace("name: twice,", "name: twice, gpu: t4,"))
    with pytest.raises(TraceError, match="capture it again"):  # a scan says no work, so it has no other times
        check_measured(load_measured(path), tmp_path / "out", capture=capture)
    assert made == [(["timm:net", "--gpu", "v100"], "exact.g10t")]
    with pytest.raises(TraceError):
        check_measured(load_measured(path), tmp_path / "out", capture=capture)
    assert len(made) == 1
    with pytest.raises(TraceError):
        check_measured(load_measured(path), tmp_path / "out", capture=capture, force=True)
    assert len(made) == 2


def test_a_capture_that_fails_is_told_of_its_row(tmp_path):
    def capture(words, path):
        raise ConfigError("no such model")

    path = listed(tmp_path, more="capture: timm:no\n    gpu: v100\n    scan: null")
    rows = check_measured(load_measured(path), tmp_path / "out", capture=capture)
    assert [row.message for row in rows] == ["", "", "no such model"]
    quick = check_measured(load_measured(path), tmp_path / "quick", capture=None)
    assert [row.row.spec.name for row in quick] == ["exact", "twice"], "what does not ship is left out"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("source: spare", "source: spar", "rows.2.source: found 'spar' (did you mean 'spare'"),
        ("    source: spare\n", "", "sources.spare: found no row that names it"),
        ("lacks: a clock", "cannot: no clock", "found 'cannot' and 'scan'; allowed: one of them"),
        ("part: faults", "part: fault", "part: found 'fault'"),
        ("measured: 4", "measured: 0", "rows.0.measured: found 0"),
        ("scan:", "trace: x.g10t\n  scan:", "found 'trace' and 'scan'; allowed: one of capture, trace, scan"),
        (SCAN, "capture: it's\n  gpu: h200", "rows.0.capture: found a command that cannot be split"),
        ("name: twice", "name: exact", "rows.1.name: found 'exact' twice"),
        ("used: predicted", "used: guessed", "found 'guessed'"),
        ("over: 4000", "over: 4000, times: 2", "found both 'times' and 'over'"),
        ("column: exec_ms}\nrows", "column: exec_s}\nrows", "row exact: found no column 'exec_s'"),
    ],
)
def test_bad_lists_are_told_in_one_line(tmp_path, old, new, said):
    path = listed(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        check_measured(load_measured(path), tmp_path / "out", capture=None)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_classes_are_chosen_by_name():
    chosen = of_classes(ROWS, ["paging"])
    assert {row.spec.of for row in chosen} == {"paging"}
    with pytest.raises(ConfigError, match="--class: found 'pagin'"):
        of_classes(ROWS, ["pagin"])
    assert load_measured(Path(DIRECTORY)) is not None
