"""Figures of models larger than GPU memory: charts with fixed axes, and what keeping activations costs."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots import charts, comparison, designs
from g10sim.plots.panels import BOUND_LOOK
from g10sim.plots.points import Points, Roles, points
from g10sim.plots.style import swept_column
from g10sim.results.columns import traffic
from g10sim.results.legends import policy_labels

_GPU_MEMORY, _HOST_MEMORY, _SSD = "system.gpu.memory", "system.host.memory", "system.ssd"
_PEAK = "GPU memory at the peak (GiB)"
_WORDS = {
    "(offload_param=ssd, offload_optimizer=ssd, pipeline=True)": ", all on SSD",
    "(offload_optimizer=ssd, pipeline=True)": ", states on SSD",
    "(host_limit=0 B)": ", SSD only",
}
_BOUND = "Bound, optimizer on GPU"
"""Policies whose CPU runs the optimizer can be faster."""


def zero_ladder(results: pd.DataFrame) -> Figure:
    """Draw performance, a group of bars per model, a bar per policy; crosses are models that do not fit."""
    found = points(results, Roles("model", col="name"))
    return _bound_named(charts.bar(_shortened(replace(found, panels=dict.fromkeys(found.panels, ""))))[0])


def training_gpu_memory(results: pd.DataFrame) -> Figure:
    """Draw performance over GPU memory, a line per policy, a panel per trace, with the bound."""
    return _over(results, _GPU_MEMORY)


def training_host_memory(results: pd.DataFrame) -> Figure:
    """Draw performance over host memory, a line per policy, a panel per trace, with the bound."""
    return _over(results, _HOST_MEMORY)


def training_ssd_bandwidth(results: pd.DataFrame) -> Figure:
    """Draw performance over SSD bandwidth, a line per policy, a panel per trace, with the bound."""
    return _over(results, _SSD)


def decode_gpu_memory(results: pd.DataFrame) -> Figure:
    """Draw tokens a second over GPU memory, a line per policy, with the bound.

    The trace is one token of every sequence of its batch.
    """
    found = points(results, Roles(swept_column(results, _GPU_MEMORY), "samples_per_s"))
    return charts.line(_shortened(replace(found, label="tokens/s")))[0]


training_traffic, training_lifetime = comparison.fig14, designs.flash_endurance


def rok(results: pd.DataFrame) -> Figure:
    """Draw throughput over the peak of GPU memory, a line per model and policy, a point per batch size.

    Where nothing moves the model alone names the line: it says what is kept, and what is computed again.
    """
    moved = results[list(traffic(results))].sum(axis=1) > 0
    offloads = results["model"] + ", " + results["policy"].map(policy_labels(results))
    shown = results.assign(
        **{_PEAK: results["peak_gpu_bytes"] / 2**30}, choice=offloads.where(moved, results["model"])
    ).drop(columns="bound_cycles", errors="ignore")
    found = points(shown, Roles(_PEAK, "samples_per_s", "choice", "name"))
    return charts.line(replace(found, panels=dict.fromkeys(found.panels, ""), hue_title=""))[0]


def _over(results: pd.DataFrame, key: str) -> Figure:
    return _bound_named(charts.line(_shortened(points(results, Roles(swept_column(results, key)))))[0])


def _shortened(found: Points) -> Points:
    """Say in words where a policy keeps what: its parameters would fill the legend."""
    hues = {}
    for policy, look in found.hues.items():
        for parameters, words in _WORDS.items():
            look = replace(look, label=look.label.replace(parameters, words))
        hues[policy] = look
    return replace(found, hues=hues)


def _bound_named(figure: Figure) -> Figure:
    for text in (text for legend in figure.legends for text in legend.get_texts()):
        if text.get_text() == BOUND_LOOK.label:
            text.set_text(_BOUND)
    return figure
