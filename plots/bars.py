"""Bars of policies beside each other: where they stand, and what marks one that is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from g10sim.plots.style import BLACK, IDEAL, POLICIES

_MARKS: Mapping[str, str] = {"unsupported": "x", "failed": "$?$"}
_GROUP_WIDTH = 0.86
_MARK_HEIGHT = 0.07


def bar_places(count: int) -> tuple[list[float], float]:
    """Centres of so many bars around the centre of their group, and the width of one."""
    width = _GROUP_WIDTH / count
    return [(place + 0.5) * width - _GROUP_WIDTH / 2 for place in range(count)], width


def mark_missing(axes: Axes, place: float, status: str, colour: str = BLACK) -> None:
    """Mark at the foot of the axes why nothing is drawn at a place."""
    mark = {**_mark(status), "color": colour}
    axes.plot([place], [_MARK_HEIGHT], transform=axes.get_xaxis_transform(), clip_on=False, **mark)


def mark_handles(results: pd.DataFrame) -> list[Artist]:
    """Entries of the legend for the marks that some results need."""
    return [Line2D([], [], **_mark(status)) for status in _MARKS if status in set(results["status"])]


def draw_ideal(axes: Axes) -> None:
    """Draw the line at 1: unlimited GPU memory."""
    ideal = POLICIES[IDEAL]
    axes.axhline(1, color=ideal.colour, linestyle=ideal.line, linewidth=0.8)


def ideal_handle() -> Artist:
    """Entry of the legend for the line of unlimited GPU memory."""
    ideal = POLICIES[IDEAL]
    return Line2D([], [], color=ideal.colour, linestyle=ideal.line, label=ideal.label)


def _mark(status: str) -> dict[str, Any]:
    return {
        "marker": _MARKS[status],
        "linestyle": "none",
        "color": BLACK,
        "markersize": 2.8,
        "markeredgewidth": 0.8,
        "label": status,
    }
