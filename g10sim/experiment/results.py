"""Columns and rows of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from g10sim.experiment.cells import Cell
from g10sim.experiment.expand import Experiment
from g10sim.experiment.outcome import CellResult
from g10sim.results.columns import FURTHER, JOBS, metric_columns
from g10sim.results.ranges import range_columns
from g10sim.results.swept import as_number

_BEFORE_SWEPT = ("cell", "name", "trace", "model", "batch_size", "policy")
_AFTER_SWEPT = ("seed", "status", "message")


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
