"""Every policy, reason of a stall and memory tier has its own words and look, wherever people see it."""

import json
import sys
from dataclasses import asdict
from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from rewritten import describe, rewrite

from g10sim import plots
from g10sim.looks import Look, distinct
from g10sim.places import direction, level, place, tier_name, tier_word
from g10sim.plots import style
from g10sim.policies.interface.registry import available
from g10sim.records import StallReason
from g10sim.results.columns import metric_columns
from g10sim.results.reading import read_results

TIERS = {"host": "memory", "cxl": "memory", "ssd": "ssd"}
REASONS = StallReason.of_tiers(map(tier_word, TIERS))
KEYS = [*available(), "lru:Lru"]
RAW = {*KEYS, *REASONS, "NONE", "HOST", "FLASH", "CXL", "flash"} - {"eviction", "allocation", "barrier"}
PLUGIN = """\
from g10sim.policies.designs.base_uvm import BaseUvm
class Lru(BaseUvm):
    name = "lru"
    label = "Least recent"
    look = BaseUvm.look
"""


def raw_keys(texts):
    """Keys of policies, reasons and tiers that stand in some texts as they are."""
    words = {word.strip("(),") for text in texts for word in str(text).split()}
    return words & {key for key in RAW if "_" in key or ":" in key or key in ("NONE", "HOST", "FLASH", "CXL")}


def legend_texts(figure):
    found = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return found + [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]


def assert_own_looks(looks):
    for one, other in combinations(looks, 2):
        assert one.label != other.label
        assert (one.colour, one.hatch) != (other.colour, other.hatch), (one, other)
        assert (one.colour, one.marker, one.line) != (other.colour, other.marker, other.line), (one, other)


def assert_own_patches(figure, count):
    patches = [handle for legend in figure.legends for handle in legend.get_patches()]
    drawn = {(to_hex(patch.get_facecolor()), patch.get_hatch()) for patch in patches}
    assert len(drawn) == len(patches) == count


@pytest.fixture
def every_policy(g10sim, config, here):
    """Results of a run with a plug-in, which is gone afterwards, and rows of all other policies."""
    (here / "lru.py").write_text(PLUGIN)
    assert g10sim("run", config(policies=["lru:Lru"], record=["kernels"])).code == 0
    (here / "lru.py").unlink()
    sys.modules.pop("lru")
    results = read_results("out")
    rows = [results.assign(policy=key, cell=cell) for cell, key in enumerate(KEYS)]
    kernels = pd.read_parquet("out/kernels.parquet")
    kernels = pd.concat([kernels.assign(cell=cell) for cell, _ in enumerate(KEYS)])
    rewrite(here / "out", pd.concat(rows), kernels=kernels)
    return here / "out"


@pytest.mark.slow
def test_policies(every_policy, g10sim):
    labels = [policy.label for policy in available().values()] + ["Least recent"]
    looks = style.looks(read_results(every_policy))
    assert [look.label for look in looks.values()] == labels
    assert_own_looks(looks.values())
    for name in ("fig11", "fig12", "fig13", "fig14", "fig15"):
        texts = legend_texts(plots.draw(name, every_policy))
        assert {text.replace("\n", " ") for text in texts} >= set(labels) - {"Ideal"}
        assert not raw_keys(texts), name
    assert_own_patches(plots.draw("fig11", every_policy), len(KEYS) - 1)
    assert g10sim("report", "out").code == 0
    cells = [text.split("<")[0] for text in Path("out/report.html").read_text().split("<td>")]
    assert set(labels) <= set(cells)
    assert not raw_keys(cells)


def test_results_without_provenance_name_their_policies(every_policy):
    (every_policy / "provenance.json").unlink()
    looks = style.looks(read_results(every_policy))
    assert looks["g10"].label == "G10"
    assert looks["lru:Lru"].label == "Lru"


@pytest.mark.parametrize("legend", [{"colour": "red"}, {"colour": 3}, {"shade": ""}, "Lru"])
def test_damaged_legends_are_left_out(every_policy, legend):
    describe(every_policy, policies={"lru:Lru": legend})
    assert style.looks(read_results(every_policy))["lru:Lru"].label == "Lru"


@pytest.mark.slow
def test_reasons_in_figures_and_explanations(g10sim, config):
    assert g10sim("run", config(policies=["base_uvm"], record=["kernels", "migrations"])).code == 0
    columns = {reason.column: 1000 * (number + 1) for number, reason in enumerate(REASONS)}
    kernels = pd.read_parquet("out/kernels.parquet").assign(**columns)
    rewrite(Path("out"), read_results("out").assign(**columns), kernels=kernels)
    figure = plots.draw("stalls", "out")
    assert_own_patches(figure, len(REASONS))
    labels = [text.rpartition(" ")[0] for text in legend_texts(figure) if text.endswith("%")]
    assert sorted(labels) == sorted(reason.look.label for reason in REASONS)
    assert len({reason.words for reason in REASONS}) == len(REASONS)
    for options in ((), ("--kernel", "3")):
        shown = g10sim("explain", "out", *options).out
        assert all(reason.words in shown for reason in REASONS)
        assert not raw_keys(shown.splitlines())
    assert g10sim("report", "out").code == 0
    page = Path("out/report.html").read_text()
    assert all(f"stall: {reason.look.label}" in page for reason in REASONS)


@pytest.mark.slow
def test_tiers_in_figures(g10sim, config):
    record = ["kernels", "migrations", "memory"]
    assert g10sim("run", config(policies=["base_uvm"], record=record)).code == 0
    results = read_results("out")
    shown = results.assign(cxl_to_gpu_bytes=10**9, gpu_to_cxl_bytes=10**9, gpu_to_ssd_bytes=10**9)
    ways = [direction(*ends) for name in TIERS for ends in ((name, "gpu"), ("gpu", name))]
    assert_own_looks(distinct(dict(enumerate(ways))).values())
    assert_own_looks(distinct({name: level(name) for name in TIERS}).values())
    traffic = plots.fig14.draw(shown)
    assert {look.label for look in ways} <= set(legend_texts(traffic))
    assert_own_patches(traffic, len(ways))
    moves = pd.read_parquet("out/migrations.parquet")
    more = pd.concat([moves, moves.replace("HOST", "CXL"), moves.replace("HOST", "FLASH")])
    timeline = plots.timeline.draw(results, pd.read_parquet("out/kernels.parquet"), more)
    rows = [axes.get_ylabel().split("\n")[0] for axes in timeline.axes]
    assert {look.label for look in ways} <= set(rows)
    assert len(set(rows)) == len(rows)
    memory = plots.memory.draw(results, pd.read_parquet("out/memory.parquet").assign(cxl_bytes=2**30))
    assert {place(name).label for name in TIERS} <= set(legend_texts(memory))
    assert not raw_keys([*rows, *legend_texts(memory), *legend_texts(traffic)])


def test_columns_follow_the_tiers():
    assert metric_columns({"host": "memory", "ssd": "ssd"}) == metric_columns()
    columns = metric_columns(TIERS)
    assert [column for column in columns if column not in metric_columns()] == [
        "stall_fault_cxl_cycles", "cxl_to_gpu_bytes", "gpu_to_cxl_bytes", "peak_cxl_bytes",
    ]  # fmt: skip
    moved = [column for column in columns if "_to_" in column]
    assert [column.split("_")[0] for column in moved[::2]] == ["ssd", "cxl", "host"]
    assert columns.index("stall_fault_cxl_cycles") == columns.index("stall_fault_flash_cycles") + 1
    assert [tier_word(name) for name in TIERS] == ["host", "cxl", "flash"]
    assert [tier_name(tier_word(name)) for name in TIERS] == list(TIERS)


def test_looks_are_checked():
    for wrong in ({"colour": "red"}, {"hatch": "?"}, {"marker": "??"}, {"line": "solid"}):
        with pytest.raises(ValueError, match="allowed: text of the form"):
            Look(**wrong)
    look = Look("#123456", "//", "s", "5 1", "x")
    assert Look(**json.loads(json.dumps(asdict(look)))) == look
    assert look.curve()["linestyle"] == (0, (5, 1))
    many = distinct({number: Look(label="same") for number in range(100)})
    assert_own_looks(many.values())
