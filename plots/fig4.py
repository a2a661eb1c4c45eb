"""Figure 4: size of tensors against the length of their inactive periods."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.plots.panels import logarithmic, panels
from g10sim.plots.periods import periods_of_traces
from g10sim.plots.style import KINDS, styled
from g10sim.plots.traces import that_ran, trace_names

_MIB = 2**20


@styled
def draw(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> Figure:
    """Draw a point per inactive period, marked by the kind of tensor, a panel per trace."""
    periods = periods_of_traces(results, inactive_periods)
    traces = trace_names(that_ran(results))
    kinds = {kind: look for kind, look in KINDS.items() if kind in set(inactive_periods["kind"])}
    made = panels(
        len(traces),
        columns=2,
        row_inches=1.4,
        legend=[
            Line2D([], [], linestyle="none", marker=look.marker, color=look.colour, label=look.label)
            for look in kinds.values()
        ],
        legend_columns=4,
        xlabel="length of the inactive period (s)",
        ylabel="size of the tensor (MiB)",
        sharex=True,
        sharey=True,
    )
    for axes, trace in zip(made.axes, traces, strict=True):
        for kind, look in kinds.items():
            of_kind = periods[trace.trace][periods[trace.trace]["kind"] == kind]
            axes.plot(
                of_kind["seconds"],
                of_kind["size_bytes"] / _MIB,
                linestyle="none",
                marker=look.marker,
                color=look.colour,
                markersize=1.6,
                markeredgewidth=0.3,
                rasterized=True,  # thousands of points: as paths they make a PDF slow
            )
        axes.set_title(trace.line)
        logarithmic(axes, x=True, y=True)
    return made.figure
