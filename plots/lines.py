"""Lines over places on an axis, with intervals, and marks of cells that did not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes

from g10sim.looks import Look
from g10sim.plots.panels import mark_missing, spread
from g10sim.plots.traces import OK

Lines: TypeAlias = Sequence[tuple[Look, Mapping[Any, Mapping[str, Any]]]]
"""Looks of lines, and their cells by the value on the axis."""


def draw_lines(
    axes: Axes,
    lines: Lines,
    places: Mapping[Any, float],
    column: str,
    aside: float,
) -> None:
    """Draw a line for each look through the cells of each value, at its place.

    A cell has its height in ``column``, with its spread. Marks of cells that did not
    run lie ``aside`` of each other.
    """
    for number, (look, cells) in enumerate(lines):
        drawn = [(place, cells[value]) for value, place in places.items() if value in cells]
        good = [(place, cell) for place, cell in drawn if cell["status"] == OK]
        if good:
            axes.errorbar(
                [place for place, _ in good],
                [cell[column] for _, cell in good],
                yerr=list(zip(*(spread(cell, column) for _, cell in good), strict=True)),
                capsize=1.5,
                elinewidth=0.6,
                **look.curve(),
            )
        shift = (number - (len(lines) - 1) / 2) * aside
        for place, cell in drawn:
            if cell["status"] != OK:
                mark_missing(axes, place + shift, cell["status"], look.colour)
