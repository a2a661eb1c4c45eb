"""Figure 13: how many kernels are slowed down, and by how much."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.plots.panels import logarithmic, panels
from g10sim.plots.style import Look, looks, styled
from g10sim.plots.traces import OK, cells_by, trace_names, without_ideal
from g10sim.stats.one_cell import of_cell, reported_kernels

_COLUMNS = 3


@styled
def draw(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw kernels from the least to the most slowed down, a line per policy, a panel per trace.

    Of every kernel of the reported iteration: its time, with what it waited, over its own duration.
    """
    shown = without_ideal(results)
    policies, traces = looks(shown["policy"]), trace_names(shown)
    made = panels(
        len(traces),
        columns=_COLUMNS,
        row_inches=1.35,
        legend=[Line2D([], [], **_line(look)) for look in policies.values()],
        legend_columns=3,
        xlabel="kernels, least slowed down first (%)",
        ylabel="kernel time (own duration = 1)",
        sharex=True,
        sharey=True,
    )
    cells = cells_by(shown, "trace", "policy")
    for axes, trace in zip(made.axes, traces, strict=True):
        for policy, look in policies.items():
            cell = cells.get((trace.trace, policy))
            if cell is not None and cell["status"] == OK:
                reported = reported_kernels(of_cell(kernels, cell), cell)
                _draw_kernels(axes, slowdowns(reported), look)
        axes.set_title(trace.title)
        axes.set_xlim(0, 100)
        axes.set_xticks([0, 50, 100])
        logarithmic(axes, y=True)
    return made.figure


def slowdowns(kernels: pd.DataFrame) -> pd.Series[float]:
    """Time of each kernel over its own duration, ascending; without kernels of less than a cycle."""
    some = kernels[kernels["compute_cycles"] > 0]
    values: pd.Series[float] = (some["end"] - some["start"]) / some["compute_cycles"]
    return values.sort_values()


def _draw_kernels(axes: Axes, values: pd.Series[float], look: Look) -> None:
    axes.plot(np.linspace(0, 100, len(values)), values, **_line(look))


def _line(look: Look) -> dict[str, Any]:
    return {**look.curve(), "marker": "", "linewidth": 1.2}
