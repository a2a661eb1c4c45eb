"""A cell of an earlier run, opened again from its directory of results."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g10sim.config.document import Document, load_document
from g10sim.config.quantities import Spec
from g10sim.config.ssd import SsdSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, G10SimError, shown
from g10sim.experiment.cells import Cell, load_input
from g10sim.experiment.execution import simulate
from g10sim.experiment.expand import expand
from g10sim.experiment.store import CellStore
from g10sim.experiment.uncertainty import RATES_OF_DRIVE, slower
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available, without_plug_ins
from g10sim.records import Location
from g10sim.results import reading
from g10sim.results.columns import OK, metric_columns, tier_columns
from g10sim.results.legends import policy_labels
from g10sim.results.swept import rows_where, swept_keys
from g10sim.sim.preparation import as_recorded
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


_TRACES_KEPT = 2
_NAMES_TRACES = ("workload", "jobs", "trace")
"""Keys of a configuration on the way to the names of traces."""


@dataclass(frozen=True)
class OpenedCell:
    """A cell that ran, with its row of results and, where the run kept them, the records of one iteration.

    ``kernels`` are those of the reported iteration, ``migrations`` all; None where not recorded. ``alike``
    are the rows of other policies on the same trace and system. ``labels`` name the policies of the results.
    """

    cell: Cell
    workload: Workload
    row: dict[str, Any]
    trace: Trace
    kernels: pd.DataFrame | None
    migrations: pd.DataFrame | None
    alike: pd.DataFrame
    labels: Mapping[str, str]

    def capacity(self, tier: str) -> int:
        """Return the bytes of a tier of memory."""
        return next(found.capacity for found in self.system.all_tiers if found.name == tier)

    @property
    def system(self) -> SystemSpec:
        """The machine it ran on."""
        return self.cell.system


def open_cell(
    directory: str | Path,
    cell: int | None = None,
    job: int = 0,
    where: Mapping[str, str] | None = None,
    *,
    trust: bool = False,
) -> OpenedCell:
    """Open a cell of a directory of results, to look at a job; without a number the only cell that ran.

    ``where`` chooses among those that have these values in these columns. Policies ``module:Class`` that the
    directory names are imported only with ``trust``: its files may come from anybody.

    Raises ConfigError or TraceError where results, configuration or trace are missing or have changed.
    """
    directory = Path(directory)
    results = reading.read_results(directory)
    row = reading.row_of_cell(rows_where(results, where or {}), cell, job)
    return _Opener(directory, results, trust=trust).open(row, job)


def open_cells(directory: str | Path, most: int, *, trust: bool = False) -> Iterator[OpenedCell]:
    """Open the first cells that ran of a directory of results, one after another, a job at a time.

    Without ``trust`` those of policies ``module:Class`` are left out. Raises as :func:`open_cell` does.
    """
    directory = Path(directory)
    results = reading.read_results(directory)
    opener = _Opener(directory, results, trust=trust)
    results.attrs = {}
    for number in results.loc[results["status"] == OK, "cell"].unique()[:most]:
        for job, row in enumerate(reading.rows_of_cell(results, int(number))):
            if trust or not names_code(row["policy"]):
                yield opener.open(row, job)


def names_code(policy: str) -> bool:
    """Return whether a policy of some results is ``module:Class``, with parameters or without."""
    return ":" in policy.partition("(")[0]


class _Opener:
    """Opens cells of a directory; what they have in common is read once."""

    def __init__(self, directory: Path, results: pd.DataFrame, *, trust: bool) -> None:
        self._directory, self._results = directory, results.copy()
        self._labels = policy_labels(results)
        self._results.attrs = {}  # pandas copies them with every part of a table
        self._load = lru_cache(maxsize=_TRACES_KEPT)(load_input)
        self._provenance = reading.read_provenance(directory)
        reading.read_checked(directory, reading.CONFIGURATION, self._provenance)
        document = load_document(directory / reading.CONFIGURATION)
        known = self._provenance["traces"]
        self._trust = trust
        with nullcontext() if trust else without_plug_ins():
            found = Document(_with_paths(document.data, known), document.source)
            self._cells = expand(found, known=CellStore(directory).known_traces).cells
        self._tables: dict[str, reading.TableFile] = {}

    def open(self, row: dict[str, Any], job: int) -> OpenedCell:
        made = self._cell(int(row["cell"]))
        of_kernels, of_moves = self._table("kernels", row), self._table("migrations", row)
        kernels = None if of_kernels is None else of_kernels.reported(row)
        moves = None if of_moves is None else of_moves.of(row)
        workload = as_recorded(made.workload(self._load), made.system, made.make_policy())
        if job >= len(workload.jobs):
            raise ConfigError(
                f"{self._directory}: found job {job} of a cell with {len(workload.jobs)} in config.yaml"
            )
        for name, table, column, limits in (
            ("kernels", kernels, "kernel", [len(one.trace.kernels) for one in workload.jobs]),
            ("migrations", moves, "tensor", [len(one.trace.tensors) for one in workload.jobs]),
        ):
            if table is not None:
                self._check_numbers(name, table, column, limits, made.system)
        trace, alike = workload.jobs[job].trace, _alike(self._results, row)
        of_others = tier_columns(row).difference(metric_columns(made.system.kinds))
        own = {name: value for name, value in row.items() if name not in of_others}
        return OpenedCell(made, workload, own, trace, kernels, moves, alike, self._labels)

    def _check_numbers(
        self, name: str, table: pd.DataFrame, column: str, limits: Sequence[int], system: SystemSpec
    ) -> None:
        """Refuse records of other jobs, kernels, tensors and places than the cell has. Raises ConfigError."""
        path = self._directory / f"{name}.parquet"
        for job, most in table.groupby("job")[column].max().to_dict().items():
            if int(str(job)) >= len(limits) or most >= limits[int(str(job))]:
                raise ConfigError.at(path, f"{column} {most} of job {job}", "those of its cell's trace")
        places = {Location.GPU.name, Location.NONE.name, *(tier.place.name for tier in system.all_tiers)}
        for side in ("source", "target") if name == "migrations" else ():
            other = set(table[side]) - places
            if other:
                allowed = ", ".join(sorted(places))
                raise ConfigError(f"{path}: {side}: found {shown(min(other))}; allowed: {allowed}")

    def _cell(self, number: int) -> Cell:
        if number >= len(self._cells):
            problem = f"{self._directory}: found no cell {number} in config.yaml"
            raise ConfigError(f"{problem}; allowed: 0 to {len(self._cells) - 1}")
        cell = self._cells[number]
        policy = cell.policy["name"]
        if not self._trust and names_code(policy):
            problem = f"cell {number}: its policy {policy} is code that would be imported and run"
            raise ConfigError(f"{problem}; allowed: --trust, for results whose origin you trust")
        hashes = {trace["path"]: trace["sha256"] for trace in self._provenance["traces"].values()}
        for job in cell.jobs:
            if hashes.get(job.trace.path, job.trace.sha256) != job.trace.sha256:
                problem = f"{job.trace.path}: has changed since the run"
                raise ConfigError(f"{problem}; allowed: the trace that it used")
        return cell

    def _table(self, name: str, row: Mapping[str, Any]) -> reading.TableFile | None:
        """Return a table; None if it has no records of the cell of a row."""
        if not (self._directory / f"{name}.parquet").is_file():
            return None
        if name not in self._tables:
            self._tables[name] = reading.TableFile(self._directory, name, self._provenance)
        return self._tables[name] if row["cell"] in self._tables[name].keys else None


def _with_paths(value: Any, known: Mapping[str, Mapping[str, str]]) -> Any:
    """Name traces by where they were, so that the directory can be looked at from anywhere."""
    if isinstance(value, list):
        return [_with_paths(one, known) for one in value]
    if isinstance(value, Mapping):
        return {key: _with_paths(one, known) if key in _NAMES_TRACES else one for key, one in value.items()}
    path = known.get(value, {}).get("path") if isinstance(value, str) else None
    return path if path is not None and Path(path).is_file() else value


def _alike(results: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of other policies with the same trace, swept values and seed."""
    import pandas as pd

    names = list(results.columns)
    keys = ["trace", *swept_keys(names), "seed", *(["job"] if "job" in names else [])]
    same = pd.Series(True, index=results.index)
    for key in keys:
        same &= results[key].eq(row[key]) | (results[key].isna() & pd.isna(row[key]))
    return pd.DataFrame(results[same & (results["cell"] != row["cell"]) & (results["status"] == OK)])


@dataclass(frozen=True)
class WhatIf:
    """A simulation of a cell with one thing changed; without numbers where that cannot run."""

    change: str
    performance: float | None
    exec_ms: float | None


def what_if(opened: OpenedCell, job: int = 0, changes: Mapping[str, Cell] | None = None) -> Iterator[WhatIf]:
    """Yield what a cell gave, and what it gives with one thing changed at a time, simulated again.

    ``changes`` are changed cells by their names, by default those of :func:`changes_of`. The numbers are
    those of one of the cell's jobs.
    """
    yield WhatIf("nothing changed", float(opened.row["performance"]), float(opened.row["exec_ms"]))
    for change, changed in (changes_of(opened.cell) if changes is None else changes).items():
        yield _simulated(change, changed, job)


def changes_of(cell: Cell) -> dict[str, Cell]:
    """Return a cell with twice the memory and bandwidth of each kind, and with other policies."""
    gpu, host, found = cell.system.gpu, cell.system.host, {}
    found["twice the GPU memory"] = _with(cell, "gpu", gpu.model_copy(update={"memory": 2 * gpu.memory}))
    found["twice the host memory"] = _with(cell, "host", host.model_copy(update={"memory": 2 * host.memory}))
    found["twice the PCIe bandwidth"] = _with(cell, "pcie", cell.system.pcie.times(2))
    if isinstance(cell.system.ssd, SsdSpec):  # flash that is modelled in detail has no one bandwidth
        faster = slower(cell.system.ssd, Fraction(1, 2), RATES_OF_DRIVE)
        found["twice the SSD bandwidth"] = _with(cell, "ssd", faster)
    for name, policy in available().items():
        by_name = name != cell.policy["name"] and not needs_parameters(policy)
        if by_name and not policy().requirements.unlimited_memory:  # those are yardsticks
            other = replace(cell, policy={"name": name}, reference_plan=None)
            found[f"policy {policy.legend().label}"] = other
    return found


def seconds_of(directory: Path, cell: int) -> float:
    """Return the seconds of a processor that a cell took, records included.

    Raises ConfigError where no file says so.
    """
    timing = reading.read_csv(directory, reading.TIMING, reading.read_provenance(directory))
    return float(timing.set_index("cell")["cpu_seconds"].get(cell, 0.0))


def _with(cell: Cell, part: str, spec: Spec) -> Cell:
    """Return a cell on a machine of which one part is another."""
    return replace(cell, system=cell.system.model_copy(update={part: spec}))


def needs_parameters(policy: type[Policy]) -> bool:
    """Return True if a policy cannot be made by its name alone."""
    parameters = inspect.signature(policy).parameters.values()
    return any(parameter.default is parameter.empty for parameter in parameters)


def _simulated(change: str, cell: Cell, job: int) -> WhatIf:
    try:
        _, rows = simulate(cell.workload(), cell.system, cell.make_policy(), cell.behaviour)
    except G10SimError:
        return WhatIf(change, None, None)
    return WhatIf(change, float(rows[job]["performance"]), float(rows[job]["exec_ms"]))
