"""Reproducing figures from the command line, with small cells."""

import csv
from pathlib import Path

import pytest
from matplotlib.image import imread

from g10sim.plots.registry import paper_figures
from g10sim.reproduce.validation import read_published
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

SMALL = ("--set", "workload.trace=chain.g10t", "--set", "system.gpu.memory=8 MiB", "-j", "2", "-o", "out")


@pytest.fixture
def traces(here):
    save_trace(chain(8), here / "chain.g10t")


def rows(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.nightly
def test_all_figures_are_simulated_and_drawn(g10sim, traces):
    ended = g10sim("reproduce", *SMALL)
    progress = [line for line in ended.err.splitlines() if line.endswith(" left")]
    assert (ended.code, ended.err.splitlines()) == (0, progress)
    assert "pictures in out/figures" in ended.out
    for name in paper_figures():
        assert f"{name} " in ended.out
        assert rows(f"out/{name}/results.csv")
        assert Path(f"out/figures/{name}.pdf").read_bytes().startswith(b"%PDF")
        assert imread(f"out/figures/{name}.png").shape[1] == 990
    pictures = {path.name: path.read_bytes() for path in Path("out/figures").iterdir()}
    again = g10sim("plot", "all", "--results", "out", "-o", "again")
    assert again.code == 0
    assert {path.name: path.read_bytes() for path in Path("again").iterdir()} == pictures


@pytest.mark.slow
def test_some_figures(g10sim, traces):
    assert g10sim("reproduce", "--figures", "fig12, fig11", *SMALL).code == 0
    assert sorted(path.name for path in Path("out").iterdir()) == ["cells", "fig11", "fig12", "figures"]
    ended = g10sim("reproduce", "--figures", "fig11,fig1", "-o", "out")
    assert ended.code == 2
    assert "--figures: found 'fig1' (did you mean 'fig" in ended.err
    plot = "plot", "fig11", "--results", "out/fig11", "-o", "chosen"
    assert g10sim(*plot, "--where", "policy=g10").code == 0
    ended = g10sim(*plot, "--where", "policy")
    assert (ended.code, ended.err) == (2, "error: --where: found 'policy'; allowed: COLUMN=VALUE\n")


@pytest.mark.slow
def test_failed_cells_are_listed_with_their_reasons(g10sim, here, traces):
    (here / "broken.py").write_text(
        "from g10sim.policies.interface import Policy\n\n\n"
        "class Broken(Policy):\n    name = 'broken'\n\n"
        "    def plan_job(self, job, system, behaviour):\n        raise RuntimeError('no plan today')\n"
    )
    policies = ("--set", "policies=[ideal, g10, 'broken:Broken']")
    ended = g10sim("reproduce", "--figures", "fig11,fig12", *SMALL, *policies)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "fig11, cell 2 (chain.g10t, broken:Broken) failed: " in ended.err
    assert "no plan today" in ended.err
    assert Path("out/figures/fig12.png").is_file()


@pytest.mark.slow
def test_a_figure_without_any_result_is_a_problem_of_its_own(g10sim, traces):
    ended = g10sim("reproduce", "--figures", "fig2,fig11", *SMALL, "--set", "policies=[ideal]")
    assert ended.code == 1
    assert "drawing fig11 failed: results: found no policy to show" in ended.err
    assert Path("out/figures/fig2.png").is_file()


def test_characters_that_the_font_lacks_are_told_in_one_line(g10sim, traces, config):
    save_trace(chain(8), Path("模型.g10t"))
    named = config(workload={"trace": ["chain.g10t", "模型.g10t"]}, policies=["ideal", "base_uvm"])
    assert g10sim("run", named, "-o", "out").code == 0
    ended = g10sim("plot", "bar", "--results", "out", "--x", "trace")
    said = "warning: the font of figures lacks 模型: boxes stand in their place\n"
    assert (ended.code, ended.err) == (0, said)


def test_bad_input_names_the_option(g10sim, traces):
    for arguments, words in (
        (("--set", "workload.trace=nothing-*.g10t"), "matches no file"),
        (("--scheduler", "tcp://127.0.0.1:1", "-j", "2"), "-j: found with --scheduler"),
        (("--figures", ","), "--figures: found ','; allowed: names, comma-separated"),
    ):
        ended = g10sim("reproduce", "--figures", "fig11", "-o", "out", *arguments)
        assert ended.code == 2
        assert words in ended.err
        assert not Path("out").exists()


def test_bars_of_published_traces_are_those_of_the_paper(g10sim, published):
    """Within the errors of docs/validation.md with own planning, for one batch size of figures 11 and 15."""
    batch, limits = 256, {"ideal": 0, "base_uvm": 1e-3, "deepum": 2e-2, "g10": 2e-2}
    source = published / "traces" / "BERT_Base" / str(batch)
    assert g10sim("trace", "import", "gpg", source, "-o", "bert.g10t").code == 0
    policies = ", ".join(limits)
    ended = g10sim(
        "reproduce", "--figures", "fig11,fig15", "--set", "workload.trace=bert.g10t", "--set", "compat=gpg",
        "--set", f"policies=[{policies}]", "-o", "out",
    )  # fmt: skip
    assert (ended.code, ended.err) == (0, "")
    for figure in ("fig11", "fig15"):
        found = {row["policy"]: float(row["exec_cycles"]) for row in rows(f"out/{figure}/results.csv")}
        compared = [
            row
            for row in read_published(published, figures=[figure], models=["BERT_Base"], policies=limits)
            if row.batch == batch
        ]
        assert len(compared) == len(limits)
        for row in compared:
            policy = row.texts["policy"]
            assert abs(found[policy] / row.value - 1) <= limits[policy], (figure, policy)
