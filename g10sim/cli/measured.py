"""``g10sim measured``: measurements of real machines alongside what simulations predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.options import SchedulerOption, WorkersOption, choose_executor, names_in
from g10sim.cli.output import complain_of_failures, say, show_table
from g10sim.cli.run import CellProgress
from g10sim.reproduce.measured import (
    DIRECTORY,
    MEASURED,
    NEAR,
    Judged,
    check_measured,
    factor,
    load_measured,
    of_classes,
    summaries,
)


def measured(
    classes: Annotated[
        str,
        typer.Option(
            "--class",
            help="Only rows of these classes, comma-separated, such as 'paging'.",
            show_default="all",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Only rows whose traces ship: no PyTorch needed.")
    ] = False,
    rows_list: Annotated[
        Path, typer.Option("--list", help="List of rows (YAML), or a directory of lists.")
    ] = DIRECTORY,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of results.")] = Path(
        "results/measured"
    ),
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Capture and run all rows, also those that ship or are finished.")
    ] = False,
) -> None:
    """Simulate what was measured on real machines and say how far predictions are off.

    Exit code 0: every row ran, whatever its ratio; 1: some row failed; 2: bad input.
    """
    rows = of_classes(load_measured(rows_list), names_in(classes))
    with CellProgress() as bar:
        judged = check_measured(
            rows,
            output,
            capture=None if quick else _capture,
            **bar.running(choose_executor(workers, scheduler), force=force),
        )
    _show(judged)
    simulated = [one for one in judged if not one.row.spec.cannot]
    for one in judged:
        if one.row.spec.cannot:
            say(f"{one.row.spec.name} {one.message}")
    say(f"{MEASURED}, cells and results in {output}")
    left = len(rows) - len(judged)
    if left:
        whose = "1 row left out: its trace does" if left == 1 else f"{left} rows left out: their traces do"
        say(f"{whose} not ship, and --quick captures none")
    complain_of_failures((one.row.spec.name, one.message) for one in simulated if one.predicted is None)


def _capture(words: Sequence[str], path: Path) -> None:
    from g10sim.cli.capture import capture_words

    capture_words(words, path)


def _show(judged: Sequence[Judged]) -> None:
    rows = [
        (
            one.row.spec.of,
            one.row.spec.says,
            one.row.spec.machine,
            one.row.spec.used,
            f"{one.row.spec.measured:.4g} {one.row.spec.unit}",
            "" if one.predicted is None else f"{one.predicted:.4g}",
            "" if one.ratio is None else f"{one.ratio:.2f}",
        )
        for one in judged
    ]
    show_table(("class", "row", "machine", "used"), ("measured", "predicted", "ratio"), rows)
    for one in judged:
        if one.cause:
            say(f"{one.row.spec.name}: {one.cause}")
    figures = (
        "rows",
        "median",
        "10%",
        "90%",
        "median off",
        "mean off",
        f"within {factor(NEAR):.2f}x",
        "worst",
    )
    show_table(
        ("class", "used"),
        figures,
        (
            (
                *(one.of, one.used, str(one.rows)),
                *(f"{value:.2f}" for value in (one.median, one.low, one.high, one.off, one.factor)),
                f"{one.near:.0%}",
                f"{one.worst:.2f}x",
            )
            for one in summaries(judged)
        ),
        title="predicted / measured",
    )
