"""Figures of models larger than GPU memory: made-up results, and their experiments on a small model."""

import pandas as pd
import pytest
from readable import assert_readable, legend_words

from g10sim import plots
from g10sim.config.data import data_path
from g10sim.config.load import load_run
from g10sim.experiment.expand import expand
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

ALL_ON_SSD = "zero_infinity(offload_param=ssd, offload_optimizer=ssd, pipeline=True)"
SWEEPS = {
    "training_gpu_memory": ("system.gpu.memory", ["24 GiB", "40 GiB", "80 GiB"]),
    "training_host_memory": ("system.host.memory", ["64 GiB", "1 TiB", "1.5 TiB"]),
    "training_ssd_bandwidth": (
        "system.ssd",
        [f'{{"read_bandwidth": "{rate} GB/s", "write_bandwidth": "{rate} GB/s"}}' for rate in (7, 14, 28)],
    ),
    "decode_gpu_memory": ("system.gpu.memory", ["4 GiB", "6 GiB", "8 GiB"]),
}
FIGURES = [name for name, entry in ENTRIES.items() if entry.module == "offloading"]


def row(number, policy, model="8 billion", batch=16, **more):
    """A step of a second at best and of two seconds; the bound is half of a second less."""
    fixed = {"cell": number, "name": "made up", "trace": f"{model}-b{batch}.g10t", "model": model}
    fixed |= {"batch_size": batch, "policy": policy, "seed": 0, "status": "ok", "performance": 0.5}
    fixed |= {"exec_cycles": 2000, "bound_cycles": 1500, "exec_ms": 2.0, "samples_per_s": batch / 2}
    return fixed | {"gpu_to_ssd_bytes": 0, "peak_gpu_bytes": 2**30 * batch} | more


def swept(name):
    key, values = SWEEPS[name]
    rows = [
        row(0, policy, **{key: value})
        for value in values
        for policy in ("stream", "teraio", "zero_offload", ALL_ON_SSD)
    ]
    unbounded = {"bound_cycles": None}
    return pd.DataFrame(
        [cell | (unbounded if "zero" in cell["policy"] else {}) | {"cell": n} for n, cell in enumerate(rows)]
    )


def texts(figure):
    return legend_words(figure)


def labels(figure):
    return [axes.get_title() for axes in figure.axes]


@pytest.mark.parametrize("name", SWEEPS)
def test_a_line_per_policy_and_the_bound(name):
    figure = getattr(plots, name).draw(swept(name))
    assert_readable(figure)
    per_second = name == "decode_gpu_memory"
    axes, reached = figure.axes[0], 8 if per_second else 0.5
    curves = [list(line.get_ydata()) for line in axes.get_lines() if line.get_linestyle() != "None"]
    curves = sorted(curve for curve in curves if len(curve) == 3)
    assert curves == [[reached] * 3] * 4 + [pytest.approx([reached * 4 / 3] * 3)]
    assert ("Bound" if per_second else "Bound, optimizer on GPU") in texts(figure)
    if not per_second:
        assert "ZeRO-Infinity, all on SSD" in texts(figure)


def test_the_ladder_has_a_bar_for_each_model_that_fits():
    cells = [
        row(0, "zero_offload"),
        row(1, ALL_ON_SSD),
        row(2, "zero_offload", "71 billion", status="unsupported", performance=None),
        row(3, ALL_ON_SSD, "71 billion", performance=0.25),
    ]
    figure = plots.zero_ladder.draw(pd.DataFrame(cells))
    assert_readable(figure)
    (axes,) = figure.axes
    assert sorted(bar.get_height() for bar in axes.patches) == [0.25, 0.5, 0.5]
    assert sum(line.get_marker() == "x" for line in axes.get_lines()) == 1
    assert labels(figure) == [""]


def test_throughput_over_the_peak_tells_what_is_kept_from_what_leaves():
    cells = [
        row(n, policy, model, batch, gpu_to_ssd_bytes=moved, peak_gpu_bytes=batch * share * 2**30)
        for n, (model, policy, moved, share, batch) in enumerate(
            (model, policy, moved, share, batch)
            for model in ("keep", "recompute")
            for policy, moved, share in (("teraio", 0, 4), ("ssdtrain", 10, 2))
            for batch in (4, 8)
        )
    ]
    figure = plots.rok.draw(pd.DataFrame(cells))
    assert_readable(figure)
    assert texts(figure) == ["keep", "keep, SSDTrain", "recompute", "recompute, SSDTrain"]
    lines = [line for line in figure.axes[0].get_lines() if line.get_linestyle() != "None"]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]
    assert drawn == [([16, 32], [2, 4]), ([8, 16], [2, 4])] * 2


@pytest.mark.parametrize("name", FIGURES)
def test_its_experiment_is_whole(name, tmp_path):
    save_trace(chain(8), tmp_path / "chain.g10t")
    settings = [f"workload.trace={tmp_path / 'chain.g10t'}"]
    document = load_run(data_path("experiments") / f"{name}.yaml", settings)
    experiment = expand(document)
    assert name in ENTRIES.keys() - paper_figures()
    assert (experiment.config.name, experiment.config.output) == (name, f"results/{name}")
    assert len(experiment.cells) > 1
