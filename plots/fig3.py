"""Figure 3: for how long nothing uses a tensor."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.panels import logarithmic, panels
from g10sim.plots.periods import periods_of_traces
from g10sim.plots.style import series, styled
from g10sim.plots.traces import by_model, that_ran, trace_names


@styled
def draw(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> Figure:
    """Draw the share of inactive periods that are no longer than so long, a line per batch size."""
    periods = periods_of_traces(results, inactive_periods)
    models = by_model(trace_names(that_ran(results)))
    made = panels(
        len(models),
        columns=2,
        row_inches=1.35,
        xlabel="length of the inactive period (s)",
        ylabel="inactive periods (%)",
        sharex=True,
        sharey=True,
    )
    for axes, (model, traces) in zip(made.axes, models.items(), strict=True):
        lines = series(trace.batch for trace in traces)
        for trace, look in zip(traces, lines.values(), strict=True):
            lengths = np.sort(periods[trace.trace]["seconds"].to_numpy())
            shares = 100 * np.arange(1, len(lengths) + 1) / len(lengths)
            axes.plot(lengths, shares, drawstyle="steps-post", **{**look.curve(), "marker": ""})
        axes.set_title(model)
        logarithmic(axes, x=True)
        axes.set_ylim(0, 100)
        axes.legend(title="batch", loc="upper left", title_fontsize="small", fontsize="small")
    return made.figure
