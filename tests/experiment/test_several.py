"""Several experiments in one go: shared cells, failures, interruption, results of each."""

import copy

import pytest

import g10sim
from g10sim.config.document import Document
from g10sim.experiment.run import run_experiments

from .test_run import plugin

FILES = ("results.csv", "kernels.parquet")


def documents(config, **changes):
    """Two experiments: host memory is swept in the second one, whose middle value the first one has, too."""
    first = {**copy.deepcopy(config), "record": ["kernels"], **changes}
    second = {**copy.deepcopy(first), "sweep": {"system.host.memory": ["0 B", "4 MiB", "8 MiB"]}}
    return {"first": Document(first, ""), "second": Document(second, "")}


def test_equal_cells_are_simulated_once(config, tmp_path):
    started, seen, ended = [], [], []
    outcomes = run_experiments(
        documents(config),
        tmp_path / "out",
        started=started.append,
        progress=lambda cell, result: seen.append(cell.key),
        ended=lambda name, outcome: ended.append((name, len(seen))),
    )
    assert started == [9]
    assert len(seen) == len(set(seen)) == 9
    assert [len(outcomes[name].cells) for name in ("first", "second")] == [3, 9]
    assert ended == [("first", 3), ("second", 9)]
    assert len(list((tmp_path / "out" / "cells").glob("*.json"))) == 9


def test_results_are_those_of_each_experiment_alone(config, tmp_path):
    together = run_experiments(documents(config), tmp_path / "together")
    for name, document in documents(config).items():
        g10sim.run(document.data, output=tmp_path / name)
        for file in FILES:
            written = (together[name].directory / file).read_bytes()
            assert written == (tmp_path / name / file).read_bytes()


@pytest.mark.slow
def test_an_interrupted_call_is_continued(config, tmp_path):
    whole = run_experiments(documents(config), tmp_path / "whole")
    seen = []

    def stop(cell, result):
        seen.append(cell.key)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiments(documents(config), tmp_path / "out", progress=stop)
    assert len(g10sim.read_results(tmp_path / "out" / "first")) == 3
    assert 0 < len(g10sim.read_results(tmp_path / "out" / "second")) < 9
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").glob("*.json")}
    again = run_experiments(documents(config), tmp_path / "out")
    for name in again:
        for file in FILES:
            assert (again[name].directory / file).read_bytes() == (whole[name].directory / file).read_bytes()
    for name, written in kept.items():
        assert (tmp_path / "out" / "cells" / name).stat().st_mtime_ns == written


def test_a_failed_cell_fails_in_every_experiment_that_has_it(config, tmp_path):
    outcomes = run_experiments(
        documents(config, policies=["ideal", plugin("Raises")], record=["summary"]), tmp_path / "out"
    )
    assert [len(outcome.failures) for outcome in outcomes.values()] == [1, 3]
    assert "lost" in outcomes["first"].failures[0][1]
    assert set(g10sim.read_results(tmp_path / "out" / "second")["status"]) == {"ok", "failed"}
