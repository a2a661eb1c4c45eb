"""Memory pools: how much more than the load each takes, and how much less than the default pool."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import bar_places
from g10sim.plots.panels import panels
from g10sim.plots.style import BLACK, BLUE, GREY, ORANGE, SKY, Look, styled
from g10sim.plots.traces import TraceName, in_rows, trace_names

_TRACES_PER_ROW = 4
_LOOKS = (
    Look("", GREY, ""),
    Look("", ORANGE, "////"),
    Look("", BLUE, ""),
    Look("", SKY, "...."),
)


@styled
def draw(results: pd.DataFrame, pools: pd.DataFrame) -> Figure:
    """Draw footprint over load for each pool and trace; the line at 1 is the least that there can be."""
    table = pools.merge(results[["cell", "trace"]], on="cell").drop_duplicates(["trace", "pool"])
    names = list(dict.fromkeys(table["pool"]))
    looks = {name: _LOOKS[place % len(_LOOKS)] for place, name in enumerate(names)}
    rows = in_rows(trace_names(results), _TRACES_PER_ROW)
    ratios = {
        (trace, pool): footprint / load
        for trace, pool, footprint, load in zip(
            table["trace"], table["pool"], table["footprint_bytes"], table["load_bytes"], strict=True
        )
    }
    made = panels(
        len(rows),
        columns=1,
        row_inches=1.1,
        legend=[Patch(**{**look.bar(), "label": name}) for name, look in looks.items()],
        legend_columns=2,
        ylabel="footprint / load",
        sharey=True,
    )
    for axes, traces in zip(made.axes, rows, strict=True):
        _draw_row(axes, traces, looks, ratios)
        axes.axhline(1, color=BLACK, linewidth=0.8, linestyle="--")
        axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
        axes.set_ylim(0.9, max(1.1, 1.03 * max(ratios.values())))
    return made.figure


def _draw_row(
    axes: Axes, traces: list[TraceName], looks: dict[str, Look], ratios: dict[tuple[Any, str], float]
) -> None:
    places, width = bar_places(len(looks))
    for (pool, look), offset in zip(looks.items(), places, strict=True):
        for group, trace in enumerate(traces):
            axes.bar(group + offset, ratios[trace.trace, pool], width, **look.bar())
    axes.set_xticks(range(len(traces)), [trace.label for trace in traces])
    axes.tick_params(axis="x", length=0)
