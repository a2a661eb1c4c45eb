"""Figure 15: throughput as the batch size grows."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import bar_places, ideal_handle, mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.style import IDEAL, POLICIES, Look, looks, styled
from g10sim.plots.traces import OK, Cells, TraceName, by_model, cells_by, trace_names, without_ideal

_BARS_BESIDE_EACH_OTHER = 24
"""As many bars as can be told apart in half a column."""


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a bar per batch size and policy, a panel per model; dashes are unlimited GPU memory."""
    shown = without_ideal(results)
    policies = looks(shown["policy"])
    models = by_model(trace_names(results))
    widest = max(map(len, models.values())) * len(policies)
    made = panels(
        len(models),
        columns=2 if widest <= _BARS_BESIDE_EACH_OTHER else 1,
        row_inches=1.25,
        legend=[*(Patch(**look.bar()) for look in policies.values()), ideal_handle(), *mark_handles(shown)],
        legend_columns=4,
        xlabel="batch size",
        ylabel="throughput (samples/s)",
    )
    cells = cells_by(results, "trace", "policy")
    for axes, (model, traces) in zip(made.axes, models.items(), strict=True):
        axes.set_title(model)
        _draw_model(axes, traces, policies, cells)
    return made.figure


def _draw_model(axes: Axes, traces: list[TraceName], policies: dict[str, Look], cells: Cells) -> None:
    places, width = bar_places(len(policies))
    ideal = POLICIES[IDEAL]
    for group, trace in enumerate(traces):
        for (policy, look), offset in zip(policies.items(), places, strict=True):
            cell = cells.get((trace.trace, policy))
            if cell is not None and cell["status"] == OK:
                axes.bar(group + offset, cell["samples_per_s"], width, **look.bar())
            elif cell is not None:
                mark_missing(axes, group + offset, cell["status"])
        cell = cells.get((trace.trace, IDEAL))
        if cell is not None and cell["status"] == OK:
            ends = (group + places[0] - width, group + places[-1] + width)
            axes.hlines(
                cell["samples_per_s"], *ends, colors=ideal.colour, linestyles=(0, (2, 1)), linewidth=1
            )
    axes.set_xticks(range(len(traces)), [trace.batch for trace in traces])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.6, len(traces) - 0.4)
    axes.locator_params(axis="y", nbins=4)
