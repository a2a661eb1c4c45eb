"""Stacked bars: one panel per trace, one bar per policy, one part on top of the other."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.style import Look, looks
from g10sim.plots.traces import OK, cells_by, trace_names, without_ideal

_COLUMNS = 3
_ROW_INCHES = 1.15
_CHARACTER_INCHES = 0.05
_NAME_CHARACTERS = 11, 26  # of the room for names, at least, and of a line
_WIDTH = 0.78


def draw_stacks(
    results: pd.DataFrame, parts: Mapping[str, Look], *, ylabel: str, shared: bool, legend_columns: int
) -> Figure:
    """Draw the columns ``parts`` of some results stacked, in their order; nothing for the ideal policy.

    With ``shared`` all panels have the same scale.
    """
    shown = without_ideal(results)
    policies, traces = looks(shown["policy"]), trace_names(shown)
    rows = -(-len(traces) // _COLUMNS)
    names = [textwrap.fill(look.label, _NAME_CHARACTERS[1]) for look in policies.values()]
    longest = max((len(line) for name in names for line in name.splitlines()), default=0)
    names_inches = _CHARACTER_INCHES * max(longest, _NAME_CHARACTERS[0])
    made = panels(
        len(traces),
        columns=_COLUMNS,
        row_inches=_ROW_INCHES + names_inches / rows,
        legend=[*(Patch(**look.bar()) for look in parts.values()), *mark_handles(shown)],
        legend_columns=legend_columns,
        ylabel=ylabel,
        sharex=True,
        sharey=shared,
    )
    cells = cells_by(shown, "trace", "policy")
    for axes, trace in zip(made.axes, traces, strict=True):
        for place, policy in enumerate(policies):
            cell = cells.get((trace.trace, policy))
            if cell is not None and cell["status"] == OK:
                _draw_stack(axes, place, [(cell[column], look) for column, look in parts.items()])
            elif cell is not None:
                mark_missing(axes, place, cell["status"])
        axes.set_title(trace.title)
        axes.set_xticks(range(len(policies)), names, rotation=90)
        axes.set_xlim(-0.6, len(policies) - 0.4)
        axes.tick_params(axis="x", length=0)
    return made.figure


def _draw_stack(axes: Axes, place: float, parts: list[tuple[float, Look]]) -> None:
    bottom = 0.0
    for value, look in parts:
        if not value:
            continue
        axes.bar(place, value, _WIDTH, bottom=bottom, **look.bar())
        bottom += value
