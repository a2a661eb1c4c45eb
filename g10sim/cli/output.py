"""Tables and lines on standard output, rounded quantities in them, and errors.

An error is one line on standard error, and an exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from g10sim.errors import ConfigError, G10SimError
from g10sim.files import write_text, writing

CELL_FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_PIPED_WIDTH = 250
_BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


class InterruptionError(G10SimError):
    """Raised on Ctrl-C by a command that can say what is finished."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code; an error becomes one line on standard error.

    Bad input, of g10sim or of the command line itself, gives 2; an interruption 130.
    """
    try:
        status = command()
    except G10SimError as error:
        complain(str(error))
        return INTERRUPTED if isinstance(error, InterruptionError) else BAD_INPUT
    except typer.TyperException as error:
        message = error.format_message()
        if message:  # none where a command without arguments has shown its help
            complain(message)
        return BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    if status == INTERRUPTED:  # typer may turn the interruption into this exit code itself
        complain("interrupted; finished cells are kept")
    return status if isinstance(status, int) else 0


def complain(message: str) -> None:
    """Write one line to standard error, however many the message has."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[bold red]error:[/] {escape(' '.join(message.split()))}")


def complain_of_cells(failures: Iterable[str]) -> None:
    """Write one line for each failure; raises typer.Exit with the code of failed cells if there is one."""
    found = list(failures)
    for failure in found:
        complain(failure)
    if found:
        raise typer.Exit(CELL_FAILED)


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


def rounded_bytes(size_bytes: int) -> str:
    """Write a size with about three digits in the largest binary unit that fits (``47.8 GiB``)."""
    for factor, unit in _BINARY_UNITS:
        if size_bytes >= factor:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def rounded_seconds(seconds: float) -> str:
    """Write a duration with about three digits in the largest unit that fits (``12.3 ms``)."""
    if seconds == 0:
        return "0 s"
    for factor, unit in _TIME_UNITS:
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"


def write_table(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records as CSV, whole or not at all. Raises ConfigError."""
    import pandas as pd

    with writing(path, ConfigError):
        write_text(path, pd.DataFrame(records).to_csv(index=False, lineterminator="\n"))
