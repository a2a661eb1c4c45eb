"""Figure 11: performance of every policy, as a share of that with unlimited GPU memory."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import bar_places, draw_ideal, ideal_handle, mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.style import Look, looks, styled
from g10sim.plots.traces import OK, Cells, TraceName, cells_by, in_rows, trace_names, without_ideal

_TRACES_PER_ROW = 4


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a bar for each policy and trace; the line at 1 is unlimited GPU memory."""
    shown = without_ideal(results)
    policies = looks(shown["policy"])
    rows = in_rows(trace_names(shown), _TRACES_PER_ROW)
    made = panels(
        len(rows),
        columns=1,
        row_inches=1.1,
        legend=[*(Patch(**look.bar()) for look in policies.values()), ideal_handle(), *mark_handles(shown)],
        legend_columns=4,
        ylabel="performance (ideal = 1)",
        sharey=True,
    )
    cells = cells_by(shown, "trace", "policy")
    for axes, traces in zip(made.axes, rows, strict=True):
        _draw_row(axes, traces, policies, cells)
        draw_ideal(axes)
        axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
        axes.set_ylim(0, 1.08)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    return made.figure


def _draw_row(
    axes: Axes,
    traces: list[TraceName],
    policies: dict[str, Look],
    cells: Cells,
) -> None:
    places, width = bar_places(len(policies))
    for (policy, look), offset in zip(policies.items(), places, strict=True):
        for group, trace in enumerate(traces):
            cell = cells.get((trace.trace, policy))
            if cell is not None and cell["status"] == OK:
                axes.bar(group + offset, cell["performance"], width, **look.bar())
            elif cell is not None:
                mark_missing(axes, group + offset, cell["status"])
    axes.set_xticks(range(len(traces)), [trace.label for trace in traces])
    axes.tick_params(axis="x", length=0)
