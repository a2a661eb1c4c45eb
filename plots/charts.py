"""Charts of any results: lines, bars or a map of values, in panels that flow to further rows and pages."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from g10sim.looks import BLACK, WHITE
from g10sim.plots import panels
from g10sim.plots.points import NONE, Points
from g10sim.plots.style import cells_by, in_rows, records, styled
from g10sim.results.columns import OK
from g10sim.results.swept import Values

_LINE_INCHES, _BAR_INCHES = 1.3, 1.25
_CELL_INCHES = 0.2
_IN_A_COLUMN = 60
"""As many bars as can be told apart in a column."""
_ROOM = 24
"""Characters of labels that have room below half a column."""
_FEW = 5
"""As many values to scale as are labelled each."""
_NARROW_LABEL, _NARROW_TITLE, _WIDE_LABEL = 14, 18, 26
_HALF_TITLE, _WHOLE_TITLE = 24, 56
"""Characters that a title has room for above half a column, and above one."""
_TITLE_LINE_INCHES = 0.1
_LEAST_MAP_INCHES, _SCALE_INCHES = 1.0, 0.08
_ABOVE = 1.08
_COLOURS = "viridis"


@dataclass(frozen=True)
class _Ticks:
    """Labels below each other or upright, and the height that they need."""

    labels: list[str]
    upright: bool
    inches: float


@styled
def line(points: Points) -> list[Figure]:
    """Draw a line per series over numbers, evenly spaced where they were swept, in a panel for each value.

    Policies without a parameter that is on the axis are level lines. Returns a figure per page.
    """
    places = _places(points.x)
    made = _pages(points, list(points.panels.values()), _LINE_INCHES, columns=2, lines=True, shared="xy")
    for axes, panel in _panels(made, list(points.panels)):
        _set_scale(axes, points)
        _draw_line_panel(axes, points, points.of_panel(panel), places)
        _label_places(axes, points.x, places)
    return [one.figure for one in made]


@styled
def bar(points: Points) -> list[Figure]:
    """Draw a group of bars for each value on the axis, a bar per series, in a panel for each value.

    Groups that do not fit next to each other go to further rows. Returns a figure per page.
    """
    most = max(1, _IN_A_COLUMN // len(points.hues))
    rows = [(panel, group) for panel in points.panels for group in in_rows(list(points.x.texts), most)]
    widest = max(len(group) for _, group in rows) * len(points.hues)
    columns = 2 if widest <= panels.BESIDE_EACH_OTHER else 1
    ticks = _ticks(list(points.x.texts.values()), _ROOM * 2 // columns // max(1, len(points.x.texts) // most))
    titles = [points.panels[panel] for panel, _ in rows]
    made = _pages(points, titles, _BAR_INCHES + ticks.inches, columns=columns, lines=False, shared="y")
    labels = dict(zip(points.x.texts, ticks.labels, strict=True))
    for axes, (panel, group) in _panels(made, rows):
        _set_scale(axes, points)
        _draw_bar_panel(axes, points, points.of_panel(panel), {value: labels[value] for value in group})
        axes.tick_params(axis="x", rotation=90 if ticks.upright else 0)
        axes.set_xlim(-0.5, len(group) - 0.5)
    return [one.figure for one in made]


@styled
def heat(points: Points) -> list[Figure]:
    """Draw a map with a row per series, a column per value on the axis, and the value as colour and number.

    Returns a figure per page.
    """
    names = [textwrap.fill(look.label, _NARROW_LABEL) for look in points.hues.values()]
    columns = 2 if len(points.x.texts) <= 4 and len(points.panels) > 1 else 1
    ticks = _ticks(list(points.x.texts.values()), _ROOM // columns)
    lines = max(2, sum(1 + name.count("\n") for name in names))
    room = _NARROW_TITLE if columns == 2 else _WIDE_LABEL  # the scale of colours takes some
    titles = [_title(title, room) for title in points.panels.values()]
    map_inches = max(_LEAST_MAP_INCHES, 0.25 + _CELL_INCHES * max(lines * 0.6, len(names)))
    made = panels.pages(
        titles,
        columns=columns,
        row_inches=map_inches + _TITLE_LINE_INCHES * _most_lines(titles) + ticks.inches,
        legend=panels.handles([], points.table),
        xlabel=points.x.label,
        ylabel=_title(points.hue_title, _NARROW_TITLE),
        shared="xy",
    )
    values = points.table["value"]
    low = 0.0 if points.has_ideal else float(values.min())
    scale = Normalize(low, 1.0 if points.has_ideal else float(values.max()))
    for one in made:
        rows = -(-len(one.axes) // columns)
        label, aspect = points.label.replace(" (", "\n("), map_inches * rows / _SCALE_INCHES
        one.figure.colorbar(ScalarMappable(scale, _COLOURS), ax=one.axes, label=label, aspect=aspect)
    for axes, panel in _panels(made, list(points.panels)):
        _draw_map(axes, points, points.of_panel(panel), scale)
        axes.set_xticks(range(len(ticks.labels)), ticks.labels, rotation=90 if ticks.upright else 0)
        axes.set_yticks(range(len(names)), names)
    return [one.figure for one in made]


DRAWINGS: Mapping[str, Callable[[Points], list[Figure]]] = {"line": line, "bar": bar, "heat": heat}
"""The charts by name."""


def _pages(
    points: Points, titles: Sequence[str], row_inches: float, *, columns: int, lines: bool, **options: Any
) -> list[panels.Panels]:
    looks = points.hues.values() if points.roles.hue else ()
    titles = [_title(title, _HALF_TITLE if columns == 2 else _WHOLE_TITLE) for title in titles]
    legend = panels.handles(looks, points.table, ideal=points.has_ideal, bound=points.has_bounds, lines=lines)
    return panels.pages(
        titles,
        columns=columns,
        row_inches=row_inches + _TITLE_LINE_INCHES * (_most_lines(titles) - 1),
        legend=legend,
        legend_title=points.hue_title,
        xlabel=points.x.label,
        ylabel=points.label,
        **options,
    )


def _panels(made: Sequence[panels.Panels], keys: Sequence[Any]) -> list[tuple[Axes, Any]]:
    return list(zip([axes for one in made for axes in one.axes], keys, strict=True))


def _set_scale(axes: Axes, points: Points) -> None:
    """Give all panels one scale from zero on, with the line of unlimited GPU memory."""
    table = points.table
    highest = [table["value"].max(), table["bound"].max(), 1.0 if points.has_ideal else math.nan]
    top = max((high for high in highest if not math.isnan(high)), default=1.0)
    axes.set_ylim(min(0.0, float(table["value"].min())), _ABOVE * top if top > 0 else 1.0)
    if points.has_ideal:
        panels.draw_ideal(axes)


def _places(values: Values) -> dict[Any, float]:
    """Return where values are: evenly spaced if they were swept or are texts, else to scale."""
    known = [value for value in values.texts if value != NONE]
    if values.numbers and "." not in values.name:
        return {value: values.numbers[value] for value in known}
    return {value: float(place) for place, value in enumerate(known)}


def _label_places(axes: Axes, values: Values, places: Mapping[Any, float]) -> None:
    at, texts = list(places.values()), [values.texts[value] for value in places]
    if values.numbers and "." not in values.name:
        if len(places) <= _FEW:
            axes.set_xticks(at, texts)
        else:
            axes.locator_params(axis="x", nbins=_FEW)
        return
    ticks = _ticks(texts, _ROOM)
    if values.numbers and ticks.upright:  # numbers in between can be guessed
        step = -(-sum(len(text) + 1 for text in texts) // _ROOM)
        axes.set_xticks(at, [text if n % step == 0 else "" for n, text in enumerate(texts)])
    else:
        axes.set_xticks(at, ticks.labels, rotation=90 if ticks.upright else 0)
    axes.set_xlim(-0.4, len(places) - 0.6)


def _draw_line_panel(axes: Axes, points: Points, found: pd.DataFrame, places: Mapping[Any, float]) -> None:
    roles = points.roles
    lines: panels.Lines = []
    for hue, look in points.hues.items():
        mine = records(found[found[roles.hue] == hue])
        lines.append((look, {row[roles.x]: row for row in mine}))
        level = next((row for row in mine if row[roles.x] == NONE and row["status"] == OK), None)
        if level is not None:
            axes.axhline(level["value"], **{**look.curve(), "marker": ""})
        if points.has_bounds and roles.hue not in ("", "policy"):
            _draw_bound(axes, mine, points, places, look.colour)
    if points.has_bounds and roles.hue in ("", "policy"):
        _draw_bound(axes, records(found), points, places, panels.BOUND_LOOK.colour)
    aside = (max(places.values()) - min(places.values())) / 60 if len(places) > 1 else 0.02
    panels.draw_lines(axes, lines, places, "value", aside)


def _draw_bound(
    axes: Axes, rows: Sequence[Mapping[str, Any]], points: Points, places: Mapping[Any, float], colour: str
) -> None:
    """Draw the line of what is possible at most; it is the same for all policies."""
    best = {row[points.roles.x]: row["bound"] for row in rows if row["bound"] == row["bound"]}
    drawn = [value for value in places if value in best]
    curve = {**panels.BOUND_LOOK.curve(), "color": colour}
    axes.plot([places[value] for value in drawn], [best[value] for value in drawn], **curve)


def _draw_bar_panel(axes: Axes, points: Points, found: pd.DataFrame, groups: Mapping[Any, str]) -> None:
    roles = points.roles
    cells = cells_by(found, roles.x, roles.hue)
    panels.draw_groups(axes, cells, groups, points.hues, "value")
    places, width = panels.bar_places(len(points.hues))
    for group, value in enumerate(groups):
        for hue, place in zip(points.hues, places, strict=True):
            cell = cells.get((value, hue), {"status": "", "bound": math.nan})
            if cell["bound"] == cell["bound"] and roles.hue not in ("", "policy"):
                edges = group + place - width / 2, group + place + width / 2
                axes.hlines(cell["bound"], *edges, color=panels.BOUND_LOOK.colour, linewidth=1)
    if points.has_bounds and roles.hue in ("", "policy"):
        best = found.groupby(roles.x)["bound"].max()
        panels.draw_steps(axes, [best.get(value) for value in groups], panels.BOUND_LOOK)


def _draw_map(axes: Axes, points: Points, found: pd.DataFrame, scale: Normalize) -> None:
    roles = points.roles
    cells = cells_by(found, roles.hue, roles.x)
    grid = [
        [cells.get((hue, value), {}).get("value", math.nan) for value in points.x.texts]
        for hue in points.hues
    ]
    axes.imshow(grid, cmap=_COLOURS, norm=scale, aspect="auto")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for row, hue in enumerate(points.hues):
        for column, value in enumerate(points.x.texts):
            cell = cells.get((hue, value))
            if cell is not None and cell["status"] == OK:
                colour = WHITE if scale(cell["value"]) < 0.6 else BLACK
                shown = _short(cell["value"], is_share=points.has_ideal)
                axes.text(column, row, shown, ha="center", va="center", size=5.5, color=colour)
            elif cell is not None:
                height = (len(points.hues) - row - 0.5) / len(points.hues)
                panels.mark_missing(axes, column, cell["status"], height=height)


def _title(text: str, room: int) -> str:
    """Break a title where it is too long, after a comma if it has one."""
    # A name that was broken after a separate one characters has no space there.
    joined = re.sub(r"(?<=[_/-])\n", "", text).replace("\n", " ")
    lines = joined.split(", ") if len(text) > room else [text]
    return ",\n".join(textwrap.fill(line, room) for line in lines)


def _most_lines(titles: Sequence[str]) -> int:
    return max(1 + title.count("\n") for title in titles)


def _short(value: float, *, is_share: bool) -> str:
    """Write a value in a map."""
    return f"{value:.2f}" if is_share else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _ticks(texts: Sequence[str], room: int) -> _Ticks:
    """Lay labels below each other if they have room, else upright."""
    if sum(len(text) + 2 for text in texts) <= room:
        return _Ticks(list(texts), upright=False, inches=0.0)
    wrapped = [textwrap.fill(text, _WIDE_LABEL) for text in texts]
    longest = max(len(part) for text in wrapped for part in text.splitlines() or [""])
    return _Ticks(wrapped, upright=True, inches=panels.CHARACTER_INCHES * longest)
