"""Result tables of the published G10 simulator, simulated again and compared."""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy as np

from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system, load_variation
from g10sim.config.problems import among
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.experiment.cells import Cell, CellJob, CellResult, TraceInput
from g10sim.experiment.run import Running, ignore, run_cells
from g10sim.files import reading, write_csv
from g10sim.grouping import grouped
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available
from g10sim.results.columns import FAILED, OK, UNSUPPORTED, Row
from g10sim.results.seeds import interval
from g10sim.trace.format import save_trace, trace_hash
from g10sim.units import cycles_to_ms

COLUMNS = (
    *("figure", "metric", "model", "batch", "policy", "host_gb", "ssd_gbps", "pcie_gbps", "variation"),
    "value",
)
TABLE = "published.csv"
TRACES = "traces"
# The published simulator writes to the SSD as fast as it reads; the paper has 3.0 GB/s.
PUBLISHED_SYSTEM: Mapping[str, Any] = {"preset": "a100-40g-g10-paper", "ssd": {"write_bandwidth": "3.2 GB/s"}}
OWN, REFERENCE, NO_PLAN = "own", "reference", ""
SKIPPED = "skipped"
_Imported: TypeAlias = Callable[[str, str], TraceInput]
"""Imports a trace by its model and batch size, each once."""
VARIATION_SEEDS = (0, 1, 2, 3, 4)
"""Seeds of rows whose kernel times vary; their mean is compared."""


@dataclass(frozen=True)
class PublishedRow:
    """One row of ``published.csv``: its texts as they are, and the numbers among them."""

    texts: Mapping[str, str]
    batch: int
    variation: float
    value: float

    @property
    def trace(self) -> tuple[str, int]:
        """Model and batch size."""
        return self.texts["model"], self.batch

    def system(self) -> SystemSpec:
        """Machine of the row: host memory in GiB, SSD and PCIe in 1e9 bytes/s. Raises ConfigError."""
        ssd = f"{self.texts['ssd_gbps']} GB/s"
        return load_system(
            {
                **PUBLISHED_SYSTEM,
                "host": {"memory": f"{self.texts['host_gb']} GiB"},
                "ssd": {"read_bandwidth": ssd, "write_bandwidth": ssd},
                "pcie": {"bandwidth": f"{self.texts['pcie_gbps']} GB/s"},
            }
        )

    def simulated(self, row: Row, system: SystemSpec) -> float:
        """Return the row's metric in the unit of the table. Raises ConfigError for an unknown metric.

        Times in ms come from cycles of the same name, pages from bytes.
        """
        metric = self.texts["metric"]
        stem, _, unit = metric.rpartition("_")
        numbers = {column: value for column, value in row.items() if not isinstance(value, str)}
        if metric == "performance_vs_ideal":
            return numbers["performance"]
        if unit == "cycles" and metric in numbers:
            return numbers[metric]
        if unit == "ms" and f"{stem}_cycles" in numbers:
            return cycles_to_ms(int(numbers[f"{stem}_cycles"]), system.gpu.clock)
        if unit == "pages" and f"{stem}_bytes" in numbers:
            return numbers[f"{stem}_bytes"] / system.gpu.page_size
        raise ConfigError.at(TABLE, f"metric '{metric}'", "..._cycles, ..._ms, ..._pages of results")

    def relative_error(self, simulated: float) -> float | None:
        """Return simulated/value - 1; None where both are unsupported, infinite where only one is."""
        if math.isinf(self.value) or math.isinf(simulated):
            return None if math.isinf(self.value) and math.isinf(simulated) else math.inf
        if self.value == 0:
            return 0.0 if simulated == 0 else math.inf
        return simulated / self.value - 1


def read_published(
    reference: Path, *, figures: Iterable[str] = (), models: Iterable[str] = (), policies: Iterable[str] = ()
) -> list[PublishedRow]:
    """Read the rows of ``REFERENCE/published.csv`` whose trace exists, narrowed to the given names.

    Raises ConfigError for a missing or damaged table and for a name that the table does not have.
    """
    path = reference / TABLE
    allowed = f"a directory with {TABLE} and {TRACES}/"
    with reading(path, ConfigError, allowed), path.open(encoding="utf-8", newline="") as file:
        rows = _rows(path, csv.DictReader(file))
    for column, wanted in (("figure", figures), ("model", models), ("policy", policies)):
        names = [row.texts[column] for row in rows]
        rows = among(rows, names, sorted(wanted), f"{path}: found no {column}")
    there = {row.trace: trace_directory(reference, row).is_dir() for row in rows}
    return [row for row in rows if there[row.trace]]


def trace_directory(reference: Path, row: PublishedRow) -> Path:
    """Directory of a row's trace and of the plans next to it."""
    return reference / TRACES / row.texts["model"] / row.texts["batch"]


def reference_plan(reference: Path, row: PublishedRow, policy: type[Policy]) -> Path | None:
    """Path of the published plan of a policy alongside a row's trace, if there is one."""
    path = trace_directory(reference, row) / (policy.reference_plan or "")
    return path if path.is_file() else None


def _rows(path: Path, reader: csv.DictReader[str]) -> list[PublishedRow]:
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{path}: line 1: found no column '{missing[0]}'; allowed: {', '.join(COLUMNS)}")
    found = []
    for texts in reader:
        try:
            row = {column: texts[column] for column in COLUMNS}
            numbers = int(row["batch"]), float(row["variation"]), float(row["value"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: line {reader.line_num}: {error}; allowed: numbers") from error
        found.append(PublishedRow(row, *numbers))
    return found


@dataclass(frozen=True)
class Comparison:
    """A published row, how it was simulated (``plan``), and what came out.

    ``simulated`` is infinite where unsupported, None where there is nothing to compare.
    """

    row: PublishedRow
    plan: str
    status: str
    message: str = ""
    simulated: float | None = None

    @property
    def relative_error(self) -> float | None:
        """Return simulated/value - 1; None where there is nothing to compare."""
        return None if self.simulated is None else self.row.relative_error(self.simulated)

    def as_row(self) -> dict[str, object]:
        """Columns of validation.csv."""
        return {
            **self.row.texts,
            "plan": self.plan,
            "simulated": self.simulated,
            "relative_error": self.relative_error,
            "status": f"{self.status}: {self.message}" if self.message else self.status,
        }


@dataclass(frozen=True)
class Agreement:
    """Agreement of one policy's rows of one figure; errors are absolute values of relative errors.

    ``cells`` counts the rows compared, ``mismatched`` those that only one side supports, and
    ``left_out`` those that failed or were skipped. Errors are None where no row has one.
    """

    figure: str
    policy: str
    plan: str
    cells: int
    exact: int
    median: float | None
    p95: float | None
    maximum: float | None
    mismatched: int
    left_out: int


def validate(
    reference: Path,
    output: Path,
    *,
    figures: Iterable[str] = (),
    models: Iterable[str] = (),
    policies: Iterable[str] = (),
    **running: Unpack[Running],
) -> list[Comparison]:
    """Simulate every published row whose trace exists and write ``OUTPUT/validation.csv``.

    Rows that describe the same simulation share it, and finished ones are reused. Of rows with varied kernel
    times the mean over VARIATION_SEEDS is compared. Raises ConfigError,
    TraceError or PlanError for bad input, and ConfigError if no row can be simulated.
    """
    rows = read_published(reference, figures=figures, models=models, policies=policies)
    with tempfile.TemporaryDirectory(prefix="g10sim-") as scratch:
        wanted = list(_plan(reference, rows, cache(partial(_imported, reference, Path(scratch)))))
        cells = [cell for _, some in wanted for cell in some]
        if not cells:
            allowed = f"rows with traces in {TRACES}/ and known policies"
            raise ConfigError.at(reference / TABLE, "no row that can be simulated", allowed)
        running.get("started", ignore)(len({cell.key for cell in cells}))
        results, _ = run_cells(cells, output, **running)
    outcomes = iter(results)
    compared = [_compared(one, [next(outcomes) for _ in some]) for one, some in wanted]
    columns = (*COLUMNS, "plan", "simulated", "relative_error", "status")
    write_csv(output / "validation.csv", columns, (one.as_row() for one in compared))
    return compared


def agreements(comparisons: Sequence[Comparison]) -> list[Agreement]:
    """Summarize comparisons per figure, policy and plan, in order of appearance."""
    texts = ((one.row.texts["figure"], one.row.texts["policy"], one.plan) for one in comparisons)
    groups = grouped(zip(texts, comparisons, strict=True))
    return [_agreement(*key, group) for key, group in groups.items()]


def _agreement(figure: str, policy: str, plan: str, group: Sequence[Comparison]) -> Agreement:
    compared = [one for one in group if one.status in (OK, UNSUPPORTED)]
    same_verdict = [one for one in compared if math.isinf(one.row.value) == (one.status == UNSUPPORTED)]
    errors = [abs(one.relative_error or 0.0) for one in same_verdict]
    finite = [error for error in errors if math.isfinite(error)]
    return Agreement(
        figure,
        policy,
        plan,
        cells=len(compared),
        exact=errors.count(0.0),
        median=float(np.median(finite)) if finite else None,
        p95=float(np.percentile(finite, 95)) if finite else None,
        maximum=max(errors, default=None),
        mismatched=len(compared) - len(same_verdict),
        left_out=len(group) - len(compared),
    )


def _imported(reference: Path, scratch: Path, model: str, batch: str) -> TraceInput:
    """Import a trace and keep it in our format where workers find it. Raises TraceError."""
    trace = import_gpg(reference / TRACES / model / batch, model, int(batch))
    sha256 = trace_hash(trace)
    path = scratch / f"{sha256}.g10t"
    save_trace(trace, path)
    return TraceInput(f"{model}/{int(batch)}", str(path), sha256, model, int(batch))


def _plan(
    reference: Path, rows: Sequence[PublishedRow], imported: _Imported
) -> Iterator[tuple[Comparison, tuple[Cell, ...]]]:
    """Yield the comparisons to make, skipped so far, each with its cells (one per seed)."""
    known, machine = available(), _numbers(load_system(PUBLISHED_SYSTEM))
    for row in rows:
        name = row.texts["policy"]
        policy = known.get(name)
        if policy is None:
            yield Comparison(row, NO_PLAN, SKIPPED, f"there is no policy '{name}'"), ()
            continue
        system, guide = row.system(), reference_plan(reference, row, policy)
        if guide is not None and (_fits_any_system(policy) or _numbers(system) == machine):
            yield Comparison(row, REFERENCE, SKIPPED), _cells(row, imported, system, policy, guide)
        plan = NO_PLAN if guide is None else OWN
        yield Comparison(row, plan, SKIPPED), _cells(row, imported, system, policy, None)


def _fits_any_system(policy: type[Policy]) -> bool:
    """Return True if the published plan only orders the moves of the policy, without times."""
    default = Policy.with_reference_plan.__func__  # type: ignore[attr-defined]
    return policy.with_reference_plan.__func__ is not default  # type: ignore[attr-defined]


def _numbers(system: SystemSpec) -> dict[str, object]:
    return system.model_dump(exclude={"name", "description", "sources"})


def _cells(
    row: PublishedRow, imported: _Imported, system: SystemSpec, policy: type[Policy], guide: Path | None
) -> tuple[Cell, ...]:
    cell = Cell(
        index=0,
        name="validation",
        label=row.texts["policy"],
        jobs=(CellJob(imported(row.texts["model"], row.texts["batch"])),),
        system=system,
        behaviour=GPG,
        policy={"name": policy.name},
        reference_plan=None if guide is None else str(guide),
    )
    if not row.variation:
        return (cell,)
    variation = load_variation({"distribution": "uniform", "magnitude": row.variation})
    return tuple(replace(cell, variation=variation, seed=seed) for seed in VARIATION_SEEDS)


def _compared(one: Comparison, results: Sequence[CellResult]) -> Comparison:
    if not results:
        return one
    for status, simulated in ((FAILED, None), (UNSUPPORTED, math.inf)):
        for result in results:
            if result.status == status:
                return replace(one, status=status, message=result.message, simulated=simulated)
    system = one.row.system()
    values = [one.row.simulated(result.rows[0], system) for result in results]
    if len(values) == 1:
        return replace(one, status=OK, simulated=values[0])
    mean, width = interval(values)
    message = f"mean of {len(values)} seeds, 95% confidence interval +-{width:.2g}"
    return replace(one, status=OK, message=message, simulated=mean)
