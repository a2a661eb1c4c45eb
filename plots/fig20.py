"""Figure 20: kinds of the tensors that are alive."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.demand import draw_by_kind
from g10sim.plots.style import styled


@styled
def draw(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw the bytes of living tensors by kind over the kernels of an iteration."""
    return draw_by_kind(results, working_sets, "live_bytes", "live tensors (GiB)")
