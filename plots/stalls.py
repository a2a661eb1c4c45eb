"""What the kernels of one cell waited for: over the iteration, and those that waited most."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.errors import ConfigError
from g10sim.plots.reasons import stall_looks
from g10sim.plots.style import Look, new_figure, styled
from g10sim.stats.one_cell import busy_share, of_cell, reported_kernels, row_of_cell, seconds_per_cycle

_BINS = 60
_KERNELS = 8


@styled
def draw(results: pd.DataFrame, kernels: pd.DataFrame, *, cell: int | None = None) -> Figure:
    """Draw stalls by reason: share of time over the iteration, and milliseconds of the longest ones.

    The stalls of a kernel lie before its computing, one reason after the other. Raises ConfigError
    where no kernel stalled.
    """
    row = row_of_cell(results, cell)
    shown, second = reported_kernels(of_cell(kernels, row), row), seconds_per_cycle(row)
    looks = {
        column: look for column, look in stall_looks().items() if column in shown and shown[column].any()
    }
    if not looks:
        raise ConfigError(f"cell {row['cell']}: found no stalls; allowed: a cell in which kernels stall")
    figure = new_figure(2.6 + 0.13 * -(-len(looks) // 2))
    over_time, longest = figure.subplots(2, 1, height_ratios=(1, 1.1))
    _draw_over_time(over_time, shown, looks, second)
    _draw_longest(longest, shown, looks, second)
    whole = row["exec_cycles"]
    handles = [
        Patch(**{**look.bar(), "label": f"{look.label} {shown[column].sum() / whole:.1%}"})
        for column, look in looks.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _draw_over_time(axes: Axes, shown: pd.DataFrame, looks: dict[str, Look], second: float) -> None:
    start, end = int(shown["start"].min()), int(shown["end"].max())
    edges = [start + (end - start) * step / _BINS for step in range(_BINS + 1)]
    times = [(edge - start) * second for edge in edges]
    floor, since = [0.0] * _BINS, shown["start"]
    for column, look in looks.items():
        until = since + shown[column]
        shares = [100 * share for share in busy_share(since, until, edges)]
        axes.bar(
            times[:-1], shares, times[1] - times[0], bottom=floor, align="edge", linewidth=0, **_plain(look)
        )
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
        since = until
    axes.set(
        xlim=(0, times[-1]), ylim=(0, 100), xlabel="time in the iteration (s)", ylabel="stalled\n(% of time)"
    )


def _draw_longest(axes: Axes, shown: pd.DataFrame, looks: dict[str, Look], second: float) -> None:
    longest = shown[shown["stall_cycles"] > 0].nlargest(_KERNELS, "stall_cycles")
    places, floor = range(len(longest)), longest["stall_cycles"] * 0.0
    for column, look in looks.items():
        milliseconds = longest[column] * second * 1000
        axes.bar(places, milliseconds, 0.8, bottom=floor, **look.bar())
        floor = floor + milliseconds
    axes.set_xticks(places, [str(kernel) for kernel in longest["kernel"]])
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="kernel (those that stall longest)", ylabel="stall (ms)")


def _plain(look: Look) -> dict[str, Any]:
    """Keywords of bars too narrow for edges."""
    return {"facecolor": look.colour, "hatch": look.hatch}
