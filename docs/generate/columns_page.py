"""The tables of columns in the page of results."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tables import table

from g10sim.results.columns import FURTHER, JOBS, Column, metrics

_MARKED = re.compile(r"(<!-- columns: (\w+) -->\n).*?(<!-- end of columns -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with the tables between its marks written again."""
    groups = {"metrics": metrics()} | {group.name: group.columns for group in (*FURTHER.values(), JOBS)}
    return _MARKED.sub(lambda match: f"{match[1]}\n{_table(groups[match[2]])}\n{match[3]}", text)


def _table(columns: Iterable[Column]) -> str:
    rows = ((f"`{column.name}`", column.unit, column.formula) for column in columns)
    return table(("Column", "Unit", "Definition"), (), rows)
