"""Figure 19: performance when kernels take other times than the plan was made for."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.curves import Sweep, per_batch_size
from g10sim.plots.style import styled


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw mean performance over the size of the variation, with 95% confidence intervals over seeds."""
    variation = Sweep(
        "workload.variation.magnitude", lambda share: 100 * float(share), "variation of kernel times (±%)"
    )
    made = per_batch_size(results, variation)
    least = results["performance"].min()
    for axes in made.axes:  # the intervals are narrow: from zero on they would not be seen
        axes.set_ylim(bottom=max(0, math.floor(10 * least - 0.5) / 10))
    return made.figure
