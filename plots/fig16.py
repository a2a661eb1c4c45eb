"""Figure 16: performance of G10 as host memory grows, for every batch size."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.curves import Sweep, per_batch_size
from g10sim.plots.style import styled
from g10sim.units import parse_bytes

HOST_MEMORY = Sweep("system.host.memory", lambda text: parse_bytes(text) / 2**30, "host memory (GiB)")


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw performance over host memory, a line per batch size, a panel per model."""
    return per_batch_size(results, HOST_MEMORY).figure
