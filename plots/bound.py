"""Distance of policies to their bound: the share of their time that no policy can do without."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.errors import ConfigError
from g10sim.plots.panels import BOUND_LOOK, bars_in_rows, draw_level, handles
from g10sim.plots.style import looks, styled
from g10sim.plots.traces import OK, below, trace_names, without_ideal


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw the bound over the time of each policy, a bar for each policy and trace; the line is the bound.

    Policies that no bound holds for are left out. Raises ConfigError where it holds for none.
    """
    shown = without_ideal(results)
    bounded = shown["of_bound"].notna() if "of_bound" in shown else pd.Series(False, index=shown.index)
    compared = set(shown.loc[bounded, "policy"])
    if not compared:
        raise ConfigError("results: found no cell with a bound; allowed: runs of one job with paged memory")
    shown = shown[bounded | (shown["policy"].isin(compared) & (shown["status"] != OK))]
    policies = looks(shown)
    made = bars_in_rows(
        shown,
        trace_names(shown),
        ("policy", policies),
        "of_bound",
        ylabel="bound / time (best = 1)",
        xlabel=below(results, "model, batch size"),
        legend=handles(policies.values(), shown, bound=True),
        legend_columns=4,
    )
    for axes in made.axes:
        draw_level(axes, BOUND_LOOK)
        axes.set(ylim=(0, 1.08), yticks=[0, 0.25, 0.5, 0.75, 1])
    return made.figure
