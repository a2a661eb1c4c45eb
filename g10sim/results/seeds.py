"""Several seeds of one cell: means and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from g10sim.results.columns import FURTHER, JOBS, OK, metric_columns, tiers_of
from g10sim.results.ranges import range_columns

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

_PER_SEED = ("cell", "seed", "status", "message", "bound_kind")
_NAMING = ("bound_kind", "job", "gpu", "priority")
"""Columns of groups that are no measurements."""


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return mean and half width of the confidence interval of the mean; of one value the width is NaN.

    Student's t with n - 1 degrees of freedom: t * s / sqrt(n), s the standard deviation of the sample.
    Raises ValueError for no values.
    """
    count = len(values)
    if count == 0:
        raise ValueError("values: found none; allowed: at least one")
    mean = math.fsum(values) / count
    if count == 1:
        return mean, math.nan
    from scipy.special import stdtrit  # a fifth of the time that a command takes to start

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = float(stdtrit(count - 1, (1 + confidence) / 2))
    return mean, quantile * deviation / math.sqrt(count)


def over_seeds(
    results: pd.DataFrame, metrics: Sequence[str] = (), confidence: float = CONFIDENCE
) -> pd.DataFrame:
    """Average results that differ in their seed alone.

    ``results`` has the columns of results.csv; ``metrics`` are those to average, by default all. There is
    one row per cell without its seed, in order of appearance: what the cell is; ``seeds``, how many rows
    there were; ``status``, which is ``ok`` where that of every seed is, else the first other one, with its
    ``message`` where the results have messages; and for each metric its mean and, as ``METRIC_interval``, the
    half width of the confidence interval of the mean (:func:`interval`). Unless the status is ``ok`` there
    are no numbers: seeds that happen to work are no sample.
    """
    import pandas as pd

    further = (name for group in (*FURTHER.values(), JOBS) for name in group.names if name not in _NAMING)
    known = _with_ranges((*metric_columns(tiers_of(results.columns)), *further))
    found = [column for column in _with_ranges(metrics) or known if column in results.columns]
    names = [column for column in results.columns if column not in (*_PER_SEED, *known, *found)]
    told = [name for name in ("status", "message") if name in results.columns]
    rows = []
    for key, group in results.groupby(names, sort=False, dropna=False):
        first = group.iloc[int((group["status"] != OK).to_numpy().argmax())]
        status = first["status"]
        row = {**dict(zip(names, key, strict=True)), "seeds": len(group), **first[told]}
        for column in found:
            values = [float(value) for value in group[column]] if status == OK else [math.nan]
            row[column], row[f"{column}_interval"] = interval(values, confidence)
        rows.append(row)
    spread = [name for column in found for name in (column, f"{column}_interval")]
    averaged = pd.DataFrame(rows, columns=[*names, "seeds", *told, *spread])
    averaged.attrs = results.attrs
    return averaged


def _with_ranges(metrics: Sequence[str]) -> tuple[str, ...]:
    return (*metrics, *range_columns(metrics))
