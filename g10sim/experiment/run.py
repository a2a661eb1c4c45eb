"""Running an experiment: what is stored is reused, the rest goes to workers, results come from both."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

import g10sim
from g10sim.config.document import Document
from g10sim.experiment.cells import Cell, program_hash
from g10sim.experiment.execution import FAILED, OK, CellResult, CellTask, run_cell
from g10sim.experiment.expand import Experiment, expand
from g10sim.experiment.results import result_columns, result_rows, write_csv, write_json, write_yaml
from g10sim.experiment.store import CellStore
from g10sim.experiment.workers import Crash, run_in_processes
from g10sim.stats.seeds import over_seeds

Progress = Callable[[Cell, CellResult], None]

_LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "simpy")
_TIMING_COLUMNS = ("cell", "key", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "worker")


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
        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    @property
    def over_seeds(self) -> pd.DataFrame:
        """Mean and 95% confidence interval over seeds of each cell: see :mod:`g10sim.stats.seeds`."""
        return over_seeds(self.table)


def run_experiment(
    document: Document,
    *,
    output: Path | None = None,
    workers: int = 1,
    force: bool = False,
    check: bool = False,
    started: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run every cell of a configuration and write its directory of results.

    ``output`` overrides the configuration's; ``force`` runs stored cells again; ``started`` hears the
    number of cells, ``progress`` of each as it is done. Raises ConfigError, PolicyError or TraceError
    before anything runs; a cell that fails is part of the outcome.
    """
    experiment = expand(document, check=check)
    directory = output or Path(experiment.config.output or Path("results") / experiment.config.name)
    if started is not None:
        started(len(experiment.cells))
    results, reused = run_cells(experiment.cells, directory, workers=workers, force=force, progress=progress)
    jobs = bool(experiment.config.workload.jobs)
    columns = result_columns(experiment.swept_keys, jobs=jobs)
    rows = tuple(result_rows(experiment.cells, results))
    outcome = Outcome(directory, columns, rows, experiment.cells, tuple(results), reused)
    _write(outcome, experiment)
    return outcome


def run_cells(
    cells: Sequence[Cell],
    directory: Path,
    *,
    workers: int = 1,
    force: bool = False,
    progress: Progress | None = None,
) -> tuple[list[CellResult], int]:
    """Return the results of cells, in their order, and how many were stored from an earlier run.

    Equal cells are simulated once. Raises ConfigError when the directory cannot be written.
    """
    store = CellStore(directory)
    store.prepare()
    keys = [cell.key for cell in cells]
    found: dict[str, CellResult] = {}
    first: dict[str, Cell] = {}
    for key, cell in zip(keys, cells, strict=True):
        first.setdefault(key, cell)
    for key, cell in first.items():
        outcome = None if force else store.load(key, cell.tables)
        if outcome is not None:
            outcome["rows"] = tuple(outcome["rows"])
            found[key] = CellResult(**outcome)
            _tell(progress, cell, found[key])
    reused = len(found)
    tasks = [CellTask(cell, directory) for key, cell in first.items() if key not in found]
    for task, result in run_in_processes(run_cell, tasks, workers):
        ended = CellResult(FAILED, result.reason, (), {}) if isinstance(result, Crash) else result
        found[task.cell.key] = ended
        _tell(progress, task.cell, ended)
    return [found[key] for key in keys], reused


def _tell(progress: Progress | None, cell: Cell, result: CellResult) -> None:
    if progress is not None:
        progress(cell, result)


def _write(outcome: Outcome, experiment: Experiment) -> None:
    directory, config = outcome.directory, experiment.config
    store = CellStore(directory)
    finished = [
        (cell.index, cell.key)
        for cell, result in zip(outcome.cells, outcome.results, strict=True)
        if result.status == OK
    ]
    for table in config.tables:
        store.merge_table(table, finished)
    write_yaml(directory / "config.yaml", _resolved(experiment, directory))
    write_json(directory / "provenance.json", _provenance(outcome.cells, config.seed))
    timing = (
        {"cell": cell.index, "key": cell.key, **result.timing}
        for cell, result in zip(outcome.cells, outcome.results, strict=True)
    )
    write_csv(directory / "timing.csv", _TIMING_COLUMNS, timing)
    write_csv(directory / "results.csv", outcome.columns, outcome.rows)


def _resolved(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """Write out the whole configuration with presets resolved, so that it can be run as it is."""
    config = experiment.config
    resolved = config.model_dump(mode="json", exclude={"workload", "policies"})
    workload = config.workload.model_dump(mode="json")
    for key in ("trace", "iterations") if config.workload.jobs else ("jobs",):
        workload.pop(key)
    if config.workload.variation is None:
        workload.pop("variation")
    if not config.workload.jobs:
        workload["trace"] = list(dict.fromkeys(cell.jobs[0].trace.name for cell in experiment.cells))
    policies = [policy.as_mapping() for policy in config.policies]
    head = {"name": resolved.pop("name"), "workload": workload, "system": resolved.pop("system")}
    return {**head, "policies": policies, **resolved, "output": str(directory)}


def _provenance(cells: Iterable[Cell], seed: int | tuple[int, ...]) -> dict[str, Any]:
    traces = {job.trace.name: job.trace for cell in cells for job in cell.jobs}
    return {
        "g10sim": g10sim.__version__,
        "program_sha256": program_hash(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "traces": {name: {"path": trace.path, "sha256": trace.sha256} for name, trace in traces.items()},
        "seed": seed,
    }
