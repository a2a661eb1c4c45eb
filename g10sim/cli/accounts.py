"""Accounts of imports: their tables and warnings, and the options that change them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from g10sim.cli.output import console, say, warn
from g10sim.cli.trace_facts import summary
from g10sim.display import rounded_bytes
from g10sim.importers.account import Account, account_of
from g10sim.trace.format import save_trace
from g10sim.trace.model import Trace

_NANOSECONDS_PER_MICROSECOND = 1000

Partial = Annotated[
    bool,
    typer.Option("--partial", help="Import even if more than 20 % of the step's device time is left out."),
]


class Gap(StrEnum):
    """Ways to treat time in which the device did nothing."""

    DROP = "drop"
    KEEP = "keep"


Gaps = Annotated[
    Gap,
    typer.Option(help="Time in which the device waited: left out, or kept as idle time of its host."),
]


def account_tables(account: Account) -> list[Table]:
    """Return the tables of an account: device time by part, and bytes where the file records any."""
    times = _table("Device time", ("part", "us", "share"))
    for row in account.rows():
        times.add_row(escape(row.part), f"{row.time_ns / _NANOSECONDS_PER_MICROSECOND:,.3f}", row.share)
    found = [times] if account.step_ns else []
    if account.memory:
        sizes = _table("Memory", ("bytes", "file", "trace", "difference"))
        for one in account.memory:
            both = (rounded_bytes(size) for size in (one.recorded_bytes, one.imported_bytes))
            sizes.add_row(escape(one.what), *both, f"{one.difference:+.1%}")
        found.append(sizes)
    return found


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def save_imported(trace: Trace, output: Path) -> None:
    """Write an imported trace and say what is in it, with its account and every warning of that."""
    save_trace(trace, output)
    say(f"{output}: {summary(trace)}")
    account = account_of(trace)
    if account is None:
        return
    for table in account_tables(account):
        console().print(table)
    for fact in account.facts:
        say(fact)
    for text in account.warnings():
        warn(f"{output}: {text}")
