"""Looks of series in figures, as plain data: policies, reasons of stalls and places have theirs.

Colours are those of Okabe and Ito, told apart with any colour vision (https://jfly.uni-koeln.de/color/), and
some more for what comes without a look; hatches and markers tell the same in print without colour.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

BLACK, GREY, DARK_GREY, WHITE = "#000000", "#999999", "#666666", "#FFFFFF"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, RED, PINK, PALE = "#0072B2", "#D55E00", "#CC79A7", "#BBCCEE"

Key = TypeVar("Key")


@dataclass(frozen=True)
class Look:
    """Look of one series, and the text of its legend; without a ``colour`` figures choose the rest.

    ``colour`` is written ``#RRGGBB``; ``hatch`` and ``marker`` are those of matplotlib, a marker also a
    letter between dollar signs. ``line`` is one of ``-``, ``--``, ``-.`` and ``:``, or the lengths of dashes
    and gaps in points, such as ``5 1``. Raises ValueError for anything else.
    """

    colour: str = ""
    hatch: str = ""
    marker: str = "o"
    line: str = "-"
    label: str = ""

    def __post_init__(self) -> None:
        for field, allowed in (
            ("colour", r"(#[0-9A-Fa-f]{6})?"),
            ("hatch", r"[-+x/\\|oO.*]*"),
            ("marker", r"([.,ov^<>12348spP*hH+xXDd|_]|\$\w\$)?"),
            ("line", r"--?|-\.|:|\d+( \d+)*"),
        ):
            value = getattr(self, field)
            if not (isinstance(value, str) and re.fullmatch(allowed, value)):
                raise ValueError(f"{field}: found {value!r}; allowed: text of the form {allowed}")

    def bar(self) -> dict[str, Any]:
        """Return matplotlib's keywords of a bar or a filled area."""
        return {"facecolor": self.colour, "edgecolor": BLACK, "hatch": self.hatch, "label": self.label}

    def outline(self) -> dict[str, Any]:
        """Return matplotlib's keywords of an empty bar."""
        return {"facecolor": "none", "edgecolor": self._ink, "label": self.label}

    def curve(self) -> dict[str, Any]:
        """Return matplotlib's keywords of a line with markers."""
        line = (0, tuple(map(int, self.line.split()))) if self.line[0].isdigit() else self.line
        found = {"color": self._ink, "marker": self.marker, "linestyle": line, "label": self.label}
        return found if self._ink == self.colour else {**found, "markerfacecolor": self.colour}

    @property
    def _ink(self) -> str:
        """Colour of lines: white ones could not be seen on paper."""
        return BLACK if self.colour.upper() == WHITE else self.colour


_COLOURS = (
    *(RED, YELLOW, WHITE, DARK_GREY, PALE, "#882255", "#44AA99", "#999933", "#332288", "#AA4499", "#DDCC77"),
    *(BLUE, ORANGE, GREEN, SKY, PINK, GREY),
)
_HATCHES = ("----", "++++", "||||", "oooo", "****", "--//", "..xx", "//oo", "||\\\\", "++..", "**--")
_MARKERS, _LINES = "Xh<>p*dH8P1234", ("-", "--", "-.", ":", "1 1", "6 2", "4 1 1 1")
_SPARE = tuple(
    Look(colour, *(marks[(turn + place) % len(marks)] for marks in (_HATCHES, _MARKERS, _LINES)))
    for turn in range(len(_HATCHES))
    for place, colour in enumerate(_COLOURS)
)


def distinct(wanted: Mapping[Key, Look]) -> dict[Key, Look]:
    """Return looks for the series of one figure, no two of them alike, in the same order.

    A series keeps its look unless an earlier one has the colour. The others take spare ones, in order, with
    new colours as long as there are any. Repeated labels are numbered.
    """
    owned: dict[Key, Look] = {}
    for key, look in wanted.items():
        if look.colour and look.colour not in {other.colour for other in owned.values()}:
            owned[key] = look
    found: dict[Key, Look] = {}
    labels: list[str] = []
    for key, look in wanted.items():
        labels.append(look.label)
        repeated = labels.count(look.label) if look.label else 1
        if key not in owned:
            owned[key] = _spare(owned.values())
        label = look.label if repeated == 1 else f"{look.label} ({repeated})"
        found[key] = replace(owned[key], label=label)
    return found


def _spare(taken: Collection[Look]) -> Look:
    """Return the first spare look of another colour than those taken, or at least of another pattern."""
    colours, pairs = {look.colour for look in taken}, {(look.colour, look.hatch) for look in taken}
    free = [look for look in _SPARE if (look.colour, look.hatch) not in pairs] or _SPARE
    return next((look for look in free if look.colour not in colours), free[0])
