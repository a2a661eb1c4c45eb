"""The experiments of the paper: whole, and applicable to any traces."""

from functools import cache
from pathlib import Path

import pytest

from g10sim.config.data import data_path
from g10sim.config.load import load_run
from g10sim.experiment.expand import expand
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.trace.format import load_trace

DIRECTORY = data_path("experiments")
EXPERIMENTS = {path.stem for path in DIRECTORY.glob("*.yaml")}
NAMES = sorted(EXPERIMENTS & set(paper_figures()))


def test_every_figure_has_an_experiment():
    made = {name for name, entry in ENTRIES.items() if not (entry.of_one_cell or entry.of_sizing)}
    assert made == EXPERIMENTS
    assert len(NAMES) == 15


@pytest.fixture(scope="module")
def read_once():
    """All experiments have the same traces."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("g10sim.experiment.workloads.load_trace", cache(load_trace))
        yield


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("read_once")
def test_it_is_whole(name):
    document = load_run(Path("experiments") / f"{name}.yaml")
    experiment = expand(document)
    assert experiment.config.name == name
    assert experiment.config.output == f"results/{name}"
    assert set(ENTRIES[name].tables) <= set(experiment.config.tables)
    assert all("*" in pattern for pattern in experiment.config.workload.trace)
    assert len({cell.jobs[0].trace.model for cell in experiment.cells}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_on_other_traces(name, trace_file):
    pattern = f"workload.trace={trace_file.parent}/*.g10t"
    experiment = expand(load_run(Path("experiments") / f"{name}.yaml", [pattern]))
    assert {cell.jobs[0].trace.name for cell in experiment.cells} == {str(trace_file)}
