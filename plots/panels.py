"""Small axes side by side in a column's width, with one legend and one label for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from g10sim.plots.style import PAGE_INCHES, new_figure

_LEGEND_CHARACTERS, _KEY_CHARACTERS = 66, 5  # of a line of the legend, and of the key before a name
_LEGEND_LINE_INCHES = 0.14
_LABEL_INCHES = 0.18


Sharing: TypeAlias = bool | Literal["none", "all", "row", "col"]


@dataclass(frozen=True)
class Panels:
    """A figure of panels; ``axes`` has one for each, row by row."""

    figure: Figure
    axes: list[Axes]


def logarithmic(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Make axes logarithmic, with labels at powers of ten only."""
    if x:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    if y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())


def panels(
    count: int,
    *,
    columns: int,
    row_inches: float,
    legend: Sequence[Artist] = (),
    legend_columns: int = 3,
    xlabel: str = "",
    ylabel: str = "",
    sharex: Sharing = False,
    sharey: Sharing = False,
) -> Panels:
    """Make a figure of ``count`` panels, at most ``columns`` beside each other, and its legend on top.

    ``sharex`` and ``sharey`` are those of matplotlib's ``subplots``. A last row that is not full ends early.
    """
    columns = min(columns, count)
    rows = -(-count // columns)
    legend_columns = _columns_that_fit(legend, legend_columns)
    lines = -(-len(legend) // legend_columns)
    height = rows * row_inches + lines * _LEGEND_LINE_INCHES + (_LABEL_INCHES if xlabel else 0)
    figure = new_figure(min(height, PAGE_INCHES))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
    every = [axes for row in grid for axes in row]
    for axes in every[count:]:
        axes.set_axis_off()
    if sharex and count % columns:  # the panel above an empty place is the last of its column
        for axes in every[count - columns : (rows - 1) * columns]:
            axes.tick_params(labelbottom=True)
    if xlabel:
        figure.supxlabel(xlabel, fontsize="medium")
    if ylabel and rows == 1:
        every[0].set_ylabel(ylabel.replace(" (", "\n("))  # a low figure has no room for a long line
    elif ylabel:
        figure.supylabel(ylabel, fontsize="medium")
    if legend:
        figure.legend(handles=list(legend), loc="outside upper center", ncols=legend_columns)
    return Panels(figure, every[:count])


def _columns_that_fit(legend: Sequence[Artist], most: int) -> int:
    """Return how many columns a legend can have: long names, of policies with parameters, take fewer."""
    longest = max((len(str(entry.get_label())) for entry in legend), default=0)
    return max(1, min(most, _LEGEND_CHARACTERS // (longest + _KEY_CHARACTERS)))
