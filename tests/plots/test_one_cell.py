"""Figures of one cell, from the tables of a small run and from tables made by hand."""

import gzip
import json

import pandas as pd
import pytest
from matplotlib.figure import Figure
from readable import legend_words

import g10sim
from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.results.reading import busy_share, reported_kernels, row_of_cell
from g10sim.trace.format import save_trace
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain

SYSTEM = {"preset": "a100-40g-pcie3-znand", "gpu": {"memory": "8 MiB"}, "host": {"memory": "4 MiB"}}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    save_trace(chain(8), place / "chain.g10t")
    config = {
        "workload": {"trace": str(place / "chain.g10t")},
        "system": SYSTEM,
        "policies": ["ideal", "base_uvm"],
        "record": ["kernels", "migrations", "memory"],
    }
    g10sim.run({"name": "small", **config}, output=place / "out")
    return place / "out"


def texts(figure):
    axes = [text for one in figure.axes for text in (one.get_ylabel(), one.get_xlabel())]
    legend = legend_words(figure)
    return axes + legend


def test_memory(directory):
    figure = plots.draw("memory", directory, cell=1)
    assert {"GPU", "size of GPU memory", "host", "SSD"} <= set(texts(figure))
    gpu, others = figure.axes
    in_use, size = gpu.get_lines()
    assert size.get_ydata()[0] == pytest.approx(8 / 1024)
    assert max(in_use.get_ydata()) == pytest.approx(8 / 1024)
    assert max(others.get_lines()[0].get_ydata()) == pytest.approx(4 / 1024)


def test_timeline(directory):
    figure = plots.draw("timeline", directory, cell=1)
    rows = [axes.get_ylabel().split("\n")[0] for axes in figure.axes]
    assert rows[:2] == ["computing", "stalled"]
    assert {"SSD to GPU", "host to GPU", "GPU to host"} <= set(rows)
    computing, stalled = (axes.patches[0].get_data().values for axes in figure.axes[:2])
    result = row_of_cell(g10sim.read_results(directory), 1)
    assert sum(stalled) / len(stalled) == pytest.approx(result["stall_cycles"] / result["exec_cycles"])
    assert all(one + other == pytest.approx(1) for one, other in zip(computing, stalled, strict=True))


def test_a_timeline_marks_where_micro_batches_begin(tmp_path):
    builder = TraceBuilder("accumulation")
    weight = builder.tensor("w", 4096, TensorKind.WEIGHT, persistent=True)
    for number in (1, 1, 2, 2, 0):
        builder.kernel("a", 1000, [weight], [weight], micro_batch=number)
    save_trace(builder.build(), tmp_path / "steps.g10t")
    config = {
        "workload": {"trace": str(tmp_path / "steps.g10t")},
        "system": SYSTEM,
        "policies": ["ideal"],
        "record": ["kernels", "migrations", "timeline"],
    }
    g10sim.run({"name": "steps", **config}, output=tmp_path / "out")
    figure = plots.draw("timeline", tmp_path / "out", cell=0)
    cycle = 1 / 1.2e9
    for axes in figure.axes:
        assert [line.get_xdata()[0] for line in axes.get_lines()] == pytest.approx([0, 2e-6], abs=2 * cycle)
    assert "micro-batch begins" in texts(figure)
    (path,) = (tmp_path / "out" / "timeline").iterdir()
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shown = [event["args"].get("micro_batch") for event in events if event["name"] == "a"]
    assert shown[:5] == [1, 1, 2, 2, None]


@pytest.mark.slow
def test_stalls(directory):
    figure = plots.draw("stalls", directory, cell=1)
    result = row_of_cell(g10sim.read_results(directory), 1)
    share = result["stall_fault_flash_cycles"] / result["exec_cycles"]
    assert f"page faults, SSD {share:.1%}" in texts(figure)
    longest = figure.axes[1]
    heights = [sum(bar.get_height() for bar in bars) for bars in zip(*longest.containers, strict=True)]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.slow
def test_pictures_are_the_same_every_time(directory, tmp_path):
    for place in ("one", "two"):
        plots.save(plots.draw("stalls", directory, cell=1), tmp_path / place, "stalls")
    for name in ("stalls.png", "stalls.pdf"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_figures_take_tables(directory):
    kernels = pd.read_parquet(directory / "kernels.parquet")
    assert isinstance(plots.stalls.draw(g10sim.read_results(directory), kernels, cell=1), Figure)


@pytest.mark.slow
def test_all_jobs_of_a_cell_are_shown(tmp_path):
    save_trace(chain(8), tmp_path / "chain.g10t")
    jobs = [{"trace": str(tmp_path / "chain.g10t"), "iterations": 2} for _ in range(2)]
    system = {**SYSTEM, "gpu": {"memory": "9 MiB"}}
    config = {"workload": {"jobs": jobs}, "system": system, "policies": ["base_uvm"]}
    g10sim.run({"name": "jobs", "record": ["kernels", "migrations"], **config}, output=tmp_path / "out")
    rows = g10sim.read_results(tmp_path / "out")
    figure = plots.draw("timeline", tmp_path / "out")
    names = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes[:4]]
    assert names == ["job 0 computing", "job 0 stalled", "job 1 computing", "job 1 stalled"]
    figure = plots.draw("stalls", tmp_path / "out")
    assert [axes.get_title() for axes in figure.axes[:2]] == ["job 0: chain8", "job 1: chain8"]
    labels = {label.get_text() for label in figure.axes[2].get_xticklabels()}
    assert {label[0] for label in labels} <= {"0", "1"}
    assert len(figure.axes[2].get_xlabel().split("job.")) == 2
    shares = [float(text.rsplit(" ", 1)[1].rstrip("%")) for text in texts(figure) if text.endswith("%")]
    stalled = rows["stall_cycles"].sum() / rows["exec_cycles"].sum()
    assert sum(shares) == pytest.approx(100 * stalled, abs=0.3)


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (None, "cell: found none; allowed: one of those that ran, 0, 1"),
        (7, "cell 7: found no such cell; allowed: one that ran, 0, 1"),
    ],
)
def test_cells_that_are_not_there(directory, cell, message):
    with pytest.raises(ConfigError, match=message):
        plots.draw("memory", directory, cell=cell)


def test_a_cell_without_stalls_has_no_figure_of_them(directory):
    with pytest.raises(ConfigError, match="cell 0: found no stalls"):
        plots.draw("stalls", directory, cell=0)


def test_a_cell_that_did_not_run():
    table = pd.DataFrame({"cell": [0, 1], "status": ["ok", "unsupported"]})
    assert row_of_cell(table)["cell"] == 0
    with pytest.raises(ConfigError, match="cell 1: found status 'unsupported'; allowed: one that ran, 0"):
        row_of_cell(table, 1)


def test_the_reported_iteration_is_the_one_with_the_time_of_the_results():
    times = {"iteration": [0, 0, 1, 1, 2, 2], "start": [0, 5, 10, 15, 18, 20], "end": [5, 10, 15, 18, 20, 28]}
    kernels = pd.DataFrame({**times, "stall_first_touch_cycles": [1, 2, 3, 4, 5, 6]})
    found = reported_kernels(kernels, {"exec_cycles": 8})
    assert list(found["start"]) == [10, 15]
    assert list(found["stall_cycles"]) == [3, 4]
    assert list(reported_kernels(kernels, {"exec_cycles": 7})["start"]) == [10, 15]
    assert list(reported_kernels(kernels, {"exec_cycles": 9})["start"]) == [18, 20]  # the later of two


def test_busy_shares_count_overlaps_once():
    shares = busy_share(pd.Series([0, 2, 12]), pd.Series([4, 6, 13]), [0.0, 5.0, 10.0, 20.0])
    assert shares == [1.0, pytest.approx(0.2), pytest.approx(0.1)]
    nothing = pd.Series([], dtype=int)
    assert busy_share(nothing, nothing, [0.0, 5.0, 10.0]) == [0.0, 0.0]
    # Bins may be shorter than what time is counted in, or empty.
    assert busy_share(pd.Series([0]), pd.Series([1]), [0.0, 0.5, 1.0, 1.0, 1.5]) == [1.0, 1.0, 0.0, 0.0]
