"""What less GPU memory costs: how much longer an iteration takes than on a GPU with room for everything."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from g10sim.errors import ConfigError
from g10sim.plots.bars import mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.saved import policy_label
from g10sim.plots.style import Look, series, styled
from g10sim.plots.traces import OK, that_ran, trace_names, without_ideal
from g10sim.units import parse_bytes

_COLUMN = "system.gpu.memory"
_STEP_ASIDE = 0.012
"""Distance of marks beside each other, as a share of the axis."""


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a line per policy, over GPU memory; cells that did not run are marked."""
    if _COLUMN not in results.columns:
        raise ConfigError(
            f"results: found no column '{_COLUMN}'; allowed: results of a run that sweeps over it"
        )
    given = without_ideal(results)
    given = given.assign(
        gib=[parse_bytes(text) / 2**30 for text in given[_COLUMN]],
        overhead=100 * (given["exec_cycles"] / given["ideal_cycles"] - 1),
    )
    shown = that_ran(given)
    names = dict.fromkeys(given["policy"])
    policies = dict(zip(names, series(map(policy_label, names)).values(), strict=True))
    traces, step = trace_names(given), _STEP_ASIDE * (given["gib"].max() - given["gib"].min())
    made = panels(
        len(traces),
        columns=2,
        row_inches=1.4,
        legend=[*(Line2D([], [], **_hollow(look)) for look in policies.values()), *mark_handles(given)],
        legend_columns=3,
        xlabel="GPU memory (GiB)",
        ylabel="overhead (%)",
    )
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        for number, (policy, look) in enumerate(policies.items()):
            line = shown[(shown["trace"] == trace.trace) & (shown["policy"] == policy)].sort_values("gib")
            axes.plot(line["gib"], line["overhead"], **_hollow(look))
            missing = given[(given["trace"] == trace.trace) & (given["policy"] == policy)]
            for gib, status in zip(missing["gib"], missing["status"], strict=True):
                if status != OK:
                    aside = step * (number - (len(policies) - 1) / 2)
                    mark_missing(axes, gib + aside, status, look.colour)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=-0.03 * axes.get_ylim()[1])
    return made.figure


def _hollow(look: Look) -> dict[str, Any]:
    """Keywords of a line whose markers are seen where those of others lie on them."""
    return {**look.curve(), "markerfacecolor": "none", "markersize": 4.5}
