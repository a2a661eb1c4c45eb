"""Figure 17: performance of several policies as host memory grows."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.curves import per_policy
from g10sim.plots.fig16 import HOST_MEMORY
from g10sim.plots.style import styled


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw performance over host memory, a line per policy, a panel per trace."""
    return per_policy(results, HOST_MEMORY).figure
