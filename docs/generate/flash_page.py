"""The page of the flash model: how it works, and how it agrees with MQSim, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from tables import fill, table, titles

from tools.ssd_validation import Comparison, compare


def page(directory: Path) -> str:
    """Return the page as Markdown, from the tables measured with MQSim in a directory."""
    return render(compare(directory))


def render(comparisons: Iterable[Comparison]) -> str:
    """Return the page as Markdown."""
    found = list(comparisons)
    tables = {name: _table([one for one in found if one.table == name]) for name in titles("flash")}
    return fill("flash", **{**tables, "summary": _summary(found)})


def _table(found: list[Comparison]) -> str:
    """One line per row: of every quantity MQSim's value, the model's, and the error."""
    rows: dict[str, dict[str, Comparison]] = {}
    for one in found:
        rows.setdefault(one.row, {})[one.quantity] = one
    quantities = list(dict.fromkeys(one.quantity for one in found))
    lines = []
    for name, row in rows.items():
        limits = [row[quantity].limit for quantity in quantities if quantity in row]
        shown = ["" if limit is None else f"{limit:.0%}" for limit in limits]
        same = shown[:1] if len(set(shown)) == 1 else [limit or "none" for limit in shown]
        cells = [_cell(row[quantity]) if quantity in row else "" for quantity in quantities]
        lines.append((name, *cells, ", ".join(same)))
    return table(("row",), (*quantities, "limit"), lines)


def _cell(one: Comparison) -> str:
    text = f"{_digits(one.measured)} / {_digits(one.modelled)}, {_error(one)}"
    return text if one.agrees else f"**{text}**"


def _summary(found: list[Comparison]) -> str:
    names = dict.fromkeys((one.table, one.quantity) for one in found)
    lines = []
    for name, quantity in names:
        judged = [
            one for one in found if (one.table, one.quantity) == (name, quantity) and one.limit is not None
        ]
        outside = [one for one in judged if not one.agrees]
        errors = [abs(one.error) for one in judged if math.isfinite(one.error)]
        worst = f"{max(errors):.1%}" if errors else ""
        median = f"{sorted(errors)[len(errors) // 2]:.1%}" if errors else ""
        lines.append((titles("flash")[name], quantity, str(len(judged)), str(len(outside)), median, worst))
    numbers = ("rows with a limit", "outside it", "median error", "largest error")
    missed = "".join(f"- {one.row}: {one.quantity} {_error(one)}\n" for one in found if not one.agrees)
    text = f"Outside their limits:\n\n{missed}" if missed else "None is outside its limit.\n"
    return f"{table(('table', 'quantity'), numbers, lines)}\n{text}"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _error(one: Comparison) -> str:
    return f"{one.error:+.1%}" if math.isfinite(one.error) else "MQSim starves it"
