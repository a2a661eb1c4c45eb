"""Simulates the published results again and compares the two."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from g10sim.config.behaviour import GPG
from g10sim.config.presets import load_system, load_variation
from g10sim.config.system import SystemSpec
from g10sim.experiment.cells import Cell, CellJob, TraceInput
from g10sim.experiment.outcome import CellResult
from g10sim.experiment.run import Running, ignore, run_cells
from g10sim.files import write_csv
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface.policy import Policy
from g10sim.policies.interface.registry import available
from g10sim.reproduce import published
from g10sim.results.columns import FAILED, OK, UNSUPPORTED
from g10sim.results.seeds import interval
from g10sim.trace.format import save_trace, trace_hash

OWN, REFERENCE, NO_PLAN = "own", "reference", ""
SKIPPED = "skipped"
VARIATION_SEEDS = (0, 1, 2, 3, 4)
"""Seeds of rows whose kernel times vary; their mean is compared."""


@dataclass(frozen=True)
class Comparison:
    """A published row, how it was simulated (``plan``), and what came out.

    ``simulated`` is infinite where unsupported, None where there is nothing to compare.
    """

    row: published.PublishedRow
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


@dataclass(frozen=True)
class _Wanted:
    """One comparison to make: a row, its plan, and its cells (one per seed)."""

    row: published.PublishedRow
    plan: str
    cells: tuple[Cell, ...]
    reason: str = ""


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
    TraceError or PlanError for bad input.
    """
    rows = published.read_published(reference, figures=figures, models=models, policies=policies)
    with tempfile.TemporaryDirectory(prefix="g10sim-") as scratch:
        wanted = _plan(reference, rows, _Traces(reference, Path(scratch)))
        cells = [cell for entry in wanted for cell in entry.cells]
        running.get("started", ignore)(len({cell.key for cell in cells}))
        results, _ = run_cells(cells, output, **running)
    outcomes = iter(results)
    compared = [_compare(entry, [next(outcomes) for _ in entry.cells]) for entry in wanted]
    columns = (*published.COLUMNS, "plan", "simulated", "relative_error", "status")
    write_csv(output / "validation.csv", columns, (one.as_row() for one in compared))
    return compared


def agreements(comparisons: Sequence[Comparison]) -> list[Agreement]:
    """Summarize comparisons per figure, policy and plan, in order of appearance."""
    groups: dict[tuple[str, str, str], list[Comparison]] = {}
    for one in comparisons:
        groups.setdefault((one.row.texts["figure"], one.row.texts["policy"], one.plan), []).append(one)
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


class _Traces:
    """Imports each trace once and keeps it in our format where workers find it."""

    def __init__(self, reference: Path, scratch: Path) -> None:
        self._reference, self._scratch = reference, scratch
        self._inputs: dict[tuple[str, int], TraceInput] = {}

    def input(self, row: published.PublishedRow) -> TraceInput:
        """Return the trace of a row. Raises TraceError."""
        model, batch = row.trace
        if row.trace not in self._inputs:
            trace = import_gpg(published.trace_directory(self._reference, row), model, batch)
            path = self._scratch / f"{len(self._inputs)}.g10t"
            save_trace(trace, path)
            name = f"{model}/{batch}"
            self._inputs[row.trace] = TraceInput(name, str(path), trace_hash(trace), model, batch)
        return self._inputs[row.trace]


def _plan(reference: Path, rows: Sequence[published.PublishedRow], traces: _Traces) -> list[_Wanted]:
    wanted: list[_Wanted] = []
    known = available()
    machine = _numbers(load_system(published.PUBLISHED_SYSTEM))
    for row in rows:
        name = row.texts["policy"]
        policy = known.get(name)
        if policy is None:
            wanted.append(_Wanted(row, NO_PLAN, (), f"there is no policy '{name}'"))
            continue
        system, guide = row.system(), published.reference_plan(reference, row, policy)
        if guide is not None and (_fits_any_system(policy) or _numbers(system) == machine):
            wanted.append(_Wanted(row, REFERENCE, _cells(row, traces, system, policy, guide)))
        cells = _cells(row, traces, system, policy, None)
        wanted.append(_Wanted(row, NO_PLAN if guide is None else OWN, cells))
    return wanted


def _fits_any_system(policy: type[Policy]) -> bool:
    """Return True if the published plan only orders the moves of the policy, without times."""
    default = Policy.with_reference_plan.__func__  # type: ignore[attr-defined]
    return policy.with_reference_plan.__func__ is not default  # type: ignore[attr-defined]


def _numbers(system: SystemSpec) -> dict[str, object]:
    return system.model_dump(exclude={"name", "description", "sources"})


def _cells(
    row: published.PublishedRow, traces: _Traces, system: SystemSpec, policy: type[Policy], guide: Path | None
) -> tuple[Cell, ...]:
    cell = Cell(
        index=0,
        name="validation",
        label=row.texts["policy"],
        jobs=(CellJob(traces.input(row)),),
        system=system,
        behaviour=GPG,
        policy={"name": policy.name},
        reference_plan=None if guide is None else str(guide),
    )
    if not row.variation:
        return (cell,)
    variation = load_variation({"distribution": "uniform", "magnitude": row.variation})
    return tuple(replace(cell, variation=variation, seed=seed) for seed in VARIATION_SEEDS)


def _compare(entry: _Wanted, results: Sequence[CellResult]) -> Comparison:
    row = entry.row
    if not results:
        return Comparison(row, entry.plan, SKIPPED, entry.reason)
    for status, simulated in ((FAILED, None), (UNSUPPORTED, math.inf)):
        for one in results:
            if one.status == status:
                return Comparison(row, entry.plan, status, one.message, simulated)
    system = row.system()
    values = [row.simulated(result.rows[0], system) for result in results]
    if len(values) == 1:
        return Comparison(row, entry.plan, OK, "", values[0])
    mean, width = interval(values)
    message = f"mean of {len(values)} seeds, 95% confidence interval +-{width:.2g}"
    return Comparison(row, entry.plan, OK, message, mean)
