"""Cells chosen by policy, trace and swept values; the version, help and completion of the command line."""

from pathlib import Path

import pytest

import g10sim as package
from g10sim.sim import IS_COMPILED

pytestmark = pytest.mark.slow

RECORD = ["kernels", "migrations"]
MEMORIES = ["6500 KiB", "8 MiB"]


@pytest.fixture
def swept(g10sim, config):
    """Results of three policies under two sizes of memory: cells 0 to 5."""
    ended = g10sim("run", config(record=RECORD, sweep={"system.gpu.memory": MEMORIES}))
    assert ended.code == 0
    return ended.out


def test_the_table_of_a_run_has_the_numbers_of_cells(swept):
    lines = [line.split() for line in swept.splitlines() if "KiB" in line or "MiB" in line]
    assert [words[0] for words in lines] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("arguments", "cell"),
    [
        (("--policy", "deepum", "--where", "system.gpu.memory=8 MiB"), 5),
        (("--policy", "DeepUM+", "--where", "system.gpu.memory=6500KiB"), 2),
        (("--policy", "base_uvm", "--trace", "chain", "--where", "system.gpu.memory=8 MiB"), 4),
        (("--cell", "4"), 4),
    ],
)
def test_a_cell_is_explained_by_name(swept, g10sim, arguments, cell):
    ended = g10sim("explain", "out", *arguments)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Cell {cell}: ")


def test_several_cells_are_refused_with_what_tells_them_apart(swept, g10sim):
    ended = g10sim("explain", "out", "--policy", "deepum")
    assert ended.code == 2
    assert ended.err == (
        "error: cell: found none; allowed: one of those that ran, 2, 5, "
        "by its number or by system.gpu.memory\n"
    )
    ended = g10sim("explain", "out", "--policy", "deepm")
    assert "--where policy: found 'deepm' (did you mean 'deepum'?)" in ended.err
    ended = g10sim("explain", "out", "--where", "system.gpu.memry=8 MiB")
    assert "--where: found 'system.gpu.memry' (did you mean 'system.gpu.memory'?)" in ended.err
    ended = g10sim("explain", "out", "--policy", "deepum", "--cell", "1")
    assert "cell 1: found no such cell; allowed: one that ran, 2, 5" in ended.err


def test_a_cell_is_drawn_by_name(swept, g10sim):
    plot = "plot", "stalls", "--results", "out", "--where", "system.gpu.memory=8 MiB"
    assert g10sim(*plot, "--policy", "base_uvm", "-o", "named").code == 0
    assert g10sim("plot", "stalls", "--results", "out", "--cell", "4", "-o", "numbered").code == 0
    assert Path("named/stalls.png").read_bytes() == Path("numbered/stalls.png").read_bytes()


def test_charts_of_a_sweep(swept, g10sim):
    ended = g10sim("plot", "line", "--results", "out", "--x", "system.gpu.memory")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "out/figures/line_performance_system.gpu.memory.csv"
    ended = g10sim("plot", "line", "--results", "out")
    assert (ended.code, ended.err) == (
        2,
        "error: --x: found none; allowed: a column or swept key to draw the line over\n",
    )
    ended = g10sim("plot", "fig11", "--results", "out", "--hue", "policy")
    assert ended.err == "error: --hue: found with fig11; allowed: with line, bar, heat\n"


def test_version(g10sim):
    ended = g10sim("--version")
    compiled = ", compiled" if IS_COMPILED else ""
    assert (ended.code, ended.out) == (0, f"g10sim {package.__version__}{compiled}\n")


def test_help_keeps_what_is_in_brackets(g10sim):
    text = " ".join(g10sim("explain", "--help").out.split())
    assert "need a run with 'record: [kernels, migrations]'" in text
    assert "[default: (./NAME)]" in " ".join(g10sim("policy", "new", "--help").out.replace("│", "").split())


@pytest.mark.parametrize(
    ("words", "found"), [("g10sim ex", "explain"), ("g10sim plot --h", "--hue"), ("g10sim trace ch", "check")]
)
def test_words_are_completed(g10sim, monkeypatch, words, found):
    monkeypatch.setenv("_G10SIM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert found in g10sim().out.split()
