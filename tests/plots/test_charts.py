"""Charts of any sweep: the numbers that they show, what they refuse, and that they can be read."""

import io
import itertools
import math

import made_up
import numpy as np
import pandas as pd
import pytest
from readable import assert_readable, legend_words

from g10sim import plots
from g10sim.errors import ConfigError
from g10sim.plots import charts
from g10sim.plots.charts import DRAWINGS
from g10sim.plots.points import Roles, points
from g10sim.plots.style import trace_names
from g10sim.results.swept import values_of

LINK, MEMORY = "system.pcie.bandwidth", "system.gpu.memory"
LINKS, MEMORIES = ["32 GB/s", "8 GB/s"], ["80 GiB", "40960 MiB"]
TRACES = [("bert-base-uncased", 256), ("bert-base-uncased", 512)]


def reached(batch, place, memory, link, seed=0):
    """The performance of a cell: a number that no other cell has."""
    best = {"80 GiB": 0.8, "40960 MiB": 0.4}[memory] * {"32 GB/s": 1, "8 GB/s": 0.5}[link] * 256 / batch
    return best * (10 + place + seed) / 20


def swept(policies=made_up.POLICIES, seeds=(0,), traces=TRACES):
    """Two traces, seven policies, two memories, two link rates: 56 rows."""
    rows = []
    for (model, batch), memory, link in itertools.product(traces, MEMORIES, LINKS):
        for (place, policy), seed in itertools.product(enumerate(policies), seeds):
            row = made_up._row(len(rows), model, batch, policy, place, seed)
            performance = 1.0 if policy == "ideal" else reached(batch, place, memory, link, seed)
            cycles = row["ideal_cycles"] / performance
            row |= {"performance": performance, "exec_cycles": cycles, "exec_ms": cycles / 10**6}
            row |= {"stall_cycles": cycles - 10**9, "bound_cycles": 1.25 * 10**9, MEMORY: memory, LINK: link}
            rows.append(row)
    found = pd.DataFrame(rows)
    front = ["cell", "name", "trace", "model", "batch_size", "policy", MEMORY, LINK, "seed", "status"]
    return found[[*front, *(column for column in found if column not in front)]]


def written(tmp_path, kind, rows, where=None, **roles):
    """Draw a chart from a directory of results, and read its points back from the file beside it."""
    rows.to_csv(tmp_path / "results.csv", index=False)
    figures, data = plots.chart(kind, tmp_path, where=where, **roles)
    paths = plots.save_chart(figures, data, tmp_path / "figures", "chart")
    assert paths[-1].name == "chart.csv"
    return figures, pd.read_csv(io.BytesIO(paths[-1].read_bytes()))


@pytest.mark.parametrize("name", ["model", "batch_size", "exec_cycles"])
def test_results_without_a_column_are_refused_by_its_name(tmp_path, name):
    where = {MEMORY: "80 GiB", LINK: "8 GB/s"}
    rows = swept().drop(columns=name)
    refused = rf"results\.csv: found no column '{name}'; allowed: a file written by 'run'"
    with pytest.raises(ConfigError, match=refused):
        written(tmp_path, "bar", rows, x="policy", where=where)
    with pytest.raises(ConfigError, match=refused):
        plots.draw("fig11", tmp_path, where=where)


@pytest.mark.slow
def test_points_of_a_line_are_those_of_the_results(tmp_path):
    rows = swept()
    assert len(rows) == 56
    figures, data = written(tmp_path, "line", rows, x=LINK, where={MEMORY: "80 GiB"})
    assert len(data) == 2 * 6 * 2  # traces, policies without the ideal one, links
    for found in data.to_dict("records"):
        place = made_up.POLICIES.index(found["policy"])
        batch = int(found["trace"].removesuffix(".g10t").rpartition("-")[2])
        link = {8: "8 GB/s", 32: "32 GB/s"}[found["system.pcie.bandwidth (GB/s)"]]
        assert found["performance (ideal = 1)"] == pytest.approx(reached(batch, place, "80 GiB", link))
        assert found["bound"] == pytest.approx(0.8)
    drawn = {line.get_label(): line for line in figures[0].axes[1].containers}
    g10 = drawn["G10"].lines[0]
    assert list(g10.get_xdata()) == [0, 1]
    assert list(g10.get_ydata()) == pytest.approx(
        [reached(512, 6, "80 GiB", "8 GB/s"), reached(512, 6, "80 GiB", "32 GB/s")]
    )
    ticks = [label.get_text() for label in figures[0].axes[1].get_xticklabels()]
    assert ticks == ["8", "32"]
    legend = legend_words(figures[0])
    assert legend[-2:] == ["Ideal", "Bound"]


@pytest.mark.slow
def test_every_column_can_be_a_series_or_a_panel(tmp_path):
    where = {"trace": "traces/bert-base-uncased-256.g10t"}
    figures, data = written(tmp_path, "line", swept(), x=MEMORY, hue=LINK, col="policy", where=where)
    assert [axes.get_title() for axes in figures[0].axes][:2] == ["Base UVM", "FlashNeuron"]
    assert figures[0].legends[0].get_title().get_text() == "system.pcie.bandwidth (GB/s)"
    assert sorted(data["system.gpu.memory (GiB)"].unique()) == [40, 80]
    bounds = [
        line for line in figures[0].axes[0].lines if list(line.get_ydata()) == pytest.approx([0.8, 0.8])
    ]
    assert len(bounds) == 2  # one for each link, as high


@pytest.mark.slow
def test_bars_are_as_high_as_the_values(tmp_path):
    figures, _ = written(tmp_path, "bar", swept(), x="policy", hue=MEMORY, where={LINK: "8 GB/s"})
    heights = sorted(patch.get_height() for patch in figures[0].axes[0].patches)
    assert heights == pytest.approx(
        sorted(reached(256, place, memory, "8 GB/s") for place in range(1, 7) for memory in MEMORIES)
    )


@pytest.mark.slow
def test_bounds_that_differ_between_bars_of_a_group_are_drawn_at_each(tmp_path):
    rows = swept()
    rows["bound_cycles"] = np.where(rows[MEMORY] == "80 GiB", 1.25e9, 2e9)
    figures, _ = written(tmp_path, "bar", rows, x="policy", hue=MEMORY, where={LINK: "8 GB/s"})
    drawn = [lines.get_segments()[0] for lines in figures[0].axes[0].collections]
    assert {round(float(ends[0][1]), 9) for ends in drawn} == {0.8, 0.5}
    assert len(drawn) == 6 * 2


@pytest.mark.slow
def test_a_map_shows_the_values_as_numbers(tmp_path):
    where = {LINK: "8 GB/s", "trace": "traces/bert-base-uncased-256.g10t"}
    figures, _ = written(tmp_path, "heat", swept(), x=MEMORY, where=where)
    texts = {text.get_text() for text in figures[0].axes[0].texts}
    assert f"{reached(256, 6, '80 GiB', '8 GB/s'):.2f}" in texts
    assert figures[0].axes[0].images[0].get_array().shape == (6, 2)


@pytest.mark.slow
def test_cycles_and_bytes_have_units(tmp_path):
    where = {MEMORY: "80 GiB"}
    _, data = written(tmp_path, "bar", swept(), x=LINK, y="stall_cycles", where=where)
    first = data.iloc[0]
    assert first["policy"] == "ideal"  # a bar like others where the metric is no performance
    slow = data[(data["policy"] == "g10") & (data["system.pcie.bandwidth (GB/s)"] == 8)]
    performance = reached(256, 6, "80 GiB", "8 GB/s")
    assert slow["stall (ms)"].iloc[0] == pytest.approx(1000 / performance - 1000)
    _, data = written(tmp_path, "bar", swept(), x=LINK, y="ssd_to_gpu_bytes", where=where)
    assert data[data["policy"] == "g10"]["SSD to GPU (GB)"].iloc[0] == 6


@pytest.mark.slow
def test_seeds_are_averaged_with_their_interval(tmp_path):
    rows = swept(policies=("ideal", "g10"), seeds=(0, 1, 2))
    _, data = written(tmp_path, "line", rows, x=LINK, where={MEMORY: "80 GiB"})
    found = data[(data["system.pcie.bandwidth (GB/s)"] == 32) & data["trace"].str.contains("256")].iloc[0]
    values = [reached(256, 1, "80 GiB", "32 GB/s", seed) for seed in (0, 1, 2)]
    assert found["performance (ideal = 1)"] == pytest.approx(np.mean(values))
    # Student's t with two degrees of freedom: 4.3027.
    expected = 4.302653 * np.std(values, ddof=1) / math.sqrt(3)
    assert found["performance (ideal = 1), 95% interval"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["line", "bar"])
def test_ranges_under_uncertainty_are_whiskers_and_columns(tmp_path, kind):
    rows = swept(policies=("ideal", "g10"), traces=TRACES[:1])
    rows = rows.assign(performance_low=rows["performance"] / 2, performance_high=rows["performance"] * 1.5)
    figures, data = written(tmp_path, kind, rows, x=LINK, y="performance", where={MEMORY: "80 GiB"})
    value = data["performance (ideal = 1)"]
    assert list(data["performance (ideal = 1), lowest"]) == pytest.approx(list(value / 2))
    assert list(data["performance (ideal = 1), highest"]) == pytest.approx(list(value * 1.5))
    drawn = [made for made in figures[0].axes[0].containers if getattr(made, "has_yerr", False)]
    ends = sorted(
        end for made in drawn for bar in made[2] for part in bar.get_segments() for end in part[:, 1]
    )
    assert ends[0] == pytest.approx(value.min() / 2)
    assert ends[-1] == pytest.approx(value.max() * 1.5)


def test_several_cells_at_one_point_are_refused_with_the_keys_that_they_differ_by(tmp_path):
    with pytest.raises(
        ConfigError, match=r"found 2 values of system\.gpu\.memory .* at one point"
    ) as refused:
        written(tmp_path, "line", swept(), x=LINK)
    assert "--where system.gpu.memory=VALUE" in str(refused.value)
    with pytest.raises(ConfigError, match=r"of trace .* and 2 values of system\.gpu\.memory"):
        written(tmp_path, "bar", swept(), x="model", hue="policy", col=LINK)


def test_columns_that_are_not_there_are_named_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match=r"--x: found 'system.pcie.bandwith' \(did you mean"):
        written(tmp_path, "line", swept(), x="system.pcie.bandwith")
    with pytest.raises(ConfigError, match=r"--y: found text in 'status'"):
        written(tmp_path, "line", swept(), x=LINK, y="status")
    with pytest.raises(ConfigError, match=r"found 'policy' twice"):
        written(tmp_path, "bar", swept(), x="policy", hue="policy")
    with pytest.raises(ConfigError, match=r"found no chart 'lines'"):
        plots.chart("lines", tmp_path, x=LINK)


@pytest.mark.slow
def test_policies_without_a_swept_parameter_are_level(tmp_path):
    rows = swept(policies=("base_uvm", "g10"), traces=TRACES[:1])
    rows = rows[(rows[MEMORY] == "80 GiB")].drop(columns=MEMORY)
    rows = rows.rename(columns={LINK: "policies.1.look_ahead"})
    rows["policies.1.look_ahead"] = np.where(rows["policy"] == "g10", [8, 8, 64, 64], np.nan)
    rows = rows.drop_duplicates(["policy", "policies.1.look_ahead"])
    figures, data = written(tmp_path, "line", rows, x="policies.1.look_ahead")
    assert list(data["policies.1.look_ahead"].dropna()) == [8, 64]
    level = data[data["policies.1.look_ahead"].isna()]["performance (ideal = 1)"].iloc[0]
    axes = figures[0].axes[0]
    assert any(list(line.get_ydata()) == pytest.approx([level, level]) for line in axes.lines)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "64"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "role"),
    [
        pytest.param("line", {"x": LINK}, marks=pytest.mark.nightly),
        ("bar", {"x": "policy"}),
        pytest.param("heat", {"x": "policy", "hue": LINK}, marks=pytest.mark.nightly),
    ],
)
def test_many_panels_flow_to_further_pages(tmp_path, kind, role):
    traces = [(model, batch) for model in made_up.MODELS for batch in (64, 256, 1024)]
    rows = swept(policies=("ideal", "g10"), traces=traces)
    where = {MEMORY: "80 GiB"} | ({LINK: "8 GB/s"} if kind == "bar" else {})
    figures, _ = written(tmp_path, kind, rows, where=where, **role)
    assert len(figures) > 1
    for figure in figures:
        assert_readable(figure)
    assert (tmp_path / "figures" / "chart-2.png").is_file()


@pytest.mark.parametrize("kind", DRAWINGS)
@pytest.mark.parametrize(
    "roles",
    [
        Roles(x=LINK, col="trace"),
        Roles(x="policy", hue=MEMORY),
        Roles(x=MEMORY, y="stall_cycles", hue="trace", col="policy"),
        Roles(x="batch_size", y="samples_per_s"),
    ],
    ids=str,
)
@pytest.mark.slow
def test_charts_can_be_read(kind, roles):
    rows = swept()
    for column, value in ((LINK, "8 GB/s"), (MEMORY, "80 GiB")):
        if column not in roles.columns:
            rows = rows[rows[column] == value]
    rows.loc[rows["policy"] == "flashneuron", "status"] = "unsupported"
    rows.loc[rows["policy"] == "flashneuron", ["performance", "exec_ms", "samples_per_s"]] = np.nan
    for figure in DRAWINGS[kind](points(rows, roles)):
        assert_readable(figure)
        assert any("unsupported" in text.get_text() for text in figure.legends[0].get_texts())


@pytest.mark.parametrize("kind", DRAWINGS)
@pytest.mark.parametrize("role", ["hue", "col"])
def test_charts_of_a_swept_mapping_can_be_read(kind, role):
    rates = [f'{{"read_bandwidth": "{rate} GB/s", "write_bandwidth": "{rate} GB/s"}}' for rate in (3.2, 6.4)]
    rows = swept(("ideal", "deepum"), traces=TRACES[:1])
    rows["system.ssd"] = rows[LINK].map(dict(zip(LINKS, rates, strict=True)))
    rows = rows[["system.ssd", *(column for column in rows if column not in (LINK, "system.ssd"))]]
    for figure in DRAWINGS[kind](points(rows, Roles(x=MEMORY, **{role: "system.ssd"}))):
        assert_readable(figure)


@pytest.mark.parametrize(
    ("texts", "numbers", "label"),
    [
        (["512 MiB", "16 GiB", "8 GiB"], [0.5, 8, 16], "key (GiB)"),
        (["400 MiB", "600 MiB", "1 GiB"], [400, 600, 1024], "key (MiB)"),
        (["3.2 GB/s", "800 MB/s"], [0.8, 3.2], "key (GB/s)"),
        (["45 us", "0 us"], [0, 45], "key (us)"),
        ([0.1, 0.05], [0.05, 0.1], "key"),
        (["true", "false"], [], "key"),
        (
            [f'{{"read_bandwidth": "{rate} GB/s", "write_bandwidth": "3 GB/s"}}' for rate in (6.4, 3.2)],
            [3.2, 6.4],
            "key.read_bandwidth (GB/s)",
        ),
        (
            [f'{{"read": "{rate} GB/s", "write": "{rate} GB/s"}}' for rate in (3.2, 6.4)],
            [3.2, 6.4],
            "key: read, write (GB/s)",
        ),
        (['{"model": "flash", "drives": 2}', '{"drives": 1}'], [], "key: model, drives"),
    ],
)
def test_swept_values_are_read_as_quantities_in_order(texts, numbers, label):
    found = values_of(pd.Series(texts), "key")
    assert list(found.numbers.values()) == pytest.approx(numbers)
    assert found.label == label


def test_traces_of_one_model_are_told_apart_by_sequence_length_and_type():
    names = {
        "bert-base-b192-s512": ("bert", 192), "bert-base-b256-s128": ("bert", 256),
        "gpt2-b8-s1024": ("gpt2", 8), "gpt2-bf16-b8-s1024": ("gpt2", 8),
        "vit-b64": ("vit", 64), "vit-b128": ("vit", 128),
    }  # fmt: skip
    rows = [
        {"trace": f"t/{n}.g10t", "model": model, "batch_size": size} for n, (model, size) in names.items()
    ]
    shown = [name.batch for name in trace_names(pd.DataFrame(rows))]
    assert shown == ["192 seq 512", "256 seq 128", "8 (gpt2-b8-s1024)", "8 bf16", "64", "128"]


def test_a_broken_name_in_a_title_gets_no_space():
    title = charts._title("transformer-\n72x3072\nbatch 16", 24)
    assert title == "transformer-72x3072\nbatch 16"
