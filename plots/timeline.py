"""One iteration of one cell over time: computing, stalls, and how busy each direction of transfers is."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g10sim.plots.style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, new_figure, styled
from g10sim.stats.one_cell import busy_share, of_cell, reported_kernels, row_of_cell, seconds_per_cycle

_BINS = 300
_ROW_INCHES = 0.3
_DIRECTIONS = {
    ("FLASH", "GPU"): ("SSD to GPU", BLUE),
    ("HOST", "GPU"): ("host to GPU", SKY),
    ("GPU", "FLASH"): ("GPU to SSD", ORANGE),
    ("GPU", "HOST"): ("GPU to host", PINK),
    ("NONE", "GPU"): ("new pages", GREY),
}


@styled
def draw(
    results: pd.DataFrame, kernels: pd.DataFrame, migrations: pd.DataFrame, *, cell: int | None = None
) -> Figure:
    """Draw a row for each activity; its height is the share of time, in slices of 1/300 of the iteration."""
    row = row_of_cell(results, cell)
    shown, second = reported_kernels(of_cell(kernels, row), row), seconds_per_cycle(row)
    start, end = int(shown["start"].min()), int(shown["end"].max())
    edges = [start + (end - start) * step / _BINS for step in range(_BINS + 1)]
    waited = shown["start"] + shown["stall_cycles"]
    rows = [
        ("computing", GREEN, busy_share(waited, shown["end"], edges)),
        ("stalled", RED, busy_share(shown["start"], waited, edges)),
    ]
    moves = of_cell(migrations, row)
    moves = moves[(moves["end"] > start) & (moves["start"] < end)]
    for (source, target), (label, colour) in _DIRECTIONS.items():
        mine = moves[(moves["source"] == source) & (moves["target"] == target)]
        if not mine.empty:
            label = f"{label}\n{mine['size_bytes'].sum() / 1e9:.1f} GB"
            rows.append((label, colour, busy_share(mine["start"], mine["end"], edges)))
    figure = new_figure(0.45 + _ROW_INCHES * len(rows))
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False)
    times = [(edge - start) * second for edge in edges]
    for axes, (label, colour, shares) in zip(grid[:, 0], rows, strict=True):
        _draw_row(axes, label, colour, times, shares)
    grid[-1, 0].set_xlabel("time in the iteration (s)")
    grid[-1, 0].set_xlim(0, times[-1])
    return figure


def _draw_row(axes: Axes, label: str, colour: str, times: list[float], shares: list[float]) -> None:
    axes.stairs(shares, times, fill=True, color=colour)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel(label, rotation=0, ha="right", va="center", color=BLACK)
    axes.tick_params(axis="x", length=0)
