"""The files of a directory of results, kept up to date while cells run, and their columns and rows."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import g10sim
from g10sim.errors import ConfigError
from g10sim.experiment.cells import Cell, CellResult
from g10sim.experiment.expand import Experiment
from g10sim.experiment.program import program, version_of
from g10sim.experiment.store import CellStore, remove_pictures, remove_tables
from g10sim.experiment.uncertainty import CASES_COLUMNS, all_cells, case_rows, with_ranges
from g10sim.files import data_hash, sealed, write_csv, write_json, write_yaml, writing
from g10sim.results.columns import FURTHER, JOBS, OK, metric_columns
from g10sim.results.legends import ATTRIBUTE, legends
from g10sim.results.reading import CONFIGURATION, PICTURES, PROVENANCE, REPORT, RESULTS, TIMED_FOR, TIMING
from g10sim.results.seeds import CASES, range_columns, ranged_names
from g10sim.results.swept import as_number

_BEFORE_SWEPT = ("cell", "name", "trace", "model", "batch_size", "policy")
_AFTER_SWEPT = ("seed", "status", "message")
LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "simpy")
"""Libraries whose versions are kept with the results."""

_PROGRAM = ("g10sim", "python", "program_sha256", "libraries", "plug_in", "files")
_TIMING_COLUMNS = (
    *("cell", "key", "wall_seconds", "cpu_seconds", "policy_seconds", "planning_cpu_seconds"),
    *("peak_memory_bytes", "worker"),
)
_SECONDS_BETWEEN_WRITES, _TIMES_AS_LONG = 2.0, 20
"""Least time between writes of all rows, and how many times as long as the last one took."""


def result_columns(experiment: Experiment) -> tuple[str, ...]:
    """Columns of results.csv; a swept key that is a column anyway is not repeated.

    A swept quantity has two: as it was written, and as a number.

    Groups of further metrics are there if any cell has them.
    """
    cells = experiment.cells
    kinds = dict(item for cell in cells for item in cell.system.kinds.items())
    metrics = [*metric_columns(kinds)]
    for group in FURTHER.values():
        if any(map(group.applies, cells)):
            metrics += group.names
    if experiment.config.uncertainty is not None:
        metrics += range_columns(metrics)
    fixed = (*_BEFORE_SWEPT, *_AFTER_SWEPT, *metrics)
    swept = [key for key in experiment.config.sweep if key not in fixed]
    numbers = [column for cell in cells for column in _numbers(cell.swept)]
    jobs = JOBS.names if any(map(JOBS.applies, cells)) else ()
    return (*_BEFORE_SWEPT, *swept, *_AFTER_SWEPT, *dict.fromkeys(numbers), *metrics, *jobs)


def _numbers(swept: Mapping[str, str]) -> dict[str, int | float]:
    """Return swept quantities as numbers, by names that tell the unit."""
    return dict(filter(None, (as_number(key, text) for key, text in swept.items())))


def result_rows(cells: Iterable[Cell], results: Iterable[CellResult]) -> Iterator[dict[str, Any]]:
    """Rows of results.csv in cell order, one per job; a cell without numbers has only the first columns."""
    for cell, result in zip(cells, results, strict=True):
        for number, job in enumerate(cell.jobs):
            metrics = result.rows[number] if result.rows else {}
            row: dict[str, Any] = {
                **cell.swept,
                **_numbers(cell.swept),
                "cell": cell.index,
                "name": cell.name,
                "trace": job.trace.name,
                "model": job.trace.model,
                "batch_size": job.trace.batch_size,
                "policy": cell.label,
                "seed": cell.seed,
                "status": result.status,
                "message": result.message,
                **metrics,
            }
            if not cell.one_job:
                row |= {"job": number, "gpu": job.gpu, "priority": job.priority}
            yield row


class ResultsDirectory:
    """Writes ``results.csv`` and what belongs to it.

    ``store`` has the finished cells. ``found`` holds the results of the cells that have ended, by key of the
    cell, ``keys`` those of all. While cells run, ``results.csv`` and ``timing.csv`` hold the rows of these,
    in cell order. ``provenance.json`` holds the checksums of all files, so that a reader notices one that
    does not belong to the others.
    """

    def __init__(self, directory: Path, experiment: Experiment, store: CellStore) -> None:
        self.directory, self.experiment, self._store = directory, experiment, store
        self.found: dict[str, CellResult] = {}
        self.keys = {cell.key for cell in all_cells(experiment.cells)}
        self._due = float("-inf")
        self._hashes: dict[str, str] = {}
        self.columns = result_columns(experiment)

    def add(self, key: str, result: CellResult) -> None:
        """Take the result of a cell; write the rows now and then. Raises ConfigError."""
        if not self.found:
            self._begin()
        self.found[key] = result
        if time.monotonic() >= self._due:
            self.write()

    def _begin(self) -> None:
        """Remove what an earlier run left, and write what does not depend on results."""
        with writing(self.directory, ConfigError):
            self.directory.mkdir(parents=True, exist_ok=True)
            remove_tables(self.directory)
            (self.directory / CASES).unlink(missing_ok=True)
            keys = {cell.key for cell in self.experiment.cells}
            remove_pictures(self._pictures(), keys | set(map(self._store.result_key, keys)))
        resolved = _resolved(self.experiment, self.directory)
        self._hashes = {CONFIGURATION: write_yaml(self.directory / CONFIGURATION, resolved)}

    def _pictures(self) -> Iterator[Path]:
        yield from (self.directory / PICTURES).glob("*")
        yield from self.directory.glob(REPORT)
        if self._store.directory != self.directory:  # several experiments have their pictures in one place
            yield from (self._store.directory / PICTURES).glob(f"{self.directory.name}.*")

    def write(self) -> None:
        """Write the rows of the cells that have ended, if any. Raises ConfigError."""
        if not self.found:
            return
        begun = time.monotonic()
        cells = [cell for cell in self.experiment.cells if cell.key in self.found]
        results = [self.result(cell) for cell in cells]
        pairs = zip(cells, results, strict=True)
        timing = ({"cell": cell.index, "key": result.key, **result.timing} for cell, result in pairs)
        self._hashes[TIMING] = write_csv(self.directory / TIMING, _TIMING_COLUMNS, timing)
        self._hashes[RESULTS] = write_csv(self.directory / RESULTS, self.columns, result_rows(cells, results))
        self._write_cases(cells)
        self._describe()
        ended = time.monotonic()
        self._due = ended + max(_SECONDS_BETWEEN_WRITES, _TIMES_AS_LONG * (ended - begun))

    def result(self, cell: Cell) -> CellResult:
        """Return the result of a cell that has ended, with the ranges of its cases."""
        return with_ranges(cell, self.found)

    @property
    def is_complete(self) -> bool:
        """Return whether all cells have ended, and what they are run as besides."""
        return len(self.found) == len(self.keys)

    def _write_cases(self, cells: Iterable[Cell]) -> None:
        spec = self.experiment.config.uncertainty
        if spec is None:
            return
        names = ("exec_ms", "performance", *range_columns(self.columns))
        own = ranged_names(name for name in self.columns if name not in names)
        columns = (*CASES_COLUMNS, *own, *names[:2])
        rows = case_rows(cells, self.found, spec)
        self._hashes[CASES] = write_csv(self.directory / CASES, columns, rows)

    def merge_tables(self) -> None:
        """Write the tables that the configuration asks for, from those of the cells. Raises ConfigError."""
        results = ((cell.index, self.found[cell.key]) for cell in self.experiment.cells)
        origins = {number: result.origin for number, result in results if result.status == OK}
        for table in self.experiment.config.tables:
            self._hashes |= self._store.merge_table(table, origins, self.directory)
        self._describe()

    def _describe(self) -> None:
        cells = [(cell, self.found[cell.key]) for cell in self.experiment.cells if cell.key in self.found]
        origins = _origins(cells, self.experiment.timed_for)
        described = {**_about(self.experiment), **origins, "files": self._hashes}
        write_json(self.directory / PROVENANCE, sealed(described))


def _resolved(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """Write out the whole configuration with presets resolved, so that it can be run as it is."""
    config, workload = experiment.config, experiment.config.workload
    hidden = {"trace", "iterations"} if workload.jobs else {"jobs", "sharing"}
    if workload.replicas is None and "workload.replicas" not in config.sweep:
        hidden |= {"gradient_exchange"}
    written = workload.model_dump(mode="json", exclude=hidden, exclude_none=True)
    if not workload.jobs:
        written["trace"] = list(dict.fromkeys(cell.jobs[0].trace.name for cell in experiment.cells))
    resolved = config.model_dump(mode="json", exclude={"workload", "policies", "system"})
    policies = [policy.as_mapping() for policy in config.policies]
    head = {"name": resolved.pop("name"), "workload": written, "system": experiment.system}
    return {**head, "policies": policies, **resolved, "output": str(directory), "resolved": True}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    return {name: version_of(name) for name in LIBRARIES}


def _about(experiment: Experiment) -> dict[str, Any]:
    traces = {job.trace.name: job.trace for cell in experiment.cells for job in cell.jobs}
    return {
        "g10sim": g10sim.__version__,
        "program_sha256": program().sha256,
        "python": platform.python_version(),
        "platform": "-".join((platform.system(), platform.release(), platform.machine())),
        "libraries": library_versions(),
        "traces": {name: {"path": trace.path, "sha256": trace.sha256} for name, trace in traces.items()},
        ATTRIBUTE: legends(cell.policy["name"] for cell in experiment.cells),
        "seed": experiment.config.seed,
    }


def _origins(
    results: Iterable[tuple[Cell, CellResult]], timed_for: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    """Say of each cell that has a result what computed it: its key, and an entry of a list of programs.

    Where its kernel times are for another GPU than its system's, it says for which.
    """
    programs: dict[str, tuple[int, dict[str, Any]]] = {}
    cells = []
    for cell, result in results:
        if not result.key:
            continue
        program = {name: result.origin[name] for name in _PROGRAM}
        number, _ = programs.setdefault(data_hash(program), (len(programs), program))
        cells.append({"cell": cell.index, "key": result.key, "computed_by": number})
        pairs = ((job.trace.name, cell.system.gpu.name) for job in cell.jobs)
        if times := sorted({timed_for[pair] for pair in pairs if pair in timed_for}):
            cells[-1][TIMED_FOR] = times
    return {"computed_by": [one for _, one in programs.values()], "cells": cells}
