"""``g10sim reproduce``: the experiments of the G10 paper, simulated and drawn."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from g10sim import plots
from g10sim.cli.errors import CELL_FAILED, complain
from g10sim.cli.executors import SchedulerOption, choose_executor
from g10sim.cli.output import say, show_table
from g10sim.cli.run import CellProgress
from g10sim.config.document import Document
from g10sim.config.load import load_run
from g10sim.errors import ConfigError, G10SimError
from g10sim.experiment.execution import OK
from g10sim.experiment.run import Outcome
from g10sim.experiment.several import run_experiments
from g10sim.plots.registry import ENTRIES, paper_figures
from g10sim.registry import choices_text, nearest

PICTURES = "figures"
"""Directory of the pictures inside that of the results."""


def reproduce(
    figures: Annotated[
        str, typer.Option(help="Only these figures, comma-separated, such as fig11,fig15.")
    ] = "",
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Directory of results and pictures."),
    ] = Path("results/paper"),
    workers: Annotated[
        int | None,
        typer.Option("-j", "--workers", min=1, help="Cells simulated at a time.", show_default="all cores"),
    ] = None,
    scheduler: SchedulerOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a dotted key in every experiment, such as workload.trace='mine/*.g10t'.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run cells again that are stored.")] = False,
) -> None:
    """Simulate the experiments of the G10 paper's figures and draw them; an interrupted run goes on.

    Exit code 0: every cell ran; 1: some cell failed; 2: bad input.
    """
    documents = {name: _experiment(name, settings or []) for name in _chosen(figures)}
    executor = choose_executor(workers, scheduler, default_workers=_cores())
    problems: list[str] = []
    with CellProgress() as bar:
        outcomes = run_experiments(
            documents,
            output,
            executor=executor,
            force=force,
            started=bar.start,
            progress=bar.advance,
            ended=lambda name, outcome: problems.extend(_draw(name, outcome, output / PICTURES)),
        )
    _summarize(outcomes)
    say(f"pictures in {output / PICTURES}")
    problems += _failures(outcomes)
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(CELL_FAILED)


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chosen(text: str) -> list[str]:
    known = paper_figures()
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"--figures: found '{name}'{nearest(name, known)}; allowed: {choices_text(known)}"
            )
    return [name for name in known if name in names] if names else list(known)


def _experiment(name: str, settings: list[str]) -> Document:
    return load_run(Path("experiments") / f"{name}.yaml", settings)


def _draw(name: str, outcome: Outcome, directory: Path) -> list[str]:
    """Draw a figure; return what went wrong."""
    try:
        plots.save(plots.draw(name, outcome.directory), directory, name)
    except G10SimError as error:
        return [f"{name}: {error}"]
    return []


def _summarize(outcomes: dict[str, Outcome]) -> None:
    rows = []
    for name, outcome in outcomes.items():
        ended = [result.status for result in outcome.results]
        counts = (len(ended), len(ended) - ended.count(OK) - len(outcome.failures), len(outcome.failures))
        rows.append((name, ENTRIES[name].title, *map(str, counts)))
    show_table(("figure", "shows"), ("cells", "unsupported", "failed"), rows)


def _failures(outcomes: dict[str, Outcome]) -> list[str]:
    """Say of every cell that failed why; of one that several figures have once."""
    found: dict[str, str] = {}
    for name, outcome in outcomes.items():
        for cell, message in outcome.failures:
            place = f"{name}, cell {cell.index} ({cell.jobs[0].trace.name}, {cell.label})"
            found.setdefault(cell.key, f"{place} failed: {message}")
    return list(found.values())
