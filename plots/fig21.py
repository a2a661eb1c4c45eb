"""Figure 21: kinds of the tensors that the running kernel uses."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.demand import draw_by_kind
from g10sim.plots.style import styled


@styled
def draw(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw the bytes of the running kernel's tensors by kind over the kernels of an iteration."""
    return draw_by_kind(results, working_sets, "active_bytes", "active tensors (GiB)")
