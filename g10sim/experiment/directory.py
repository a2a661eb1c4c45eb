"""The files of a directory of results, kept up to date while cells run."""

from __future__ import annotations

import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import g10sim
from g10sim.experiment.execution import OK, CellResult
from g10sim.experiment.expand import Experiment
from g10sim.experiment.program import program_hash
from g10sim.experiment.results import result_columns, result_rows, write_csv, write_json, write_yaml
from g10sim.experiment.store import CellStore
from g10sim.stats.legends import ATTRIBUTE, legends

LIBRARIES = ("numpy", "pandas", "pyarrow", "pydantic", "pyyaml", "simpy")
"""Libraries whose versions are kept with the results."""

_TIMING_COLUMNS = ("cell", "key", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "worker")
_SECONDS_BETWEEN_WRITES = 2.0


class ResultsDirectory:
    """Writes ``results.csv`` and what belongs to it.

    ``store`` has the finished cells; by default it is in the same directory. ``found`` holds the results of
    the cells that have ended, by key. While cells run, ``results.csv`` and ``timing.csv`` hold the rows of
    these, in cell order.
    """

    def __init__(self, directory: Path, experiment: Experiment, store: CellStore | None = None) -> None:
        self.directory, self.experiment = directory, experiment
        self.found: dict[str, CellResult] = {}
        self._store = store or CellStore(directory)
        self._written = float("-inf")
        self.columns = result_columns(experiment)

    def add(self, key: str, result: CellResult) -> None:
        """Take the result of a cell; write the rows at most every two seconds. Raises ConfigError."""
        if not self.found:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_yaml(self.directory / "config.yaml", _resolved(self.experiment, self.directory))
            write_json(self.directory / "provenance.json", _provenance(self.experiment))
        self.found[key] = result
        if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.write()

    def write(self) -> tuple[dict[str, Any], ...]:
        """Write the rows of the cells that have ended, if any, and return them. Raises ConfigError."""
        if not self.found:
            return ()
        cells = [cell for cell in self.experiment.cells if cell.key in self.found]
        rows = tuple(result_rows(cells, [self.found[cell.key] for cell in cells]))
        timing = ({"cell": cell.index, "key": cell.key, **self.found[cell.key].timing} for cell in cells)
        write_csv(self.directory / "timing.csv", _TIMING_COLUMNS, timing)
        write_csv(self.directory / "results.csv", self.columns, rows)
        self._written = time.monotonic()
        return rows

    def merge_tables(self) -> None:
        """Write the tables that the configuration asks for, from those of the cells."""
        cells = self.experiment.cells
        ended_well = [(cell.index, cell.key) for cell in cells if self.found[cell.key].status == OK]
        for table in self.experiment.config.tables:
            self._store.merge_table(table, ended_well, self.directory)


def _resolved(experiment: Experiment, directory: Path) -> dict[str, Any]:
    """Write out the whole configuration with presets resolved, so that it can be run as it is."""
    config, workload = experiment.config, experiment.config.workload
    hidden = {"trace", "iterations"} if workload.jobs else {"jobs", "sharing"}
    if workload.replicas is None:
        hidden |= {"replicas"}
        hidden |= set() if "workload.replicas" in config.sweep else {"gradient_exchange"}
    if workload.variation is None:
        hidden |= {"variation"}
    written = workload.model_dump(mode="json", exclude=hidden)
    if not workload.jobs:
        written["trace"] = list(dict.fromkeys(cell.jobs[0].trace.name for cell in experiment.cells))
    resolved = config.model_dump(mode="json", exclude={"workload", "policies"})
    policies = [policy.as_mapping() for policy in config.policies]
    head = {"name": resolved.pop("name"), "workload": written, "system": resolved.pop("system")}
    return {**head, "policies": policies, **resolved, "output": str(directory)}


def library_versions() -> dict[str, str]:
    """Versions of the libraries that results depend on."""
    return {name: version(name) for name in LIBRARIES}


def _provenance(experiment: Experiment) -> dict[str, Any]:
    traces = {job.trace.name: job.trace for cell in experiment.cells for job in cell.jobs}
    return {
        "g10sim": g10sim.__version__,
        "program_sha256": program_hash(*sorted({cell.policy["name"] for cell in experiment.cells})),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": library_versions(),
        "traces": {name: {"path": trace.path, "sha256": trace.sha256} for name, trace in traces.items()},
        ATTRIBUTE: legends(cell.policy["name"] for cell in experiment.cells),
        "seed": experiment.config.seed,
    }
