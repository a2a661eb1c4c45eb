"""``g10sim validate``: the published results simulated again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.options import WorkersOption, names_in
from g10sim.cli.output import complain_of_failures, say, show_table
from g10sim.cli.run import CellProgress
from g10sim.experiment.outcome import FAILED
from g10sim.experiment.workers import LocalProcesses
from g10sim.reproduce.validation import Agreement, agreements
from g10sim.reproduce.validation import validate as run_validation


def validate(
    reference: Annotated[
        Path, typer.Argument(help="Directory with published.csv and traces/MODEL/BATCH/.", show_default=False)
    ],
    figures: Annotated[
        str, typer.Option(help="Only these figures, comma-separated.", show_default="all")
    ] = "",
    models: Annotated[str, typer.Option(help="Only these models, comma-separated.", show_default="all")] = "",
    policies: Annotated[
        str, typer.Option(help="Only these policies, comma-separated.", show_default="all")
    ] = "",
    workers: WorkersOption = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Directory of validation.csv and of finished cells.")
    ] = Path("results/validation"),
) -> None:
    """Simulate the published results of REFERENCE and write and summarize validation.csv.

    Exit code 0: every cell ran; 1: some cell failed; 2: bad input.
    """
    with CellProgress() as bar:
        compared = run_validation(
            reference,
            output,
            figures=names_in(figures),
            models=names_in(models),
            policies=names_in(policies),
            **bar.running(LocalProcesses(workers or 1)),
        )
    show_table(
        ("figure", "policy", "plan"),
        ("exact", "median", "p95", "max", "support\ndiffers", "left\nout"),
        _summary(agreements(compared)),
        title="absolute relative error against the published results",
    )
    say(f"{len(compared)} rows in {output / 'validation.csv'}")
    complain_of_failures(
        dict.fromkeys(
            (f"{one.row.texts['model']} {one.row.batch} {one.row.texts['policy']}", one.message)
            for one in compared
            if one.status == FAILED
        )
    )


def _summary(groups: list[Agreement]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        exact = f"{group.exact} of {group.cells}" if group.cells else ""
        errors = (_error(error) for error in (group.median, group.p95, group.maximum))
        counts = (str(count) if count else "" for count in (group.mismatched, group.left_out))
        yield group.figure, group.policy, group.plan, exact, *errors, *counts


def _error(error: float | None) -> str:
    return "" if error is None else "0" if error == 0 else f"{error:.1e}"
