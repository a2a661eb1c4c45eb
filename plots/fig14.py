"""Figure 14: bytes that move in an iteration, between which memories and in which direction."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.stacks import draw_stacks
from g10sim.plots.style import HOST_READ, HOST_WRITE, SSD_READ, SSD_WRITE, styled

_GB = 1e9
_PARTS = {
    "ssd_to_gpu_bytes": SSD_READ,
    "gpu_to_ssd_bytes": SSD_WRITE,
    "host_to_gpu_bytes": HOST_READ,
    "gpu_to_host_bytes": HOST_WRITE,
}


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw the traffic of each policy and trace; every panel has its own scale."""
    scaled = results.copy()
    scaled[list(_PARTS)] = results[list(_PARTS)] / _GB
    figure = draw_stacks(scaled, _PARTS, ylabel="traffic per iteration (GB)", shared=False, legend_columns=2)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=4)
    return figure
