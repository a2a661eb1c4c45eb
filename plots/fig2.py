"""Figure 2: memory of all tensors that are alive, and of those that the running kernel uses."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from g10sim.plots.demand import COLUMNS, GIB, KERNELS, ROW_INCHES, demands, peaks
from g10sim.plots.panels import logarithmic, panels
from g10sim.plots.style import ALIVE, BLACK, IN_USE, styled

_LEAST_GIB = 0.1


@styled
def draw(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw both over the kernels of an iteration; the dashes are the GPU's memory."""
    found = list(demands(results, working_sets))
    dashes: dict[str, Any] = {"color": BLACK, "linestyle": "--", "linewidth": 0.8}
    made = panels(
        len(found),
        columns=COLUMNS,
        row_inches=ROW_INCHES,
        legend=[Patch(**ALIVE.bar()), Patch(**IN_USE.bar()), Line2D([], [], label="GPU memory", **dashes)],
        xlabel=KERNELS,
        ylabel="memory (GiB)",
        sharey=True,
    )
    most = max(rows.groupby("kernel")["live_bytes"].sum().max() for _, rows in found) / GIB
    gpu_bytes = float((results["footprint_bytes"] / results["oversubscription"]).iloc[0])
    for axes, (trace, rows) in zip(made.axes, found, strict=True):
        axes.set_title(trace.title)
        for column, look in (("live_bytes", ALIVE), ("active_bytes", IN_USE)):
            shown = peaks(rows, column).sum(axis="columns")
            axes.fill_between(shown.index, shown, step="mid", linewidth=0, **look.area())
        axes.axhline(gpu_bytes / GIB, **dashes)
        axes.set_xlim(0, rows["kernel"].max())
        logarithmic(axes, y=True)
        axes.set_ylim(_LEAST_GIB, 1.5 * max(most, gpu_bytes / GIB))
        axes.locator_params(axis="x", nbins=3)
    return made.figure
