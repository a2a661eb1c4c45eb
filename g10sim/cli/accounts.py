"""Accounts of imports: their tables and warnings, and the options that change them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.output import say, show_table, warn
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


def show_account(account: Account) -> None:
    """Write the tables of an account: device time by part, and bytes where the file records any."""
    if account.step_ns:
        times = (
            (row.part, f"{row.time_ns / _NANOSECONDS_PER_MICROSECOND:,.3f}", row.share)
            for row in account.rows()
        )
        show_table(("part",), ("us", "share"), times, title="Device time")
    if account.memory:
        sizes = (
            (
                one.what,
                rounded_bytes(one.recorded_bytes),
                rounded_bytes(one.imported_bytes),
                f"{one.difference:+.1%}",
            )
            for one in account.memory
        )
        show_table(("bytes",), ("file", "trace", "difference"), sizes, title="Memory")


def save_imported(trace: Trace, output: Path) -> None:
    """Write an imported trace and say what is in it, with its account and every warning of that."""
    save_trace(trace, output)
    say(f"{output}: {summary(trace)}")
    account = account_of(trace)
    if account is None:
        return
    show_account(account)
    for fact in account.facts:
        say(fact)
    for text in account.warnings():
        warn(f"{output}: {text}")
