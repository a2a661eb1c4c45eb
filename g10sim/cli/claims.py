"""``g10sim claims``: every published claim alongside what simulations show."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from g10sim.cli.options import ForceOption, SchedulerOption, WorkersOption, choose_executor, names_in
from g10sim.cli.output import complain_of_failures, say, show_table
from g10sim.cli.run import CellProgress
from g10sim.errors import ConfigError
from g10sim.reproduce.claims import (
    CLAIMS,
    LIST,
    NOT_REPRODUCED,
    Finding,
    by_verdict,
    check_claims,
    load_claims,
)
from g10sim.reproduce.published import TRACES
from g10sim.results.cases import written

_VARIABLE = "G10SIM_REFERENCE"


def claims(
    system: Annotated[
        str,
        typer.Option(
            help="Only claims about these designs, comma-separated, such as 'G10,TENSILE'.",
            show_default="all",
        ),
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller cells, which take minutes.")
    ] = False,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Directory of published data, with traces/MODEL/BATCH/.", show_default=f"${_VARIABLE}/gpg"
        ),
    ] = None,
    claims_list: Annotated[Path, typer.Option("--list", help="List of claims (YAML).")] = LIST,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of results.")] = Path(
        "results/claims"
    ),
    workers: WorkersOption = None,
    scheduler: SchedulerOption = None,
    force: ForceOption = False,
) -> None:
    """Simulate the experiments behind published claims and say which are reproduced.

    Exit code 0: every cell ran, whatever the verdicts; 1: some cell failed; 2: bad input.
    """
    listed = load_claims(claims_list)
    chosen = listed.of(names_in(system))
    with CellProgress() as bar:
        findings, outcomes = check_claims(
            listed,
            chosen,
            output,
            quick=quick,
            reference=_reference(reference),
            **bar.running(choose_executor(workers, scheduler), force=force),
        )
    _show(findings)
    say(f"{CLAIMS}, cells and results in {output}")
    complain_of_failures(
        (f"{name}, cell {cell.index} ({cell.jobs[0].trace.name}, {cell.label})", message)
        for name, outcome in outcomes.items()
        for cell, message in outcome.failures
    )


def _reference(given: Path | None) -> Path | None:
    """Return the directory of published data, if there is one. Raises ConfigError for one without traces."""
    variable = os.environ.get(_VARIABLE)
    found = given or (Path(variable) / "gpg" if variable else None)
    if found is not None and not (found / TRACES).is_dir():
        option = "--reference" if given else f"${_VARIABLE}"
        raise ConfigError(
            f"{option}: found {found}, without '{TRACES}'; allowed: a directory of published data"
        )
    return found


def _show(findings: list[Finding]) -> None:
    rows = []
    for one in findings:
        claim = one.claim
        numbers = (written(claim.published, claim.unit), written(one.measured.value, claim.unit))
        rows.append((claim.system, claim.says, one.data, *numbers, one.verdict))
    show_table(("design", "claim", "traces"), ("published", "here", "verdict"), rows)
    for one in findings:
        if one.verdict == NOT_REPRODUCED and one.claim.lacks:
            say(f"{one.claim.name} ({one.data}): {one.claim.lacks}")
    say(", ".join(f"{count} {verdict}" for verdict, count in by_verdict(findings).items() if count))
