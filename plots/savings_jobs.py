"""Memory that policies save for jobs that share a GPU, and the time that it costs, by number of jobs."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import mark_handles
from g10sim.plots.panels import panels
from g10sim.plots.saved import METRICS, draw_bars, saved_cells, saved_looks
from g10sim.plots.style import Look, model_name, styled
from g10sim.plots.traces import records

_COLUMNS = 3
_MIX = "mixed"


@styled
def draw(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw a panel per network with a group of bars per number of jobs: what is saved, then what it costs."""
    cells = saved_cells(results, kernels)
    policies = saved_looks(cells["policy"])
    names = list(dict.fromkeys(cells["model"]))
    columns = min(_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    made = panels(
        len(METRICS) * rows * columns,
        columns=columns,
        row_inches=0.95,
        legend=[*(Patch(**look.bar()) for look in policies.values()), *mark_handles(cells)],
        legend_columns=2,
        xlabel="jobs",
    )
    for number, metric in enumerate(METRICS):
        block = made.axes[number * rows * columns :][: rows * columns]
        for axes in block[len(names) :]:
            axes.set_axis_off()
        for place, (axes, name) in enumerate(zip(block, names, strict=False)):
            _draw_network(axes, metric, cells[cells["model"] == name], policies)
            if metric == "msr":
                axes.set_ylim(0, 100)
            axes.set_title(model_name(name) if name else _MIX)
            if place % columns == 0:
                axes.set_ylabel(METRICS[metric].replace(" (", "\n("))
    made.figure.align_ylabels()
    return made.figure


def _draw_network(axes: Axes, metric: str, cells: pd.DataFrame, policies: dict[str, Look]) -> None:
    groups: dict[int, dict[str, dict[str, Any]]] = {}
    for cell in records(cells):
        groups.setdefault(cell["jobs"], {})[cell["policy"]] = cell
    counts = sorted(groups)
    draw_bars(axes, metric, [groups[count] for count in counts], policies)
    axes.set_xticks(range(len(counts)), [str(count) for count in counts])
