"""``g10sim validate``, ``claims`` and ``measured``: published and measured numbers, and simulated ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from g10sim.cli.options import Force, Scheduler, Workers, choose_executor, names_in, only, output_to
from g10sim.cli.output import complain_of_failures, say, show_table
from g10sim.cli.run import CellProgress
from g10sim.errors import ConfigError
from g10sim.experiment.workers import LocalProcesses
from g10sim.reproduce import claims as claim_list
from g10sim.reproduce import measured as measurements
from g10sim.reproduce.validation import TRACES, Agreement, agreements
from g10sim.reproduce.validation import validate as run_validation
from g10sim.results.cases import written
from g10sim.results.columns import FAILED

_VARIABLE = "G10SIM_REFERENCE"
_REFERENCE_HELP = "Directory of published data, with traces/MODEL/BATCH/."
Published = Annotated[Path | None, Option(help=_REFERENCE_HELP, show_default=f"${_VARIABLE}/gpg")]


def validate(
    reference: Annotated[Path, Argument(help="Directory with published.csv and traces/MODEL/BATCH/.")],
    figures: Annotated[str | None, only("these figures")] = None,
    models: Annotated[str | None, only("these models")] = None,
    policies: Annotated[str | None, only("these policies")] = None,
    workers: Workers = None,
    output: Annotated[Path, output_to("Directory of validation.csv and of finished cells.")] = Path(
        "results/validation"
    ),
) -> None:
    """Simulate the published results of REFERENCE and write and summarize validation.csv.

    Exit code 0: every cell ran; 1: some cell failed; 2: bad input.
    """
    with CellProgress() as bar:
        compared = run_validation(
            reference,
            output,
            figures=names_in("--figures", figures),
            models=names_in("--models", models),
            policies=names_in("--policies", policies),
            **bar.running(LocalProcesses(workers or 1)),
        )
    names = ("figure", "policy", "plan")
    figures_shown = ("exact", "median", "p95", "max", "support\ndiffers", "left\nout")
    title = "absolute relative error against the published results"
    show_table(names, figures_shown, _summary(agreements(compared)), title=title)
    say(f"{len(compared)} rows in {output / 'validation.csv'}")
    failed = ((one.row, one.message) for one in compared if one.status == FAILED)
    named = ((f"{row.texts['model']} {row.batch} {row.texts['policy']}", why) for row, why in failed)
    complain_of_failures(dict.fromkeys(named))


def _summary(groups: list[Agreement]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        exact = f"{group.exact} of {group.cells}" if group.cells else ""
        errors = (_error(error) for error in (group.median, group.p95, group.maximum))
        counts = (str(count) if count else "" for count in (group.mismatched, group.left_out))
        yield group.figure, group.policy, group.plan, exact, *errors, *counts


def _error(error: float | None) -> str:
    return "" if error is None else "0" if error == 0 else f"{error:.1e}"


def claims(
    system: Annotated[str | None, only("claims about these designs", such_as="'G10,TENSILE'")] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer and smaller cells, which take minutes.")] = False,
    reference: Published = None,
    claims_list: Annotated[Path, Option("--list", help="List of claims (YAML).")] = claim_list.LIST,
    output: Annotated[Path, output_to("Directory of results.")] = Path("results/claims"),
    workers: Workers = None,
    scheduler: Scheduler = None,
    force: Force = False,
) -> None:
    """Simulate the experiments behind published claims and say which are reproduced.

    Exit code 0: every cell ran, whatever the verdicts; 1: some cell failed; 2: bad input.
    """
    listed = claim_list.load_claims(claims_list)
    chosen = listed.of(names_in("--system", system))
    with CellProgress() as bar:
        data = _reference(reference)
        running = bar.running(choose_executor(workers, scheduler), force=force)
        findings, outcomes = claim_list.check_claims(
            listed, chosen, output, quick=quick, reference=data, **running
        )
    _show_findings(findings)
    say(f"{claim_list.CLAIMS}, cells and results in {output}")
    complain_of_failures(
        (f"{name}, cell {cell.title}", message)
        for name, outcome in outcomes.items()
        for cell, message in outcome.failures
    )


def _reference(given: Path | None) -> Path | None:
    """Return the directory of published data, if there is one. Raises ConfigError for one without traces."""
    variable = os.environ.get(_VARIABLE)
    found = given or (Path(variable) / "gpg" if variable else None)
    if found is not None and not (found / TRACES).is_dir():
        option = "--reference" if given else f"${_VARIABLE}"
        raise ConfigError.at(option, f"{found}, without '{TRACES}'", "a directory of published data")
    return found


def _show_findings(findings: list[claim_list.Finding]) -> None:
    rows = []
    for one in findings:
        claim = one.claim
        numbers = (written(claim.published, claim.unit), written(one.measured.value, claim.unit))
        rows.append((claim.system, claim.says, one.data, *numbers, one.verdict))
    show_table(("design", "claim", "traces"), ("published", "here", "verdict"), rows)
    for one in findings:
        if one.verdict == claim_list.NOT_REPRODUCED and one.claim.lacks:
            say(f"{one.claim.name} ({one.data}): {one.claim.lacks}")
    counts = claim_list.by_verdict(findings).items()
    say(", ".join(f"{count} {verdict}" for verdict, count in counts if count))


def measured(
    classes: Annotated[str | None, only("rows of these classes", "--class", such_as="'paging'")] = None,
    quick: Annotated[bool, Option("--quick", help="Only rows whose traces ship: no PyTorch needed.")] = False,
    rows_list: Annotated[
        Path, Option("--list", help="List of rows (YAML), or a directory of lists.")
    ] = measurements.DIRECTORY,
    output: Annotated[Path, output_to("Directory of results.")] = Path("results/measured"),
    workers: Workers = None,
    scheduler: Scheduler = None,
    force: Annotated[
        bool, Option("--force", help="Capture and run all rows, also those that ship or are finished.")
    ] = False,
) -> None:
    """Simulate what was measured on real machines and say how far predictions are off.

    Exit code 0: every row ran, whatever its ratio; 1: some row failed; 2: bad input.
    """
    rows = measurements.of_classes(measurements.load_measured(rows_list), names_in("--class", classes))
    with CellProgress() as bar:
        running = bar.running(choose_executor(workers, scheduler), force=force)
        capture = None if quick else _capture
        judged = measurements.check_measured(rows, output, capture=capture, **running)
    _show_judged(judged)
    simulated = [one for one in judged if not one.row.spec.cannot]
    for one in judged:
        if one.row.spec.cannot:
            say(f"{one.row.spec.name} {one.message}")
    say(f"{measurements.MEASURED}, cells and results in {output}")
    left = len(rows) - len(judged)
    if left:
        whose = "1 row left out: its trace does" if left == 1 else f"{left} rows left out: their traces do"
        say(f"{whose} not ship, and --quick captures none")
    complain_of_failures((one.row.spec.name, one.message) for one in simulated if one.predicted is None)


def _capture(words: Sequence[str], path: Path) -> None:
    from g10sim.cli.capture import capture_words  # loads what only captures need

    capture_words(words, path)


def _show_judged(judged: Sequence[measurements.Judged]) -> None:
    rows = []
    for one in judged:
        spec = one.row.spec
        predicted = "" if one.predicted is None else f"{one.predicted:.4g}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        numbers = f"{spec.measured:.4g} {spec.unit}", predicted, ratio
        rows.append((spec.of, spec.says, spec.machine, spec.used, *numbers))
    show_table(("class", "row", "machine", "used"), ("measured", "predicted", "ratio"), rows)
    for one in judged:
        if one.cause:
            say(f"{one.row.spec.name}: {one.cause}")
    near = f"within {measurements.factor(measurements.NEAR):.2f}x"
    figures = ("rows", "median", "10%", "90%", "median off", "mean off", near, "worst")
    lines = []
    for of in measurements.summaries(judged):
        values = (f"{value:.2f}" for value in (of.median, of.low, of.high, of.off, of.factor))
        lines.append((of.of, of.used, str(of.rows), *values, f"{of.near:.0%}", f"{of.worst:.2f}x"))
    show_table(("class", "used"), figures, lines, title="predicted / measured")
