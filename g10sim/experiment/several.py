"""Several experiments in one go: what they have in common is simulated once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from g10sim.config.document import Document
from g10sim.experiment.cells import Cell
from g10sim.experiment.directory import ResultsDirectory
from g10sim.experiment.execution import CellResult
from g10sim.experiment.expand import Experiment, expand
from g10sim.experiment.run import Outcome, Progress, run_cells
from g10sim.experiment.store import CellStore
from g10sim.experiment.workers import Executor


def run_experiments(
    documents: Mapping[str, Document],
    directory: Path,
    *,
    executor: Executor | None = None,
    force: bool = False,
    started: Callable[[int], None] | None = None,
    progress: Progress | None = None,
    ended: Callable[[str, Outcome], None] | None = None,
) -> dict[str, Outcome]:
    """Run configurations by name; the results of each go to ``DIRECTORY/NAME`` as soon as it is complete.

    Finished cells lie in ``DIRECTORY/cells`` for all of them: cells that are equal are simulated once, and an
    interrupted call is continued by the next one. ``started`` hears how many different cells there are,
    ``progress`` of each as it is done, ``ended`` of each experiment. ``executor`` and ``force`` are those of
    :func:`g10sim.experiment.run.run_experiment`. Raises ConfigError, PolicyError or TraceError before
    anything runs; cells that fail are part of the outcomes.
    """
    store = CellStore(directory)
    parts = {name: _Part(directory / name, expand(document), store) for name, document in documents.items()}
    cells = _different(part.experiment for part in parts.values())
    if started is not None:
        started(len(cells))
    outcomes: dict[str, Outcome] = {}

    def done(cell: Cell, result: CellResult) -> None:
        if progress is not None:
            progress(cell, result)
        for name, part in parts.items():
            if part.is_complete_with(cell.key, result):
                outcomes[name] = part.finish()
                if ended is not None:
                    ended(name, outcomes[name])

    try:
        run_cells(cells, directory, executor=executor, force=force, progress=done)
    finally:
        for name in parts.keys() - outcomes.keys():
            parts[name].write()
    return {name: outcomes[name] for name in documents}


Rows: TypeAlias = tuple[dict[str, Any], ...]


def _different(experiments: Iterable[Experiment]) -> list[Cell]:
    """List the cells of all experiments, each of several equal ones once."""
    found: dict[str, Cell] = {}
    for experiment in experiments:
        for cell in experiment.cells:
            found.setdefault(cell.key, cell)
    return list(found.values())


class _Part:
    """One of the experiments, and which of its results are there."""

    def __init__(self, directory: Path, experiment: Experiment, store: CellStore) -> None:
        self.experiment = experiment
        self._directory = directory
        self._files = ResultsDirectory(directory, experiment, store)
        self._missing = {cell.key for cell in experiment.cells}
        self._found: dict[str, CellResult] = {}

    def is_complete_with(self, key: str, result: CellResult) -> bool:
        """Take a result, if it is of a cell of this experiment; return whether it was the last one."""
        if key not in self._missing:
            return False
        self._missing.remove(key)
        self._found[key] = result
        return not self._missing

    def write(self) -> Rows:
        """Write the rows of the cells that have ended, where there are any, and return them."""
        if not self._found:
            return ()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._files.describe()
        return self._files.write(self._found)

    def finish(self) -> Outcome:
        """Write everything and return the outcome."""
        rows, cells = self.write(), self.experiment.cells
        self._files.merge_tables(self._found)
        results = tuple(self._found[cell.key] for cell in cells)
        return Outcome(self._directory, self._files.columns, rows, cells, results, reused=0)
