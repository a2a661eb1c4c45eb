"""Figure 2: memory of all tensors that are alive, and of those that the running kernel uses."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from g10sim.plots.demand import COLUMNS, GIB, ROW_INCHES, demands
from g10sim.plots.panels import panels
from g10sim.plots.style import ALIVE, BLACK, IN_USE, styled

_LEAST_GIB = 0.1


@styled
def draw(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw both over the time of an iteration without waiting; the dashes are the GPU's memory."""
    found = list(demands(results, working_sets))
    dashes: dict[str, Any] = {"color": BLACK, "linestyle": "--", "linewidth": 0.8}
    made = panels(
        len(found),
        columns=COLUMNS,
        row_inches=ROW_INCHES,
        legend=[Patch(**ALIVE.bar()), Patch(**IN_USE.bar()), Line2D([], [], label="GPU memory", **dashes)],
        xlabel="time in the iteration (s)",
        ylabel="memory (GiB)",
        sharey=True,
    )
    gpu_bytes = float((results["footprint_bytes"] / results["oversubscription"]).iloc[0])
    for axes, (trace, rows) in zip(made.axes, found, strict=True):
        sums = rows.groupby("seconds")[["live_bytes", "active_bytes"]].sum() / GIB
        axes.set_title(trace.title)
        for column, look in (("live_bytes", ALIVE), ("active_bytes", IN_USE)):
            axes.fill_between(sums.index, sums[column], step="post", linewidth=0, **look.area())
        axes.axhline(gpu_bytes / GIB, **dashes)
        axes.set_xlim(0, sums.index[-1])
        axes.set_yscale("log")
        axes.set_ylim(bottom=_LEAST_GIB)
        axes.locator_params(axis="x", nbins=3)
    return made.figure
