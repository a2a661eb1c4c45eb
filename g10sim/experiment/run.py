"""Running an experiment: what is stored is reused, the rest goes to workers, results come from both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from g10sim.stats.seeds import over_seeds

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[Cell, CellResult], None]


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave: the cells, their results in the same order, and the rows of results.csv."""

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

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

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
    started: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run every cell of a configuration and write its directory of results.

    ``output`` overrides the configuration's; ``executor`` simulates (default: one process of this machine
    at a time); ``force`` runs stored cells again; ``started`` hears the number of cells, ``progress`` of
    each as it is done. While cells run, ``results.csv`` has the rows of those that are done, and when
    it is interrupted the same call continues. Raises ConfigError, PolicyError or TraceError before
    anything runs; a cell that fails is part of the outcome.
    """
    experiment = expand(document, check=check)
    directory = output or Path(experiment.config.output or Path("results") / experiment.config.name)
    if started is not None:
        started(len(experiment.cells))
    files = ResultsDirectory(directory, experiment)
    found: dict[str, CellResult] = {}

    def ended(cell: Cell, result: CellResult) -> None:
        if not found:
            files.describe()
        found[cell.key] = result
        files.ended(found)
        if progress is not None:
            progress(cell, result)

    try:
        results, reused = run_cells(
            experiment.cells, directory, executor=executor, force=force, progress=ended
        )
    finally:
        rows = files.write(found) if found else ()
    files.merge_tables(found)
    return Outcome(directory, files.columns, rows, experiment.cells, tuple(results), reused)


def run_cells(
    cells: Sequence[Cell],
    directory: Path,
    *,
    executor: Executor | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[list[CellResult], int]:
    """Return the results of cells, in their order, and how many were stored from an earlier run.

    Equal cells are simulated once. Raises ConfigError when the directory cannot be written, or is being
    written by another run.
    """
    store = CellStore(directory)
    store.prepare()
    with store.alone():
        return _run_alone(cells, directory, store, executor or LocalProcesses(), force, progress)


def _run_alone(
    cells: Sequence[Cell],
    directory: Path,
    store: CellStore,
    executor: Executor,
    force: bool,
    progress: Progress | None,
) -> tuple[list[CellResult], int]:
    equal: dict[str, list[Cell]] = {}
    for cell in cells:
        equal.setdefault(cell.key, []).append(cell)
    found: dict[str, CellResult] = {}

    def ended(key: str, result: CellResult) -> None:
        found[key] = result
        if progress is not None:
            for cell in equal[key]:
                progress(cell, result)

    tasks = []
    for key, (cell, *_) in equal.items():
        task = CellTask(cell, directory)
        if force:
            store.forget(key)
        result = None if force else finished(task)
        if result is None:
            tasks.append(task)
        else:
            ended(key, result)
    reused = len(found)
    with closing(executor.run(tasks)) as results:
        for task, result in results:
            ended(task.cell.key, result)
    return [found[cell.key] for cell in cells], reused
