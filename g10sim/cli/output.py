"""Tables and lines on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_PIPED_WIDTH = 250


def console() -> Console:
    """Return a console as wide as the terminal; where there is none, wide enough for any table."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def say(text: str) -> None:
    """Write text as it is, not wrapped."""
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def show_table(
    names: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> None:
    """Write a table: columns of names to the left, columns of figures, right-aligned, after them."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console().print(table, markup=False)
