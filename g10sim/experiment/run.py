"""Runs experiments: stored cells are reused, the others are simulated by workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g10sim.config.document import Document
from g10sim.experiment.cells import Cell
from g10sim.experiment.directory import ResultsDirectory
from g10sim.experiment.execution import FAILED, CellResult, CellTask, finished
from g10sim.experiment.expand import expand
from g10sim.experiment.store import CellStore
from g10sim.experiment.workers import Executor, LocalProcesses
from g10sim.stats.legends import ATTRIBUTE, legends
from g10sim.stats.seeds import over_seeds

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[Cell, CellResult], None]


def ignore(*_: object) -> None:
    """Do nothing, where a caller wants no reports of progress."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of an experiment: its cells, their results in the same order, and the rows of results.csv."""

    directory: Path
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]
    cells: tuple[Cell, ...]
    results: tuple[CellResult, ...]
    reused: int

    @property
    def failures(self) -> list[tuple[Cell, str]]:
        """Cells that failed, with the reason."""
        pairs = zip(self.cells, self.results, strict=True)
        return [(cell, result.message) for cell, result in pairs if result.status == FAILED]

    @property
    def table(self) -> pd.DataFrame:
        """The rows of results.csv as a DataFrame."""
        import pandas as pd

        table = pd.DataFrame(list(self.rows), columns=list(self.columns))
        table.attrs[ATTRIBUTE] = legends(cell.policy["name"] for cell in self.cells)
        return table

    @property
    def over_seeds(self) -> pd.DataFrame:
        """Mean and 95% confidence interval over seeds of each cell: see :mod:`g10sim.stats.seeds`."""
        return over_seeds(self.table)


def run_experiment(
    document: Document,
    *,
    output: Path | None = None,
    executor: Executor | None = None,
    force: bool = False,
    check: bool = False,
    started: Callable[[int], None] = ignore,
    progress: Progress = ignore,
) -> Outcome:
    """Run every cell of a configuration and write its directory of results.

    ``output`` overrides the configuration's; ``executor`` simulates (default: one process of this machine
    at a time); ``force`` runs stored cells again; ``started`` is called with the number of cells,
    ``progress`` with each cell when it ends. While cells run, ``results.csv`` has the rows of those that
    have ended; after an interruption the same call continues. Raises ConfigError, PolicyError or TraceError
    before anything runs; a cell that fails is part of the outcome.
    """
    experiment = expand(document, check=check)
    directory = output or Path(experiment.config.output or Path("results") / experiment.config.name)
    started(len(experiment.cells))
    files = ResultsDirectory(directory, experiment)

    def ended(cell: Cell, result: CellResult) -> None:
        files.add(cell.key, result)
        progress(cell, result)

    try:
        _, reused = run_cells(experiment.cells, directory, executor=executor, force=force, progress=ended)
    except BaseException:
        files.write()
        raise
    return _finished(files, reused)


def run_experiments(
    documents: Mapping[str, Document],
    directory: Path,
    *,
    executor: Executor | None = None,
    force: bool = False,
    started: Callable[[int], None] = ignore,
    progress: Progress = ignore,
    ended: Callable[[str, Outcome], None] = ignore,
) -> dict[str, Outcome]:
    """Run configurations by name; the results of each go to ``DIRECTORY/NAME`` as soon as it is complete.

    Finished cells lie in ``DIRECTORY/cells`` for all of them: cells that are equal are simulated once, and an
    interrupted call is continued by the next one. ``started`` is called with the number of different cells,
    ``progress`` with each as it is done, ``ended`` with each experiment. ``executor`` and ``force`` are those
    of :func:`run_experiment`. Raises ConfigError, PolicyError or TraceError before anything runs; cells that
    fail are part of the outcomes.
    """
    store = CellStore(directory)
    waiting = {
        name: ResultsDirectory(directory / name, expand(document), store)
        for name, document in documents.items()
    }
    keys = {name: {cell.key for cell in files.experiment.cells} for name, files in waiting.items()}
    cells: dict[str, Cell] = {}
    for cell in [cell for files in waiting.values() for cell in files.experiment.cells]:
        cells.setdefault(cell.key, cell)
    started(len(cells))
    outcomes: dict[str, Outcome] = {}

    def done(cell: Cell, result: CellResult) -> None:
        progress(cell, result)
        for name in [name for name in waiting if cell.key in keys[name]]:
            waiting[name].add(cell.key, result)
            if len(waiting[name].found) == len(keys[name]):
                outcomes[name] = _finished(waiting.pop(name), reused=0)
                ended(name, outcomes[name])

    try:
        run_cells(list(cells.values()), directory, executor=executor, force=force, progress=done)
    finally:
        for files in waiting.values():
            files.write()
    return {name: outcomes[name] for name in documents}


def _finished(files: ResultsDirectory, reused: int) -> Outcome:
    """Write everything and return the outcome of an experiment whose cells have all ended."""
    rows, cells = files.write(), files.experiment.cells
    files.merge_tables()
    results = tuple(files.found[cell.key] for cell in cells)
    return Outcome(files.directory, files.columns, rows, cells, results, reused)


def run_cells(
    cells: Sequence[Cell],
    directory: Path,
    *,
    executor: Executor | None = None,
    force: bool = False,
    progress: Progress = ignore,
) -> tuple[list[CellResult], int]:
    """Return the results of cells, in their order, and how many were stored from an earlier run.

    Equal cells are simulated once. Raises ConfigError when the directory cannot be written, or is being
    written by another run.
    """
    store, executor = CellStore(directory), executor or LocalProcesses()
    equal: dict[str, list[Cell]] = {}
    for cell in cells:
        equal.setdefault(cell.key, []).append(cell)
    found: dict[str, CellResult] = {}

    def ended(task: CellTask, result: CellResult) -> None:
        found[task.cell.key] = result
        for cell in equal[task.cell.key]:
            progress(cell, result)

    store.prepare()
    with store.alone():
        tasks = []
        for key, (cell, *_) in equal.items():
            task = CellTask(cell, directory)
            if force:
                store.forget(key)
            result = finished(task)
            if result is None:
                tasks.append(task)
            else:
                ended(task, result)
        reused = len(found)
        with closing(executor.run(tasks)) as results:
            for task, result in results:
                ended(task, result)
    return [found[cell.key] for cell in cells], reused
