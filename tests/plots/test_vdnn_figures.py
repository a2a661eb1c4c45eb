"""Figures of offloading designs: from made-up results, and memory and performance from a small run."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readable import assert_readable, legend_words

import g10sim
from g10sim import plots
from g10sim.config.load import load_run
from g10sim.errors import ConfigError
from g10sim.experiment.expand import expand
from g10sim.plots.registry import ENTRIES, paper_figures

FIGURES = ("vdnn_modes", "vdnn_bandwidth", "fragmentation", "gpus_per_uplink")
ALLOCATORS = ("best_fit", "first_fit", "worst_fit", "both_ends", "right_for_resident", "caching")
RATES = [0.4, 0.8, 1.6, 3.2, 4.8, 6.4, 9.6, 12.8, 19.2, 25.6, 51.2]
TRACES = (("alexnet", 256), ("vgg19", 64), ("g10sim.capture.convnets:vgg416", 32))


def labels(figure):
    return legend_words(figure)


def row(number, trace, policy, **more):
    model, batch = trace
    fixed = {"cell": number, "trace": f"traces/{model}-{batch}.g10t", "model": model, "batch_size": batch}
    return {**fixed, "policy": policy, "seed": 0, "status": "ok", **more}


def modes(traces=TRACES[:1]):
    """Cells of three designs in 12 GiB, which the first does not fit, and in 96 GiB, of which it takes 20."""
    rows = []
    for memory in ("12 GiB", "96 GiB"):
        for trace in traces:
            for place, policy in enumerate(("vdnn(mode=none)", "vdnn(mode=conv)", "vdnnpp(mode=conv)")):
                gib = 4 * (5 - place) if place == 0 else 6 - place
                cell = row(len(rows), trace, policy, peak_gpu_bytes=gib * 2**30, performance=1 - place / 10)
                if gib > 12 and memory == "12 GiB":
                    cell |= {"status": "unsupported", "peak_gpu_bytes": np.nan, "performance": np.nan}
                rows.append(cell | {"system.gpu.memory": memory})
    return pd.DataFrame(rows)


def bandwidths(traces=TRACES[:2]):
    """The second design takes 100 cycles, the first 100 and 25 more for each GB/s."""
    rows = [
        row(0, trace, f"{name}(mode={mode})", exec_cycles=100 + more * rate)
        | {"system.pcie.bandwidth": f"{rate} GB/s"}
        for trace in traces
        for rate in RATES
        for name, more in (("vdnn", 25), ("vdnnpp", 0))
        for mode in ("conv", "all")
    ]
    return pd.DataFrame(rows)


def allocations(traces=TRACES[:2]):
    """Of 1, 2 and 3 GiB best fit needs the second, worst fit more; 1 GiB is in use."""
    rows = []
    for trace in traces:
        for mode in ("conv", "all"):
            for order in ("prefetch_first", "gradient_first"):
                for place, allocator in enumerate(ALLOCATORS):
                    for memory in (1, 2, 3):
                        needed = 9 if allocator == "worst_fit" else 2 + place % 2
                        runs = memory >= needed
                        cell = row(len(rows), trace, "vdnn", peak_gpu_bytes=2**30 if runs else np.nan)
                        cell["status"] = "ok" if runs else "unsupported"
                        swept = {"mode": mode, "order": order, "allocator": allocator}
                        cell |= {f"policies.0.{key}": value for key, value in swept.items()}
                        rows.append(cell | {"system.gpu.memory": f"{memory} GiB"})
    return pd.DataFrame(rows)


def uplinks(batches=(64, 128, 192)):
    """K0 runs batches up to 128 at 40 samples/s, K4 all, slower by 10 for each doubling of GPUs at 192."""
    rows = []
    for cell, (batch, gpus, step) in enumerate(
        (batch, gpus, step) for batch in batches for gpus in (1, 2, 4) for step in ("K0", "K4")
    ):
        speed = 40.0 - (10 * (gpus // 2) if batch == 192 else 0)
        for _ in range(gpus):
            one = row(cell, ("vgg19", batch), f"vdnn_multi(ladder={step})", samples_per_s=speed)
            one |= {"performance": speed / 40, "workload.replicas": gpus}
            if step == "K0" and batch == 192:
                one |= {"status": "unsupported", "samples_per_s": np.nan, "performance": np.nan}
            rows.append(one)
    return pd.DataFrame(rows)


MADE_UP = dict(zip(FIGURES, (modes, bandwidths, allocations, uplinks), strict=True))


@pytest.mark.parametrize("name", FIGURES)
def test_it_can_be_read(name):
    assert_readable(getattr(plots, name).draw(MADE_UP[name]()))


@pytest.mark.parametrize("name", FIGURES[:3])
@pytest.mark.slow
def test_it_can_be_read_with_more_traces(name):
    traces = [("alexnet", 2**power) for power in range(6)] + list(TRACES)
    assert_readable(getattr(plots, name).draw(MADE_UP[name](traces[: 6 if name != "vdnn_modes" else 9])))


@pytest.mark.parametrize("name", FIGURES)
def test_its_experiment_is_whole(name):
    assert name in ENTRIES.keys() - paper_figures()
    experiment = expand(load_run(Path("experiments") / f"{name}.yaml"))
    assert (experiment.config.name, experiment.config.output) == (name, f"results/{name}")
    assert all(cell.jobs[0].trace.name.startswith("traces/vdnn/") for cell in experiment.cells)


# --- memory and performance ---


def test_what_does_not_fit_is_an_empty_bar_and_a_cross():
    figure = plots.vdnn_modes.draw(modes())
    assert labels(figure) == ["vDNN none", "vDNN conv", "vDNN++ conv", "unsupported"]
    memory, performance = figure.axes
    assert [bar.get_height() for bar in memory.patches] == [20, 5, 4]
    assert [bar.get_facecolor()[3] for bar in memory.patches] == [0, 1, 1]
    assert memory.get_lines()[0].get_ydata()[0] == 12
    assert [bar.get_height() for bar in performance.patches] == pytest.approx([0.9, 0.8])
    assert sum(line.get_marker() == "x" for line in performance.get_lines()) == 1


@pytest.mark.slow
def test_memory_and_performance_of_a_run(tmp_path):
    config = {
        "workload": {"trace": "traces/vdnn/alexnet-b256.g10t"},
        "system": {"preset": "titanx-12g-pcie3", "gpu": {"memory": "1800 MiB"}},
        "policies": ["ideal", {"name": "vdnn", "mode": "none"}, {"name": "vdnn", "mode": "all"}],
    }
    g10sim.run({"name": "small", **config}, output=tmp_path / "out")
    memory, performance = plots.draw("vdnn_modes", tmp_path / "out").axes
    none, everything = (bar.get_height() for bar in memory.patches)
    assert 1 < everything < none < 1800 / 1024
    assert [bar.get_height() for bar in performance.patches] == pytest.approx([1, 0.882], abs=0.001)


# --- gain over bandwidth ---


def test_gains_are_those_of_equal_modes_at_equal_bandwidth():
    figure = plots.vdnn_bandwidth.draw(bandwidths())
    assert labels(figure) == ["conv", "all"]
    assert figure.axes[0].get_ylabel() == "gain of vDNN++ over vDNN\n(%)"
    for axes in figure.axes:
        for line in axes.get_lines():
            assert line.get_xdata().tolist() == RATES
            assert line.get_ydata().tolist() == pytest.approx([25 * rate for rate in RATES])


def test_a_gain_needs_both_designs():
    rows = bandwidths(TRACES[:1])
    rows.loc[(rows["policy"] == "vdnnpp(mode=all)") & (rows["exec_cycles"] == 100), "status"] = "unsupported"
    conv, everything = plots.vdnn_bandwidth.draw(rows).axes[0].get_lines()
    assert (len(conv.get_xdata()), len(everything.get_xdata())) == (len(RATES), 0)
    with pytest.raises(ConfigError, match="found 1 designs; allowed: two"):
        plots.vdnn_bandwidth.draw(rows[rows["policy"].str.startswith("vdnn(")])


# --- fragmentation ---


def test_the_smallest_memory_that_runs_counts():
    figure = plots.fragmentation.draw(allocations(TRACES[:1]))
    (axes,) = figure.axes
    assert labels(figure)[:6] == [name.replace("_", " ") for name in ALLOCATORS]
    assert [bar.get_height() for bar in axes.patches] == [2, 3, 3, 2, 3] * 4
    assert sum(line.get_marker() == "x" for line in axes.get_lines()) == 4
    groups = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
    assert groups[:2] == ["conv prefetch first", "conv gradient first"]


# --- GPUs per uplink ---


def test_throughput_is_that_of_a_gpu_and_the_batch_that_of_the_search():
    figure = plots.gpus_per_uplink.draw(uplinks())
    assert labels(figure) == ["K0", "K4", "Ideal", "unsupported"]
    *panels, batches = figure.axes
    k0, k4, ideal = (line for line in panels[2].get_lines() if line.get_marker() != "x")
    assert k0.get_ydata().tolist() == []
    assert k4.get_ydata().tolist() == [40, 30, 20]
    assert ideal.get_ydata()[0] == 40
    heights = [bar.get_height() for bar in batches.patches]
    assert heights[:6] == [128, 192] * 3  # of K0 and K4, for one, two and four GPUs
    assert heights[6:] == [128, 192, 128, 128, 128, 128]


# --- Link occupancy ---


def occupancy():
    """Two iterations of 1000 cycles (10 ms): 100 MB leave in the first half of the last, 50 MB come back."""
    rows = pd.DataFrame(
        [
            row(0, TRACES[0], "vdnn_multi(ladder=K1)", exec_cycles=1000, exec_ms=10.0, performance=0.5),
            row(1, TRACES[0], "vdnn_multi(ladder=K2)", status="unsupported"),
        ]
    )
    kernels = pd.DataFrame({"cell": [0, 0], "start": [0, 1000], "end": [1000, 2000]})
    moves = [("GPU", "HOST", 0, 500, 10**9), ("GPU", "HOST", 1000, 1500, 10**8)]
    moves += [("HOST", "GPU", 1750, 2000, 5 * 10**7), ("NONE", "GPU", 1500, 2000, 10**9)]
    names = ["source", "target", "start", "end", "size_bytes"]
    return rows, kernels, pd.DataFrame(moves, columns=names).assign(cell=0)


def test_the_link_is_as_busy_as_copies_of_the_last_iteration_say():
    figure = plots.link_occupancy.draw(*occupancy())
    (axes,) = figure.axes
    assert axes.get_title() == "ladder=K1: 50% of ideal"
    legend = legend_words(figure)
    assert legend == ["from the GPUs (up)", "to the GPUs (down)"]
    out, back = (patch.get_data() for patch in axes.patches)
    assert out.edges[-1] == pytest.approx(10)
    # 100 MB in 5 ms are 20 GB/s, 50 MB in 2.5 ms as well; new memory is not copied.
    assert out.values[:119] == pytest.approx([20] * 119)
    assert max(out.values[121:]) == pytest.approx(0)
    assert back.values[181:] == pytest.approx([-20] * 59)
    assert max(abs(back.values[:179])) == pytest.approx(0)
    assert_readable(figure)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("vdnn_bandwidth", "system.pcie.bandwidth"),
        ("fragmentation", "system.gpu.memory"),
        ("fragmentation", "policies.0.order"),
        ("gpus_per_uplink", "workload.replicas"),
    ],
)
def test_what_was_not_swept_is_named(name, column):
    rows = MADE_UP[name]().drop(columns=column)
    with pytest.raises(ConfigError, match=f"found no column '{column.removeprefix('policies.0.')}'"):
        getattr(plots, name).draw(rows)
