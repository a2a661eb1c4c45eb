"""Runs experiments: stored cells are reused, the others are simulated by workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from g10sim.config.document import Document
from g10sim.config.load import run_config
from g10sim.config.run import AUTO, MOST_ITERATIONS
from g10sim.display import Displayed
from g10sim.errors import few
from g10sim.experiment.cells import CHANGED, Cell, CellResult, CellTask, EqualParts, change_since, finished
from g10sim.experiment.directory import ResultsDirectory, result_rows
from g10sim.experiment.expand import expand
from g10sim.experiment.reads import Now
from g10sim.experiment.store import CellStore
from g10sim.experiment.uncertainty import all_cells
from g10sim.experiment.workers import CellExecutor, LocalProcesses
from g10sim.grouping import grouped
from g10sim.results.columns import FAILED
from g10sim.results.legends import ATTRIBUTE, legends
from g10sim.results.seeds import over_seeds

if TYPE_CHECKING:
    import pandas as pd

Ended = Callable[[str, CellResult], None]

_ATTEMPTS = 3
"""Most often that a cell is simulated because its code changes while it runs."""

_AGAIN = "%d cells are run again: their code or files changed meanwhile"
_LEFT = "%d cells have read files that were changed since; the same command runs them again"

_NOTICED_SECONDS, _MOST_OF_TIME = 1.0, 0.5
"""Least seconds of a cell that say something of a policy's speed, and its share from which on to warn."""
_NAMED = 5
"""Cells that a warning names."""
_SHOWS_METHODS = "python -m cProfile -s tottime -m g10sim policy step FILE POLICY"
"""Simulates in the process that is measured, as a run does not."""

_log = logging.getLogger(__name__)


class Running(TypedDict, total=False):
    """Keyword arguments of all that runs cells: their executor, and who hears of them.

    ``executor`` simulates (default: one process of this machine at a time); ``force`` runs stored cells
    again; ``started`` is called with the number of different cells, ``told`` with each warning before
    anything runs, ``progress`` with each cell when it ends.
    """

    executor: CellExecutor | None
    force: bool
    started: Callable[[int], None]
    told: Callable[[str], None]
    progress: Callable[[Cell, CellResult], None]


def ignore(*_: object) -> None:
    """Do nothing, where a caller wants no reports of progress."""


@dataclass(frozen=True, repr=False)
class Outcome(Displayed):
    """Outcome of an experiment: its cells, their results in the same order, the columns of results.csv."""

    directory: Path
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    results: tuple[CellResult, ...]
    reused: int
    warnings: tuple[str, ...] = ()

    def display(self) -> Mapping[str, str]:
        """Return what became of the cells."""
        failed = len(self.failures)
        counts = {"cells": f"{len(self.cells):,}", "reused": f"{self.reused:,}"}
        counts |= {"failed": f"{failed:,}"} if failed else {}
        return {"results": str(self.directory), **counts}

    @cached_property
    def rows(self) -> tuple[dict[str, Any], ...]:
        """The rows of results.csv."""
        return tuple(result_rows(self.cells, self.results))

    @property
    def failures(self) -> list[tuple[Cell, str]]:
        """Cells that failed, with the reason."""
        pairs = zip(self.cells, self.results, strict=True)
        return [(cell, result.message) for cell, result in pairs if result.status == FAILED]

    @property
    def tracebacks(self) -> tuple[str, ...]:
        """Places in the program where failures arose, each once."""
        return tuple(dict.fromkeys(result.traceback for result in self.results if result.traceback))

    @property
    def table(self) -> pd.DataFrame:
        """The rows of results.csv as a DataFrame."""
        import pandas as pd

        table = pd.DataFrame(list(self.rows), columns=list(self.columns))
        table.attrs[ATTRIBUTE] = legends(cell.policy["name"] for cell in self.cells)
        return table

    @property
    def over_seeds(self) -> pd.DataFrame:
        """Mean and 95% confidence interval over seeds of each cell: see :mod:`g10sim.results.seeds`."""
        return over_seeds(self.table)


def run_experiment(
    document: Document,
    *,
    output: Path | None = None,
    check: bool = False,
    limit: int | None = None,
    **running: Unpack[Running],
) -> Outcome:
    """Run every cell of a configuration and write its directory of results.

    ``output`` overrides the configuration's; more cells than the ``limit`` are refused. While cells run,
    ``results.csv`` has the rows of those that have ended; after an interruption the same call continues.
    Raises ConfigError, PolicyError or TraceError before anything runs; a cell that fails is part of the
    outcome.
    """
    config = run_config(document)
    directory = output or Path(config.output or Path("results") / config.name)
    store = CellStore(directory)
    experiment = expand(document, check=check, limit=limit, known=store.known_traces)
    files = ResultsDirectory(directory, experiment, store)
    outcomes, reused = _run({config.name: files}, store, **running)
    return replace(outcomes[config.name], reused=reused)


def run_experiments(
    documents: Mapping[str, Document],
    directory: Path,
    *,
    ended: Callable[[str, Outcome], None] = ignore,
    **running: Unpack[Running],
) -> dict[str, Outcome]:
    """Run configurations by name; the results of each go to ``DIRECTORY/NAME`` as soon as it is complete.

    Finished cells lie in ``DIRECTORY/cells`` for all of them: cells that are equal are simulated once, and an
    interrupted call is continued by the next one. ``ended`` is called with each experiment. Raises
    ConfigError, PolicyError or TraceError before anything runs; cells that fail are part of the outcomes.
    """
    store = CellStore(directory)
    experiments = {
        name: ResultsDirectory(directory / name, expand(document, known=store.known_traces), store)
        for name, document in documents.items()
    }
    outcomes, _ = _run(experiments, store, ended, **running)
    return {name: outcomes[name] for name in documents}


def _run(
    experiments: Mapping[str, ResultsDirectory],
    store: CellStore,
    ended: Callable[[str, Outcome], None] = ignore,
    **running: Unpack[Running],
) -> tuple[dict[str, Outcome], int]:
    """Run the cells of experiments; return their outcomes, and how many cells an earlier run had stored."""
    cells: dict[str, Cell] = {}
    for cell in [cell for files in experiments.values() for cell in all_cells(files.experiment.cells)]:
        cells.setdefault(cell.key, cell)
    running.get("started", ignore)(len(cells))
    warnings = (text for files in experiments.values() for text in files.experiment.warnings)
    for warning in dict.fromkeys(warnings):
        running.get("told", ignore)(warning)
    outcomes: dict[str, Outcome] = {}
    counted: set[str] = set()

    def done(cell: Cell, result: CellResult) -> None:
        having = {name: files for name, files in experiments.items() if cell.key in files.keys}
        for files in having.values():
            files.add(cell.key, result)
        if cell.key not in counted:  # one that is run again has been counted
            counted.add(cell.key)
            running.get("progress", ignore)(cell, result)
        for name, files in having.items():
            if files.is_complete:
                outcomes[name] = _finished(files)
                ended(name, outcomes[name])

    with store.alone():
        store.known_traces.save()
        try:
            own: Running = {**running, "progress": done}
            _, reused = _run_alone(list(cells.values()), store, **own)
        finally:
            for name in experiments.keys() - outcomes.keys():
                experiments[name].write()
    return outcomes, reused


def _finished(files: ResultsDirectory) -> Outcome:
    """Write everything and return the outcome of an experiment whose cells have all ended."""
    cells = files.experiment.cells
    files.write()
    files.merge_tables()
    results = tuple(files.result(cell) for cell in cells)
    warnings = (*files.experiment.warnings, *_unsteady(cells, results), *slow_policies(cells, results))
    return Outcome(files.directory, files.columns, cells, results, 0, warnings)


def slow_policies(cells: Sequence[Cell], results: Sequence[CellResult]) -> Iterator[str]:
    """Yield a warning for each plug-in in whose methods most of the time of some cell passed."""
    most: dict[str, float] = {}
    for cell, result in zip(cells, results, strict=True):
        whole = result.timing.get("wall_seconds", 0.0)
        if result.origin.get("plug_in") and whole >= _NOTICED_SECONDS:
            share = result.timing.get("policy_seconds", 0.0) / whole
            most[cell.label] = max(share, most.get(cell.label, 0.0))
    for label, share in most.items():
        if share > _MOST_OF_TIME:
            took = f"took {share:.0%} of the time of a cell in its own methods"
            yield f"policy {label} {took} (column policy_seconds of timing.csv); {_SHOWS_METHODS} shows which"


def _unsteady(cells: Sequence[Cell], results: Sequence[CellResult]) -> Iterator[str]:
    """Yield a warning that names the cells that did not become steady in as many iterations as are run."""
    found = [
        cell.title
        for cell, result in zip(cells, results, strict=True)
        if cell.jobs[0].iterations == AUTO
        and any(row.get("iterations") == MOST_ITERATIONS and not row["steady"] for row in result.rows)
    ]
    if found:
        cells_named = f"cell{'s'[: len(found) > 1]} {few(found, _NAMED)}"
        yield f"not steady after {MOST_ITERATIONS} iterations: {cells_named}"


def run_cells(
    cells: Sequence[Cell], directory: Path, **running: Unpack[Running]
) -> tuple[list[CellResult], int]:
    """Return the results of cells, in their order, and how many were stored from an earlier run.

    Equal cells are simulated once. The directory is locked meanwhile. Raises ConfigError when it cannot be
    written, or is being written by another run. Cells whose code or files change meanwhile are run again as
    these are then.
    """
    store = CellStore(directory)
    with store.alone():
        return _run_alone(cells, store, **running)


def _run_alone(
    cells: Sequence[Cell], store: CellStore, **running: Unpack[Running]
) -> tuple[list[CellResult], int]:
    """Run cells in a directory that is locked: see :func:`run_cells`."""
    executor = running.get("executor") or LocalProcesses()
    equal = grouped((cell.key, cell) for cell in cells)
    found: dict[str, CellResult] = {}
    parts = EqualParts()

    def ended(name: str, result: CellResult) -> None:
        result = found[name] = parts.shared(result)
        for cell in equal[name]:
            running.get("progress", ignore)(cell, result)

    waiting, reused = {key: same[0] for key, same in equal.items()}, 0
    for key in waiting if running.get("force") else ():
        store.forget(key)
    for attempt in range(_ATTEMPTS):
        tasks = _not_stored(waiting, store.directory, ended)
        reused += len(found) if attempt == 0 else 0
        _simulate(tasks, executor, ended, is_last=attempt == _ATTEMPTS - 1)
        now = Now()
        waiting = {key: cell for key, (cell, *_) in equal.items() if not _stands(found.get(key), now)}
        if not waiting:
            break
        _log.warning(_AGAIN if attempt < _ATTEMPTS - 1 else _LEFT, len(waiting))
    return [found[cell.key] for cell in cells], reused


def _not_stored(cells: Mapping[str, Cell], directory: Path, ended: Ended) -> list[CellTask]:
    """Report the results of cells that are stored, and return the others."""
    tasks, now = [], Now()
    for key, cell in cells.items():
        task = CellTask(cell, directory)
        result = finished(task, now)
        if result is None:
            tasks.append(task)
        else:
            ended(key, result)
    return tasks


def _simulate(tasks: Sequence[CellTask], executor: CellExecutor, ended: Ended, *, is_last: bool) -> None:
    """Simulate cells; one that changed while it ran is left out, or fails if it is not to be tried again."""
    with closing(executor.run(tasks)) as results:
        for task, result in results:
            if result.status != CHANGED:
                ended(task.cell.key, result)
            elif is_last:
                ended(task.cell.key, replace(result, status=FAILED))


def _stands(result: CellResult | None, now: Now) -> bool:
    """Return whether a result is there, and nobody but its cell has changed what it has read."""
    return result is not None and (not result.origin or not change_since(result.origin, now, own=False))
