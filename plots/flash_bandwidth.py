"""Performance as more drives of flash work side by side: the SSD bandwidth figure with the flash model."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.curves import Sweep, per_policy
from g10sim.plots.style import styled


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw performance over the number of drives, a line per policy, a panel per trace."""
    return per_policy(results, Sweep("system.ssd.drives", float, "drives of 3.2 GB/s")).figure
