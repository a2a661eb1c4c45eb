"""Figure 18: performance as the SSD gets faster."""

from __future__ import annotations

import json

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.curves import Sweep, per_policy
from g10sim.plots.style import styled
from g10sim.units import parse_rate

_GB = 1e9


def _bandwidth(text: str) -> float:
    return parse_rate(json.loads(text)["read_bandwidth"]) / _GB


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw performance over the bandwidth of the SSD, a line per policy, a panel per trace."""
    return per_policy(results, Sweep("system.ssd", _bandwidth, "SSD bandwidth (GB/s)")).figure
