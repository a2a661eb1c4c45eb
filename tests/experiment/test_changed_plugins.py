"""Results of a plug-in belong to its code and its files as they were when it ran."""

import json
import sys

import pytest

import g10sim
from g10sim.config.document import Document
from g10sim.experiment.run import run_experiment

from . import changing


@pytest.fixture
def mine(tmp_path, monkeypatch, config):
    """A configuration with a plug-in."""
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.syspath_prepend(code)
    config["policies"] = ["ideal", changing.write(code)]
    yield config
    for name in [name for name in sys.modules if name.startswith("changing_")]:
        del sys.modules[name]


def messages(outcome):
    return [row["message"] for row in outcome.rows if row["policy"] != "ideal"]


def rows(directory):
    return (directory / "results.csv").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("file", changing.FILES)
def test_an_edit_of_any_file_of_a_plug_in_runs_its_cells_again(mine, tmp_path, file):
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    (before,) = messages(g10sim.run(mine, output=out))
    assert g10sim.run(mine, output=out).reused == 2
    changing.edit(tmp_path / "code" / file)
    again = g10sim.run(mine, output=out)
    assert again.reused == 1
    assert messages(again) != [before]
    g10sim.run(mine, output=fresh, force=True)
    assert rows(out) == rows(fresh)
    changing.edit(tmp_path / "code" / file, 2, 1)
    assert messages(g10sim.run(mine, output=out)) == [before]
    assert g10sim.run(mine, output=out).reused == 2


@pytest.mark.slow
def test_a_plug_in_saved_in_the_middle_of_a_run_gives_no_mixture(mine, tmp_path):
    mine["seed"] = list(range(6))
    helper = tmp_path / "code" / "changing_helper.py"
    g10sim.run(mine, output=tmp_path / "clean")
    seen = []

    def save(cell, result):
        seen.append(cell.index)
        if len(seen) == 9:  # six under "ideal", three of the plug-in
            changing.edit(helper)

    outcome = run_experiment(Document(mine, ""), output=tmp_path / "out", progress=save)
    assert messages(outcome) == ["1 2 11 1 1 1 = 1 = 1 = 1"] * 6
    assert sorted(seen) == list(range(12))
    keys = {result.key for result in outcome.results}
    changing.edit(helper, 2, 1)
    undone = g10sim.run(mine, output=tmp_path / "out")
    assert undone.reused == 6
    assert rows(tmp_path / "out") == rows(tmp_path / "clean")
    assert len(keys & {result.key for result in undone.results}) == 6


@pytest.mark.slow
def test_an_interrupted_run_after_a_save_keeps_old_and_new_apart(mine, tmp_path):
    mine["seed"] = list(range(6))
    seen = []

    def save(cell, result):
        seen.append(cell.index)
        if len(seen) == 9:
            changing.edit(tmp_path / "code" / "changing_named.py")
        if len(seen) == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(Document(mine, ""), output=tmp_path / "out", progress=save)
    stored = [json.loads(path.read_text()) for path in (tmp_path / "out" / "cells").glob("*.json")]
    by_key = {one["origin"]["key"]: one["message"] for one in stored if one["message"]}
    assert sorted(by_key.values()) == ["1 1 11 1 1 1 = 1 = 1 = 1"] * 3 + ["1 1 11 1 1 2 = 1 = 1 = 1"] * 2
    changing.edit(tmp_path / "code" / "changing_named.py", 2, 1)
    g10sim.run(mine, output=tmp_path / "out")
    g10sim.run(mine, output=tmp_path / "clean")
    assert rows(tmp_path / "out") == rows(tmp_path / "clean")


SAVES_ITSELF = """\
from pathlib import Path
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.policy import Policy

TEXT = "old"


class Mine(Policy):
    name = "mine"

    def plan_job(self, job, system, behaviour):
        path = Path(__file__)
        path.write_text(path.read_text().replace({old}, {new}))
        raise UnsupportedError(TEXT)
"""


def test_a_plug_in_saved_while_its_cell_runs_is_run_again(mine, tmp_path, caplog):
    policy = tmp_path / "code" / "changing_policy.py"
    policy.write_text(SAVES_ITSELF.format(old="'= \"old\"'", new="'= \"new\"'"))
    mine["policies"] = ["changing_policy:Mine"]
    outcome = g10sim.run(mine, output=tmp_path / "out")
    assert messages(outcome) == ["new"]
    assert "1 cells are run again: their code or files changed meanwhile" in caplog.text
    assert g10sim.run(mine, output=tmp_path / "out").reused == 1


def test_a_plug_in_that_changes_all_the_time_fails(mine, tmp_path):
    policy = tmp_path / "code" / "changing_policy.py"
    policy.write_text(SAVES_ITSELF.format(old="'= \"'", new="'= \"x'"))
    mine["policies"] = ["changing_policy:Mine"]
    ((_, message),) = g10sim.run(mine, output=tmp_path / "out").failures
    assert message == f"{policy}: was changed while the cell ran"
    assert not list((tmp_path / "out" / "cells").glob("*.json"))


def test_provenance_says_what_computed_each_cell(mine, tmp_path):
    g10sim.run(mine, output=tmp_path / "out")
    found = json.loads((tmp_path / "out" / "provenance.json").read_text())
    code = tmp_path / "code"
    ideal, own = (found["computed_by"][cell["computed_by"]] for cell in found["cells"])
    assert (ideal["plug_in"], ideal["files"]) == ("", {})
    assert own["plug_in"] == "changing_policy"
    assert {name: len(sha256) for name, sha256 in own["files"].items() if sha256} == {
        str(code / name): 64 for name in changing.FILES
    }
    for program in (ideal, own):
        assert {"numpy", "scipy", "simpy"} <= program["libraries"].keys()
        assert len(program["program_sha256"]) == 64
