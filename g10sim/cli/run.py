"""``g10sim run``: a configuration in, a directory of results and a table out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from g10sim.cli import options
from g10sim.cli import output as terminal
from g10sim.config.load import load_run, with_policies
from g10sim.config.schema import run_schema
from g10sim.display import rounded_seconds
from g10sim.errors import ConfigError
from g10sim.experiment.cells import Cell, CellResult
from g10sim.experiment.directory import result_rows
from g10sim.experiment.run import Outcome, Running, ignore, run_experiment
from g10sim.experiment.workers import CellExecutor
from g10sim.policies.interface.registry import find
from g10sim.results.columns import OK, SHOWN, UNSUPPORTED, metric_columns, tiers_of
from g10sim.results.reading import records
from g10sim.results.seeds import order_lines, over_seeds

if TYPE_CHECKING:
    from rich.progress import Progress

_MANY_CELLS = 100_000
_SECONDS_BETWEEN_LINES = 60.0

Seconds = Annotated[
    float | None, Option(min=0.001, help="Give up a cell after that many seconds.", show_default="no limit")
]


def run(
    config: Annotated[Path | None, Argument(help="Run configuration (YAML).")] = None,
    output: Annotated[
        Path | None, options.output_to("Directory of results.", "the configuration's output")
    ] = None,
    workers: options.Workers = None,
    scheduler: options.Scheduler = None,
    settings: options.Settings = None,
    policies: options.AddPolicy = None,
    force: options.Force = False,
    check: Annotated[bool, Option("--check", help="Test every invariant while simulating: slower.")] = False,
    seconds: Seconds = None,
    debug: Annotated[bool, Option("--debug", help="Show the whole traceback of cells that fail.")] = False,
    yes: Annotated[
        bool, Option("--yes", help=f"Run more than {_MANY_CELLS:,} cells, which are refused otherwise.")
    ] = False,
    verbose: options.Verbose = False,
    schema: Annotated[
        bool, Option("--schema", help="Print the JSON Schema of run configurations and do nothing else.")
    ] = False,
) -> None:
    """Simulate every cell of CONFIG; cells that are finished and unchanged are not run again.

    Exit code 0: cells ran, and none failed; 1: some cell failed; 2: bad input; 3: all cells are unsupported.
    """
    if schema:
        terminal.say_json(run_schema())
        return
    if config is None:
        raise ConfigError("run: found no configuration; allowed: the path of a YAML file, or --schema")
    executor = options.choose_executor(workers, scheduler, seconds=seconds)
    warn_once = cache(terminal.warn)
    with terminal.telling_what_is_read() if verbose else nullcontext():
        document = with_policies(load_run(config, settings or ()), policies or ())
        with CellProgress() as bar:
            running = bar.running(executor, force=force, told=warn_once)
            limit = None if yes else _MANY_CELLS
            outcome = run_experiment(document, output=output, check=check, limit=limit, **running)
    _show(outcome)
    _summarize(outcome)
    for warning in outcome.warnings:
        warn_once(warning)
    if debug:
        for text in outcome.tracebacks:
            sys.stderr.write(text)
    terminal.complain_of_failures((f"cell {cell.title}", message) for cell, message in outcome.failures)
    if all(result.status == UNSUPPORTED for result in outcome.results):
        raise typer.Exit(terminal.ALL_UNSUPPORTED)


class CellProgress:
    """A progress bar with the time left on standard error; if that is no terminal, a line a minute.

    Ctrl-C raises an InterruptionError with the number of finished cells, once cells have begun.
    """

    def __init__(self) -> None:
        console = terminal.SafeConsole(stderr=True)
        self._progress = _bar(console) if console.is_terminal else None
        self._done, self._total = 0, 0
        self._began = self._told = time.monotonic()

    def __enter__(self) -> CellProgress:
        if self._progress is not None:
            self._progress.start()
            self._task = self._progress.add_task("cells", total=None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        if kind is KeyboardInterrupt and self._total:
            kept = f"{self._done} of {self._total} cells are finished and kept"
            raise terminal.InterruptionError(f"interrupted; {kept}; the same command runs the rest")

    def running(
        self, executor: CellExecutor, *, force: bool = False, told: Callable[[str], None] = ignore
    ) -> Running:
        """Return keyword arguments of what runs cells: the bar hears of them, ``told`` of warnings."""
        heard: Running = {"started": self._start, "progress": self._advance, "told": told}
        return {"executor": executor, "force": force, **heard}

    def _start(self, total: int) -> None:
        self._total = total
        if self._progress is not None:
            self._progress.update(self._task, total=total)

    def _advance(self, cell: Cell, result: CellResult) -> None:
        self._done += 1
        now = time.monotonic()
        if self._progress is not None:
            self._progress.update(self._task, advance=1, description=f"{cell.label} {result.status}")
        elif now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            left = (now - self._began) / self._done * max(0, self._total - self._done)
            terminal.tell(f"{self._done} of {self._total} cells done; about {rounded_seconds(left)} left")


def _bar(console: terminal.SafeConsole) -> Progress:
    from rich import progress  # only a terminal shows it

    text = progress.TextColumn("{task.description}", markup=False)
    counts = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn()
    left = progress.TextColumn("left"), progress.TimeRemainingColumn()
    return progress.Progress(text, *counts, *left, console=console, transient=True)


_FIGURES = {
    "time (ms)": (",.1f", ",.1f"),
    "of ideal": (".1%", ".2%"),
    "stall": (".1%", ".2%"),
    "moved (GB)": (",.1f", ",.1f"),
    "page faults": (",.0f", ",.0f"),
}
"""Columns of the table, and how a figure of one seed and one of several are written."""


def _show(outcome: Outcome) -> None:
    metrics = {*metric_columns(tiers_of(outcome.columns))} - {"steady"}
    rows = [
        {key: value for key, value in row.items() if key not in metrics}
        | {title: SHOWN[title](row) for title in _FIGURES if row["status"] == OK}
        for row in result_rows(outcome.cells, outcome.results)
    ]
    title, hidden = outcome.cells[0].name, ""
    if len({row["seed"] for row in rows}) > 1:
        rows = _averaged(rows, outcome)
        title += f": mean of {max(row['seeds'] for row in rows)} seeds, ± 95% confidence interval"
        hidden = "seed"
    for row in rows:
        row["steady"] = _verdict(row.get("steady"))
    swept = [key for key in outcome.cells[0].swept if key in outcome.columns and key != hidden]
    titles = {cell.label: _title(cell) for cell in outcome.cells}
    names = {} if hidden or len(rows) == 1 else {"cell": [str(row["cell"]) for row in rows]}
    if any("job" in row for row in rows):
        names["job"] = [_job(row) for row in rows]
    names |= {"trace": [Path(row["trace"]).stem for row in rows]}
    names |= {"policy": [titles[row["policy"]] for row in rows]}
    names |= {key: [str(row[key]) for row in rows] for key in (*swept, "status", "steady")}
    for key, usual in (("trace", {names["trace"][0]}), ("status", {OK}), ("steady", {"yes", ""})):
        if set(names[key]) <= usual:
            del names[key]
    if any(row["status"] == UNSUPPORTED for row in rows):
        names["why"] = [str(row["message"]) if row["status"] == UNSUPPORTED else "" for row in rows]
    texts = zip(*([_text(row, figure) for figure in _FIGURES] for row in rows), strict=True)
    titles_of_figures = [title.replace(" ", "\n") for title in _FIGURES]
    lines = zip(*names.values(), *texts, strict=True)
    terminal.show_table(list(names), titles_of_figures, lines, title=title)


def _summarize(outcome: Outcome) -> None:
    terminal.say(*order_lines(outcome.directory))
    reused = f", {outcome.reused} of them from an earlier run" if outcome.reused else ""
    count, table = len(outcome.cells), outcome.directory / "results.csv"
    terminal.say(f"{count} {'cell' if count == 1 else 'cells'}{reused}; results in {table}")


def _job(row: dict[str, Any]) -> str:
    """Name the job of a row and its GPU; of a workload that has only one, nothing."""
    job = row.get("job")
    return "" if job is None or job != job else f"{job:.0f}, GPU {row['gpu']:.0f}"


def _title(cell: Cell) -> str:
    """Return the label of a cell's policy, with its parameters."""
    name = cell.policy["name"]
    return cell.label.replace(name, find(name).legend().label, 1)


def _averaged(rows: list[dict[str, Any]], outcome: Outcome) -> list[dict[str, Any]]:
    import pandas as pd

    metrics = metric_columns(tiers_of(outcome.columns))
    names = [column for column in outcome.columns if column not in metrics]
    figures = [*_FIGURES, "steady"]
    return records(over_seeds(pd.DataFrame(rows, columns=[*names, *figures]), figures))


def _verdict(steady: float | None) -> str:
    """Say whether a cell is steady; of several seeds, whether all of them are."""
    return "" if steady is None or steady != steady else "yes" if steady == 1 else "no"


def _text(row: dict[str, Any], figure: str) -> str:
    if row["status"] != OK:
        return ""
    alone, several = _FIGURES[figure]
    if "seeds" not in row:
        return format(row[figure], alone)
    return f"{row[figure]:{several}} ± {row[f'{figure}_interval']:{several}}"
