"""Panels with one legend and one label for all, groups of bars in them, and entries of legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.ticker import NullFormatter, NullLocator
from matplotlib.transforms import Affine2D

from g10sim.looks import BLACK, Look
from g10sim.plots import style
from g10sim.results.columns import FAILED, OK, UNSUPPORTED
from g10sim.results.legends import legend

BOUND_LOOK = Look("#117733", marker="", line="1 1", label="Bound")
"""Look of what no policy can beat."""

CHARACTER_INCHES = 0.05
"""Height of a character of a label that stands upright."""
BESIDE_EACH_OTHER = 24
"""As many bars as can be told apart in half a column."""

_BEGINS: dict[str, Any] = {"color": BLACK, "linestyle": ":", "linewidth": 0.6}
_MOST_BEGINS = 40
_LEGEND_CHARACTERS, _KEY_CHARACTERS = 66, 5  # of a line of the legend, and of the key before a name
_LEGEND_LINE_INCHES = 0.14
_LABEL_INCHES = 0.18
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_GROUP_WIDTH = 0.86
_MARK_HEIGHT = 0.07
_TRACES_PER_ROW = 4


def _question_mark() -> Path:
    """Return a question mark around the origin, as a marker (``"$?$"`` would be three characters here)."""
    shape = TextPath((0, 0), "?")
    box = shape.get_extents()
    return shape.transformed(Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2))


Lines: TypeAlias = list[tuple[Look, Mapping[Any, Mapping[str, Any]]]]
"""Looks of lines, and their cells by the value on the axis."""


@dataclass(frozen=True)
class Panels:
    """A figure of panels; ``axes`` has one for each, row by row."""

    figure: Figure
    axes: list[Axes]


def logarithmic(axes: Axes, *, x: bool = False, y: bool = False) -> None:
    """Make axes logarithmic, with labels at powers of ten only."""
    for is_wanted, name, axis in ((x, "x", axes.xaxis), (y, "y", axes.yaxis)):
        if is_wanted:
            axes.set(**{f"{name}scale": "log"})
            axis.set_major_formatter(_power_of_ten)
            axis.set_minor_formatter(NullFormatter())


def _power_of_ten(value: float, _: float) -> str:
    """Return a power of ten as text: with names that hold dollar signs, no text is parsed as mathematics."""
    exponent = round(math.log10(value))
    return "10" + str(exponent).translate(_RAISED) if math.isclose(value, 10.0**exponent) else f"{value:g}"


def label_some(axes: Axes, labels: Mapping[float, str]) -> None:
    """Make the horizontal axis logarithmic, with labels at some places and nothing in between."""
    axes.set_xscale("log")
    axes.set_xticks(list(labels), list(labels.values()))
    axes.xaxis.set_minor_locator(NullLocator())


def micro_batches_begin(rows: pd.DataFrame, place: str) -> list[int]:
    """Return where micro-batches begin: values of a column of rows of kernels, in order.

    There are none without accumulation, and none where they take turns so often that lines would tell
    nothing.
    """
    if "micro_batch" not in rows:
        return []
    numbers = rows["micro_batch"]
    found = rows.loc[(numbers != numbers.shift()) & (numbers > 0), place]
    return [int(value) for value in found] if len(found) <= _MOST_BEGINS else []


def mark_beginnings(axes: Axes, places: Iterable[float]) -> None:
    """Draw a line at each place."""
    for place in places:
        axes.axvline(place, **_BEGINS)


def beginnings_legend(places: Iterable[float]) -> list[Line2D]:
    """Return the entry of a legend for micro-batches that begin, if any does."""
    return [Line2D([], [], label="micro-batch begins", **_BEGINS)] if any(True for _ in places) else []


def panels(
    titles: Sequence[str],
    *,
    row_inches: float,
    columns: int = 2,
    legend: Sequence[Artist] = (),
    legend_columns: int = 4,
    legend_title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    shared: Literal["", "x", "y", "xy"] = "",
) -> Panels:
    """Make a figure of a panel per title, at most ``columns`` alongside each other, and its legend on top.

    ``shared`` names the axes that have one scale in all panels. A last row that is not full ends early.
    """
    count = len(titles)
    columns = min(columns, count)
    rows = -(-count // columns)
    legend_columns = _columns_that_fit(legend, legend_columns)
    lines = -(-len(legend) // legend_columns) + bool(legend_title)
    label_inches = _LABEL_INCHES * (1 + xlabel.count("\n")) if xlabel else 0
    height = rows * row_inches + lines * _LEGEND_LINE_INCHES + label_inches
    figure = style.new_figure(height)
    grid = figure.subplots(rows, columns, squeeze=False, sharex="x" in shared, sharey="y" in shared)
    every = [axes for row in grid for axes in row]
    for axes in every[count:]:
        axes.set_axis_off()
    for axes, title in zip(every, titles, strict=False):
        axes.set_title(title)
    if "x" in shared and count % columns:  # the panel above an empty place is the last of its column
        for axes in every[count - columns : (rows - 1) * columns]:
            axes.tick_params(labelbottom=True)
    if xlabel:
        figure.supxlabel(xlabel, fontsize="medium")
    if ylabel and rows == 1:
        every[0].set_ylabel(ylabel.replace(" (", "\n("))  # a low figure has no room for a long line
    elif ylabel:
        figure.supylabel(ylabel, fontsize="medium")
    if legend:
        figure.legend(
            handles=row_by_row(legend, legend_columns),
            loc="outside upper center",
            ncols=legend_columns,
            title=legend_title or None,
            title_fontsize="medium",
        )
    return Panels(figure, every[:count])


def pages(titles: Sequence[str], *, columns: int, row_inches: float, **options: Any) -> list[Panels]:
    """Make figures of a panel per title, as :func:`panels` does: as many as are needed to be readable."""
    legend_inches = _LEGEND_LINE_INCHES * (len(options.get("legend", ())) + 2)
    rows = max(1, int((style.PAGE_INCHES - legend_inches) / row_inches))
    options |= {"columns": columns, "row_inches": row_inches}
    return [panels(page, **options) for page in style.in_rows(titles, rows * columns)]


def row_by_row(entries: Sequence[Artist], columns: int) -> list[Artist]:
    """Order entries of a legend so that its rows are read first: matplotlib fills columns."""
    return [entry for column in range(columns) for entry in entries[column::columns]]


def _columns_that_fit(legend: Sequence[Artist], most: int) -> int:
    """Return how many columns a legend can have: long names, of policies with parameters, take fewer."""
    longest = max((len(str(entry.get_label())) for entry in legend), default=0)
    return max(1, min(most, _LEGEND_CHARACTERS // (longest + _KEY_CHARACTERS)))


def bar_places(count: int) -> tuple[list[float], float]:
    """Centres of that many bars around the centre of their group, and the width of one."""
    width = _GROUP_WIDTH / count
    return [(place + 0.5) * width - _GROUP_WIDTH / 2 for place in range(count)], width


def draw_groups(
    axes: Axes,
    cells: style.Cells,
    groups: Mapping[Any, str],
    looks: Mapping[Any, Look],
    column: str,
    *,
    hollow: bool = False,
) -> None:
    """Draw a group of bars for each key of ``groups``, with its label below, and a bar in it for each look.

    ``cells`` are rows by group and look; a bar is as high as ``column``, with its spread. Cells that did
    not run are marked.
    """
    places, width = bar_places(len(looks))
    for group, key in enumerate(groups):
        for offset, (name, look) in zip(places, looks.items(), strict=True):
            cell = cells.get((key, name))
            if cell is not None and cell["status"] == OK:
                axes.bar(group + offset, cell[column], width, **(look.outline() if hollow else look.bar()))
                draw_interval(axes, group + offset, cell[column], spread(cell, column))
            elif cell is not None:
                mark_missing(axes, group + offset, cell["status"])
    axes.set_xticks(range(len(groups)), list(groups.values()))
    axes.tick_params(axis="x", length=0)


def draw_interval(axes: Axes, place: float, height: float, ends: tuple[float, float]) -> None:
    """Draw the spread of a value at the end of its bar, if there is any."""
    down, up = ends
    if down == down and up == up:
        axes.errorbar(place, height, [[down], [up]], color=BLACK, capsize=1.5, elinewidth=0.6)


def spread(cell: Mapping[str, Any], column: str) -> tuple[float, float]:
    """Return how far a value reaches down and up: over its range under uncertainty, or its interval.

    Both are NaN for a cell that has neither.
    """
    low, high = (cell.get(f"{column}_{end}", math.nan) for end in ("low", "high"))
    if low == low and high == high:
        return cell[column] - low, high - cell[column]
    half_width = cell.get(f"{column}_interval", math.nan)
    return half_width, half_width


def draw_lines(axes: Axes, lines: Lines, places: Mapping[Any, float], column: str, aside: float) -> None:
    """Draw a line for each look through the cells of each value, at its place.

    A cell has its height in ``column``, with its spread. Marks of cells that did not run lie ``aside`` of
    each other.
    """
    for number, (look, cells) in enumerate(lines):
        drawn = [(place, cells[value]) for value, place in places.items() if value in cells]
        good = [(place, cell) for place, cell in drawn if cell["status"] == OK]
        if good:
            at, heights = [place for place, _ in good], [cell[column] for _, cell in good]
            spreads = list(zip(*(spread(cell, column) for _, cell in good), strict=True))
            axes.errorbar(at, heights, yerr=spreads, capsize=1.5, elinewidth=0.6, **look.curve())
        shift = (number - (len(lines) - 1) / 2) * aside
        for place, cell in drawn:
            if cell["status"] != OK:
                mark_missing(axes, place + shift, cell["status"], look.colour)


def bars_per_trace(
    shown: pd.DataFrame,
    groups: tuple[str, Mapping[Any, str]],
    bars: tuple[str, Mapping[Any, Look]],
    column: str,
    *,
    lines: Iterable[Look] = (),
    **options: Any,
) -> Panels:
    """Draw a panel per trace with a group of bars per value of a column, a bar per value of another.

    ``groups`` and ``bars`` are the columns, with labels and looks by value; the legend has ``lines``, too;
    ``options`` are those of :func:`panels`.
    """
    traces, options = style.trace_names(shown), {"legend_columns": 3, **options}
    legend = [*handles(bars[1].values(), shown), *handles(lines, lines=True)]
    made = panels([trace.line for trace in traces], columns=1, legend=legend, **options)
    for axes, trace in zip(made.axes, traces, strict=True):
        cells = style.cells_by(shown[shown["trace"] == trace.trace], groups[0], bars[0])
        draw_groups(axes, cells, groups[1], bars[1], column)
    return made


def trace_rows(traces: Sequence[style.TraceName]) -> list[list[style.TraceName]]:
    """Return the traces of each row of ``bars_in_rows``."""
    return style.in_rows(traces, _TRACES_PER_ROW)


def bars_in_rows(
    shown: pd.DataFrame,
    traces: Sequence[style.TraceName],
    bars: tuple[str, Mapping[Any, Look]],
    column: str,
    **options: Any,
) -> Panels:
    """Draw rows of traces below each other: a group of bars per trace, a bar per value of another column.

    ``bars`` are that column and the looks of its values; ``options`` are those of :func:`panels`.
    """
    rows = trace_rows(traces)
    made = panels([""] * len(rows), columns=1, row_inches=1.1, shared="y", **options)
    cells = style.cells_by(shown, "trace", bars[0])
    for axes, row in zip(made.axes, rows, strict=True):
        draw_groups(axes, cells, {trace.trace: trace.label for trace in row}, bars[1], column)
        axes.set_xlim(-0.5, len(rows[0]) - 0.5)
    return made


def mark_missing(
    axes: Axes, place: float, status: str, colour: str = BLACK, height: float = _MARK_HEIGHT
) -> None:
    """Mark at a height of the axes, usually at their foot, why nothing is drawn at a place."""
    mark = {**_mark(status), "color": colour}
    axes.plot([place], [height], transform=axes.get_xaxis_transform(), clip_on=False, **mark)


def handles(
    looks: Iterable[Look],
    results: pd.DataFrame | None = None,
    *,
    ideal: bool = False,
    bound: bool = False,
    lines: bool = False,
) -> list[Artist]:
    """Return entries of a legend: bars or ``lines``, unlimited GPU memory, bounds, marks of ``results``."""
    found: list[Artist] = [Line2D([], [], **look.curve()) if lines else Patch(**look.bar()) for look in looks]
    if ideal:
        found.append(Line2D([], [], **ideal_look().curve()))
    if bound:
        found.append(Line2D([], [], **BOUND_LOOK.curve()))
    statuses = set() if results is None else set(results["status"])
    return found + [Line2D([], [], **_mark(status)) for status in (UNSUPPORTED, FAILED) if status in statuses]


def ideal_look() -> Look:
    """Return the look of unlimited GPU memory."""
    return legend(style.IDEAL)


def draw_ideal(axes: Axes, height: float = 1) -> None:
    """Draw a line across the axes: unlimited GPU memory."""
    draw_level(axes, ideal_look(), height)


def draw_level(axes: Axes, look: Look, height: float = 1) -> None:
    """Draw a line across the axes."""
    axes.axhline(height, **{**look.curve(), "label": "", "linewidth": 0.8})


def draw_steps(axes: Axes, heights: Sequence[float | None], look: Look) -> None:
    """Draw a line across each group of bars at its height; None or NaN: there is nothing to draw."""
    for group, height in enumerate(heights):
        if height is not None and height == height:
            curve = look.curve()
            drawn: Any = {"colors": curve["color"], "linestyles": [curve["linestyle"]], "linewidth": 1}
            axes.hlines(height, group - 0.5, group + 0.5, **drawn)


def _mark(status: str) -> dict[str, Any]:
    marker = _question_mark() if status == FAILED else "x"
    size = {"markersize": 2.8, "markeredgewidth": 0.8}
    return {"marker": marker, "linestyle": "none", "color": BLACK, **size, "label": status}
