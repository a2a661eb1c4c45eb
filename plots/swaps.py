"""What less GPU memory costs: how much longer an iteration takes than on a GPU with room for everything."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.errors import ConfigError
from g10sim.plots.panels import panels
from g10sim.plots.style import series, styled
from g10sim.plots.traces import that_ran, trace_names, without_ideal
from g10sim.units import parse_bytes

_COLUMN = "system.gpu.memory"


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a line per policy, over GPU memory; cells that did not run are left out."""
    if _COLUMN not in results.columns:
        raise ConfigError(
            f"results: found no column '{_COLUMN}'; allowed: results of a run that sweeps over it"
        )
    shown = that_ran(without_ideal(results))
    shown = shown.assign(
        gib=[parse_bytes(text) / 2**30 for text in shown[_COLUMN]],
        overhead=100 * (shown["exec_cycles"] / shown["ideal_cycles"] - 1),
    )
    policies, traces = series(dict.fromkeys(shown["policy"])), trace_names(shown)
    made = panels(
        len(traces),
        columns=2,
        row_inches=1.4,
        legend=[Line2D([], [], **look.curve()) for look in policies.values()],
        legend_columns=2,
        xlabel="GPU memory (GiB)",
        ylabel="overhead (%)",
    )
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        for policy, look in policies.items():
            line = shown[(shown["trace"] == trace.trace) & (shown["policy"] == policy)].sort_values("gib")
            axes.plot(line["gib"], line["overhead"], **look.curve())
        axes.set_ylim(bottom=0)
    return made.figure
