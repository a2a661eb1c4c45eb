"""Figure 12: computing, computing with transfers in flight, and stalling, as shares of the execution time."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.stacks import draw_stacks
from g10sim.plots.style import COMPUTE, OVERLAP, STALL, styled

_PARTS = {"overlap_cycles": OVERLAP, "compute_cycles": COMPUTE, "stall_cycles": STALL}


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw the breakdown of the execution time of each policy and trace."""
    shares = results.copy()
    columns = list(_PARTS)
    shares[columns] = 100 * results[columns].div(results[columns].sum(axis="columns"), axis="index")
    figure = draw_stacks(
        shares, _PARTS, ylabel="share of the execution time (%)", shared=True, legend_columns=2
    )
    for axes in figure.axes:
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 100])
    return figure
