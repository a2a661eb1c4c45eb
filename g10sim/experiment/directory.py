"""The files of a directory of results: made as cells finish, so that whoever looks sees what there is."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import g10sim
from g10sim.experiment.cells import program_hash
from g10sim.experiment.execution import OK, CellResult
from g10sim.experiment.expand import Experiment
from g10sim.experiment.results import result_columns, result_rows, write_csv, write_json, write_yaml
from g10sim.experiment.store import CellStore

LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "simpy")
"""Libraries whose versions are kept with the results."""

_TIMING_COLUMNS = ("cell", "key", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "worker")
_SECONDS_BETWEEN_WRITES = 2.0


class ResultsDirectory:
    """Writes ``results.csv`` and what belongs to it.

    ``store`` has the finished cells; by default it is in the same directory. While cells run, ``results.csv``
    and ``timing.csv`` hold the rows of those that have ended, in cell order.
    """

    def __init__(self, directory: Path, experiment: Experiment, store: CellStore | None = None) -> None:
        self._directory, self._experiment = directory, experiment
        self._store = store or CellStore(directory)
        self._written = float("-inf")
        self.columns = result_columns(
            experiment.swept_keys,
            jobs=any(not cell.one_job for cell in experiment.cells),
            contiguous=any(cell.copies_tensors for cell in experiment.cells),
            flash=any(cell.system.ssd.model == "flash" for cell in experiment.cells),
        )

    def describe(self) -> None:
        """Write configuration and provenance. Raises ConfigError."""
        write_yaml(self._directory / "config.yaml", _resolved(self._experiment, self._directory))
        write_json(self._directory / "provenance.json", _provenance(self._experiment))

    def ended(self, results: Mapping[str, CellResult]) -> None:
        """Write the rows of the cells (by key) that have ended, unless that was done a moment ago."""
        if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.write(results)

    def write(self, results: Mapping[str, CellResult]) -> tuple[dict[str, Any], ...]:
        """Write the rows of the cells (by key) that have ended and return them. Raises ConfigError."""
        cells = [cell for cell in self._experiment.cells if cell.key in results]
        rows = tuple(result_rows(cells, [results[cell.key] for cell in cells]))
        timing = ({"cell": cell.index, "key": cell.key, **results[cell.key].timing} for cell in cells)
        write_csv(self._directory / "timing.csv", _TIMING_COLUMNS, timing)
        write_csv(self._directory / "results.csv", self.columns, rows)
        self._written = time.monotonic()
        return rows

    def merge_tables(self, results: Mapping[str, CellResult]) -> None:
        """Write the tables that the configuration asks for, from those of the cells."""
        cells = self._experiment.cells
        ended_well = [(cell.index, cell.key) for cell in cells if results[cell.key].status == OK]
        for table in self._experiment.config.tables:
            self._store.merge_table(table, ended_well, self._directory)


def _resolved(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """Write out the whole configuration with presets resolved, so that it can be run as it is."""
    config = experiment.config
    resolved = config.model_dump(mode="json", exclude={"workload", "policies"})
    workload = config.workload.model_dump(mode="json")
    for key in ("trace", "iterations") if config.workload.jobs else ("jobs", "sharing"):
        workload.pop(key)
    if config.workload.replicas is None:
        workload.pop("replicas")
        if "workload.replicas" not in config.sweep:
            workload.pop("gradient_exchange")
    if config.workload.variation is None:
        workload.pop("variation")
    if not config.workload.jobs:
        workload["trace"] = list(dict.fromkeys(cell.jobs[0].trace.name for cell in experiment.cells))
    policies = [policy.as_mapping() for policy in config.policies]
    head = {"name": resolved.pop("name"), "workload": workload, "system": resolved.pop("system")}
    return {**head, "policies": policies, **resolved, "output": str(directory)}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    return {name: version(name) for name in LIBRARIES}


def _provenance(experiment: Experiment) -> dict[str, Any]:
    traces = {job.trace.name: job.trace for cell in experiment.cells for job in cell.jobs}
    return {
        "g10sim": g10sim.__version__,
        "program_sha256": program_hash(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": library_versions(),
        "traces": {name: {"path": trace.path, "sha256": trace.sha256} for name, trace in traces.items()},
        "seed": experiment.config.seed,
    }
