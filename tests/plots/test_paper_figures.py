"""Figures of the paper, from made-up results: what they show, and that it can be read."""

from itertools import combinations

import made_up
import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.markers import MarkerStyle
from readable import assert_readable, legend_words

from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.plots import panels, style
from g10sim.plots.demand import peaks
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.policies.interface.registry import available

FIGURES = paper_figures()
DRAWN = {}
TRACES = {"one trace": made_up.FEW, "one model": made_up.SOME, "seven models": made_up.MANY}


def made(figure, traces=made_up.SOME, **named):
    """Draw a figure; one of the same traces and options once."""
    key = (figure, tuple(traces), *named.items())
    if key not in DRAWN:
        DRAWN[key] = drawn(figure, traces, **named)
    return DRAWN[key]


def drawn(figure, traces, **named):
    rows = made_up.results(figure, traces, **named)
    return getattr(plots, figure).draw(rows, *made_up.tables(ENTRIES[figure].tables, rows))


@pytest.mark.parametrize(
    "traces", [pytest.param(one, marks=() if one == "one model" else pytest.mark.nightly) for one in TRACES]
)
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.slow
def test_texts_are_large_enough_apart_and_inside(name, traces):
    assert_readable(made(name, TRACES[traces]))


@pytest.mark.parametrize("name", ["fig11", "fig12", "fig13", "fig14", "fig15"])
def test_names_of_policies_with_parameters_fit(name):
    rows = made_up.results(name, made_up.FEW)
    rows["policy"] = rows["policy"].replace("g10", "g10(recovery_look_ahead=64, memory_target=0.9)")
    assert_readable(getattr(plots, name).draw(rows, *made_up.tables(ENTRIES[name].tables, rows)))


def test_a_cell_that_failed_is_marked_with_one_character():
    rows = made_up.results("fig11", made_up.FEW).assign(status="failed")
    with style.settings():
        (mark,) = (handle for handle in panels.handles((), rows) if handle.get_label() == "failed")
        shape = MarkerStyle(mark.get_marker()).get_path().get_extents()
    assert shape.width < shape.height


@pytest.mark.parametrize("name", FIGURES)
def test_axes_have_labels_with_units(name):
    figure = made(name)
    labels = [text.get_text() for text in (figure._supxlabel, figure._supylabel) if text is not None]
    labels += [axes.get_ylabel() for axes in figure.axes]
    written = " ".join(labels).replace("\n", " ")
    units = ("(GiB)", "(s)", "(MiB)", "(ideal = 1)", "(%)", "(GB)", "(samples/s)", "(GB/s)", "(±%)")
    assert any(unit in written for unit in (*units, "(own duration = 1)"))


@pytest.mark.parametrize("name", [name for name in FIGURES if not ENTRIES[name].tables])
def test_what_is_unsupported_is_marked(name):
    if "flashneuron" not in set(made_up.results(name, made_up.SOME)["policy"]):
        return
    figure, whole = made(name), made(name, unsupported=())
    legend = legend_words(figure)
    assert "unsupported" in legend
    assert "unsupported" not in [text.get_text() for text in whole.legends[0].get_texts()]


def test_results_of_one_policy_only():
    for name in ("fig11", "fig12", "fig15"):
        rows = made_up.results(name, made_up.SOME)
        with pytest.raises(ConfigError, match="at least one other than 'ideal'"):
            getattr(plots, name).draw(rows[rows["policy"] == "ideal"])


def test_a_sweep_is_needed():
    with pytest.raises(ConfigError, match=r"no column 'system.host.memory'; allowed: .* sweeps over it"):
        plots.fig16.draw(made_up.results("fig11", made_up.SOME))


def heights(axes, width=None):
    return [bar.get_height() for bar in axes.patches if width is None or bar.get_width() == width]


def test_bars_of_performance():
    figure = made("fig11", made_up.SOME)
    (axes,) = figure.axes
    assert len(axes.patches) == 3 * 6 - 1 + 6
    assert sorted({round(height, 6) for height in heights(axes)}) == [0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "BERT-base\n192", "BERT-base\n256", "BERT-base\n512", "geometric\nmean\n2 traces",
    ]  # fmt: skip
    names = legend_words(figure)
    assert names[:6] == ["Base UVM", "FlashNeuron", "DeepUM+", "G10-GDS", "G10-Host", "G10"]
    assert names[6:] == ["Ideal", "unsupported"]


def test_breakdown_is_in_shares():
    axes = made("fig12", made_up.FEW, unsupported=()).axes[0]
    base_uvm = [bar for bar in axes.patches if abs(bar.get_x() + bar.get_width() / 2) < 1e-9]
    assert [bar.get_height() for bar in base_uvm] == pytest.approx([22.5, 7.5, 70])
    assert base_uvm[-1].get_y() + base_uvm[-1].get_height() == pytest.approx(100)


def test_traffic_is_in_gb():
    axes = made("fig14", made_up.FEW, unsupported=()).axes[0]
    assert heights(axes)[:4] == [1, 2, 3, 4]
    assert axes.get_ylim()[1] > 60


def test_slowdowns_are_those_of_the_reported_iteration():
    rows = made_up.results("fig13", made_up.FEW, unsupported=())
    rows["exec_cycles"] = 1500
    figure = plots.fig13.draw(rows, *made_up.tables(["kernels"], rows))
    for line in figure.axes[0].get_lines():
        assert list(line.get_ydata()) == [1, 2, 4, 8]
        assert [line.get_xdata()[0], line.get_xdata()[-1]] == [0, 100]


def test_throughput_by_batch_size():
    figure = made("fig15", made_up.SOME, unsupported=())
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["192", "256", "512"]
    assert max(heights(axes)) == pytest.approx(512 * 0.8)
    ideal = [segment[0, 1] for lines in axes.collections for segment in lines.get_segments()]
    assert ideal == pytest.approx([192, 256, 512])


def test_sweeps_read_their_units():
    for name, ticks in (
        ("fig16", ["0", "16", "32", "64", "128", "256"]),
        ("fig18", ["3.2", "6.4", "12.8", "19.2", "25.6", "32"]),
        ("fig19", ["0", "5", "10", "15", "20", "25"]),
    ):
        axes = made(name, made_up.FEW, unsupported=()).axes[0]
        assert [label.get_text() for label in axes.get_xticklabels()] == ticks, name


def test_variation_shows_mean_and_interval():
    axes = made("fig19", made_up.FEW).axes[0]
    (line, _, (bars,)) = axes.containers[0]
    assert list(line.get_ydata()) == pytest.approx([0.21] * 6)
    low, high = bars.get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(4.302653 * 0.01 / 3**0.5)


def test_memory_is_compared_with_that_of_the_gpu():
    rows = made_up.results("fig2", made_up.FEW)
    (table,) = made_up.tables(["working_sets"], rows)
    axes = plots.fig2.draw(rows, table).axes[0]
    (line,) = axes.get_lines()
    assert line.get_ydata()[0] == pytest.approx(40)
    assert axes.get_ylim()[1] > 40


def test_kinds_of_tensors_are_stacked_up_to_all_live_bytes():
    rows = made_up.results("fig20", made_up.FEW)
    (table,) = made_up.tables(["working_sets"], rows)
    most = table[table["cell"] == 0].groupby("kernel")["live_bytes"].sum().max() / 2**30
    areas = plots.fig20.draw(rows, table).axes[0].collections
    assert max(area.get_paths()[0].vertices[:, 1].max() for area in areas) == pytest.approx(most)


@pytest.mark.parametrize("name", ["fig2", "fig20", "fig21"])
def test_beginnings_of_micro_batches_are_marked(name):
    rows = made_up.results(name, made_up.FEW)
    (table,) = made_up.tables(["working_sets"], rows)
    plain = getattr(plots, name).draw(rows, table)
    last = table["kernel"].max()
    # Two halves before the last kernel, which updates the weights.
    table["micro_batch"] = 1 + (table["kernel"] >= last // 2)
    table.loc[table["kernel"] == last, "micro_batch"] = 0
    figure = getattr(plots, name).draw(rows, table)
    assert_readable(figure)
    lines = {line.get_xdata()[0] for line in figure.axes[0].get_lines()[:2]}
    assert lines == {0, last // 2}
    words = [legend_words(one) for one in (plain, figure)]
    assert words[1] == [*words[0], "micro-batch begins"]


def test_of_many_kernels_the_largest_of_neighbours_is_shown():
    rows = pd.DataFrame({"kernel": range(1200), "kind": "weight", "live_bytes": 2**30})
    rows.loc[rows["kernel"] == 777, "live_bytes"] = 5 * 2**30
    table = peaks(rows, "live_bytes")
    assert len(table) == 120
    assert table["weight"].max() == 5
    assert table["weight"].idxmax() == 777


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in FIGURES[:4] else pytest.mark.nightly) for one in FIGURES]
)
def test_files_are_the_same_every_time(name, tmp_path):
    for place in ("one", "two"):
        paths = plots.save(drawn(name, made_up.FEW), tmp_path / place, name)
        assert [path.name for path in paths] == [f"{name}.pdf", f"{name}.png"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()


def test_labels_are_those_of_the_policies():
    policies = available()
    for name, look in style.looks(pd.DataFrame({"policy": list(policies)})).items():
        assert look == policies[name].legend()
        assert look.label == policies[name].label


def luminance(colour):
    red, green, blue = mpl.colors.to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


POLICIES = {name: policy.legend() for name, policy in available().items()}


@pytest.mark.parametrize("group", [POLICIES, style.KINDS], ids=["policies", "kinds"])
def test_series_differ_without_colour(group):
    for one, other in combinations(group.values(), 2):
        assert one.marker != other.marker
        if one.hatch == other.hatch:
            assert abs(luminance(one.colour) - luminance(other.colour)) > 0.08, (one, other)


def test_lines_of_white_bars_are_black_with_white_marks():
    look = style.KINDS["other"]
    assert look.bar()["facecolor"] == "#FFFFFF"
    assert (look.curve()["color"], look.curve()["markerfacecolor"]) == ("#000000", "#FFFFFF")
    assert look.outline()["edgecolor"] == "#000000"


def test_unknown_policies_and_variants_get_looks_of_their_own():
    names = ["g10", "mine:Policy", "vdnn(mode=all)", "vdnn(mode=conv)", "g10(prefetch=late)"]
    found = style.looks(pd.DataFrame({"policy": names}))
    labels = ["G10", "Policy", "vDNN(mode=all)", "vDNN(mode=conv)", "G10(prefetch=late)"]
    assert [look.label for look in found.values()] == labels
    assert len({look.colour for look in found.values()}) == len(names)


def test_traces_with_equal_model_and_batch_size_are_told_apart():
    rows = made_up.results("fig11", made_up.FEW)
    other = rows.assign(trace="elsewhere/long.g10t")
    labels = [
        label.get_text() for label in plots.fig11.draw(pd.concat([rows, other])).axes[0].get_xticklabels()
    ]
    assert len(set(labels)) == len(labels) == 3  # one is the mean


@pytest.fixture
def swept(tmp_path):
    """Results of figure 11 with two sizes of host memory, one of which halves all performance."""
    rows = made_up.results("fig11", made_up.FEW)
    more = rows.assign(cell=rows["cell"] + len(rows), performance=rows["performance"] / 2)
    both = pd.concat([rows.assign(host="32 GiB"), more.assign(host="0 GiB")])
    both.insert(int(both.columns.get_loc("policy")) + 1, "system.host.memory", both.pop("host"))
    both.to_csv(tmp_path / "results.csv", index=False)
    return tmp_path


def test_a_figure_refuses_several_values_of_what_it_shows_one_of(swept):
    with pytest.raises(
        ConfigError,
        match=r"^results: found 2 values of system\.host\.memory \(32 GiB, 0 GiB\); allowed for fig11: "
        r"one of them, as with --where system\.host\.memory=VALUE$",
    ):
        plots.draw("fig11", swept)


def test_a_figure_names_every_key_of_which_it_shows_one_value(swept):
    rows = pd.read_csv(swept / "results.csv")
    rates = [rows.assign(link=link) for link in ("32 GB/s", "8 GB/s")]
    both = pd.concat(rates)
    both.insert(int(both.columns.get_loc("policy")) + 1, "system.pcie.bandwidth", both.pop("link"))
    both.to_csv(swept / "results.csv", index=False)
    with pytest.raises(
        ConfigError,
        match=r"and 2 values of system\.host\.memory \(32 GiB, 0 GiB\); allowed for fig11: one of each, "
        r"as with --where system\.pcie\.bandwidth=VALUE --where system\.host\.memory=VALUE$",
    ):
        plots.draw("fig11", swept)


def test_a_figure_shows_the_cells_with_a_value(swept):
    tallest = []
    for memory in ("32 GiB", "0 GiB"):
        axes = plots.draw("fig11", swept, where={"system.host.memory": memory}).axes[0]
        tallest.append(max(patch.get_height() for patch in axes.patches))
    assert tallest[0] == pytest.approx(2 * tallest[1])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"system.host": "0 GiB"},
            r"--where: found 'system\.host' \(did you mean 'system\.host\.memory'\?\)",
        ),
        (
            {"system.host.memory": "1 GiB"},
            r"--where system\.host\.memory: found '1 GiB'.*allowed: 0 GiB, 32 GiB",
        ),
    ],
)
def test_columns_and_values_that_are_not_there(swept, where, message):
    with pytest.raises(ConfigError, match=message):
        plots.draw("fig11", swept, where=where)


def test_results_that_are_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"results\.csv: cannot be read"):
        plots.draw("fig11", tmp_path)
    made_up.results("fig13", made_up.FEW).to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(ConfigError, match=r"kernels.parquet: found no such file; .*record: \[kernels\]"):
        plots.draw("fig13", tmp_path)
    with pytest.raises(ConfigError, match="found a cell; allowed: none"):
        plots.draw("fig11", tmp_path, cell=1)
    with pytest.raises(ConfigError, match=r"no figure 'fig1' \(did you mean 'fig\d+'\?\)"):
        plots.draw("fig1", tmp_path)


@pytest.mark.parametrize("name", ["fig11", "fig12", "fig14", "fig15"])
def test_several_seeds_are_drawn_as_means_with_intervals(name):
    columns = ["performance", "samples_per_s", "host_to_gpu_bytes"]
    one = made_up.results(name, made_up.FEW, unsupported=())
    seeds = [one.assign(seed=seed, **one[columns] * (1 + seed / 10)) for seed in (0, 1, 2)]
    drawn = [getattr(plots, name).draw(rows).axes[0] for rows in (seeds[1], pd.concat(seeds))]
    assert heights(drawn[1]) == pytest.approx(heights(drawn[0]))
    intervals = [sum(hasattr(made, "has_yerr") for made in axes.containers) for axes in drawn]
    assert intervals[0] == 0 < intervals[1]


def test_of_many_traces_there_are_pages_each_with_the_mean_of_all():
    traces = [(f"model-number-{number}", 256) for number in range(30)]
    rows = made_up.results("fig11", traces, unsupported=())
    rows.attrs["machine"] = "a100-40g, GPU memory 40 GiB"
    pages = ENTRIES["fig11"].pages(rows)
    assert len(pages) == 2
    for figure in pages:
        assert_readable(figure)
        assert figure._supxlabel.get_text() == "model, batch size; a100-40g, GPU memory 40 GiB"
        labels = [label.get_text() for axes in figure.axes for label in axes.get_xticklabels()]
        assert labels[-1] == "geometric\nmean\n30 traces"
