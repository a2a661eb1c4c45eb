"""The bound in figures: a line where results have one, nothing where they have none."""

import made_up
import numpy as np
import pytest
from readable import assert_readable, legend_words

from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.plots import bound
from g10sim.plots.panels import BOUND_LOOK


def bounded(name, traces=made_up.SOME):
    """Made-up results whose bound is 0.9 of the fastest policy's time; two policies are outside it."""
    rows = made_up.results(name, traces)
    least = rows.groupby("trace")["exec_cycles"].transform(lambda times: times[times > 10**9].min())
    holds = (rows["status"] == "ok") & ~rows["policy"].isin(["ideal", "flashneuron"])
    rows["bound_cycles"] = (0.9 * least).where(holds, np.nan)
    rows["bound_kind"] = np.where(holds, "iteration", "none: ...")
    rows["of_bound"] = rows["bound_cycles"] / rows["exec_cycles"]
    return rows


def drawn(name, rows):
    return bound.draw(rows) if name == "bound" else getattr(plots, name).draw(rows)


@pytest.mark.parametrize("name", ["fig11", "fig15", "fig16", "fig17", "fig18", "bound"])
@pytest.mark.slow
def test_the_bound_has_an_entry_in_the_legend(name):
    figure = drawn(name, bounded(name))
    assert_readable(figure)
    assert "Bound" in legend_words(figure)
    if name != "bound":
        older = drawn(name, made_up.results(name, made_up.SOME))
        assert "Bound" not in [text.get_text() for text in older.legends[0].get_texts()]


@pytest.mark.parametrize(("name", "scale"), [("fig11", [1, 1, 1]), ("fig15", [192, 256, 512])])
def test_bars_have_the_bound_above_them(name, scale):
    (axes,) = drawn(name, bounded(name)).axes
    levels = [segment[0, 1] for lines in axes.collections for segment in lines.get_segments()]
    # g10, the fastest, reaches 0.8 of the ideal time.
    assert levels[-3:] == pytest.approx([0.8 / 0.9 * part for part in scale])


def test_sweeps_have_a_line_of_bounds():
    axes = drawn("fig18", bounded("fig18", made_up.FEW)).axes[0]
    line = next(one for one in axes.get_lines() if one.get_color() == BOUND_LOOK.colour)
    assert list(line.get_ydata()) == pytest.approx([0.5 / 0.9] * 6)
    axes = drawn("fig16", bounded("fig16")).axes[0]
    lines = [np.asarray(one.get_ydata(), dtype=float) for one in axes.get_lines()]
    heights = [line[0] for line in lines if np.isfinite(line).sum() == 6]
    assert sorted(heights) == pytest.approx([0.2] * 3 + [0.2 / 0.9] * 3)


def test_the_distance_to_the_bound():
    figure = drawn("bound", bounded("bound", made_up.FEW))
    (axes,) = figure.axes
    # Base UVM reaches 0.3, DeepUM+ and the designs of G10 0.5 to 0.8.
    reached = [0.3, 0.5, 0.6, 0.7, 0.8]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.9 / 0.8 * one for one in reached])
    names = legend_words(figure)
    assert names == ["Base UVM", "DeepUM+", "G10-GDS", "G10-Host", "G10", "Bound"]


def test_results_without_a_bound_are_refused():
    for rows in (made_up.results("bound", made_up.FEW), bounded("bound").assign(of_bound=np.nan)):
        with pytest.raises(ConfigError, match="found no cell with a bound; allowed: runs of one job"):
            drawn("bound", rows)
