"""Sureness of results: means over seeds of a cell; ranges and orders of policies under uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g10sim.results.cases import case_keys, case_name
from g10sim.results.columns import FURTHER, JOBS, OK, metric_columns, tiers_of, traffic
from g10sim.results.legends import policy_labels
from g10sim.results.reading import read_csv, read_provenance, read_results

if TYPE_CHECKING:
    import pandas as pd

CONFIDENCE = 0.95

_PER_SEED = ("cell", "seed", "status", "message", "bound_kind")
_NAMING = ("bound_kind", "job", "gpu", "priority")
"""Columns of groups that are no measurements."""
CASES = "uncertainty.csv"
"""Table of the cases of every cell: factors, and what came of them."""
_RANGED = ("exec_ms", "performance")


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


def over_seeds(results: pd.DataFrame, metrics: Sequence[str] = ()) -> pd.DataFrame:
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
            row[column], row[f"{column}_interval"] = interval(values)
        rows.append(row)
    spread = [name for column in found for name in (column, f"{column}_interval")]
    averaged = pd.DataFrame(rows, columns=[*names, "seeds", *told, *spread])
    averaged.attrs = results.attrs
    return averaged


def _with_ranges(metrics: Sequence[str]) -> tuple[str, ...]:
    return (*metrics, *range_columns(metrics))


def ranged_names(columns: Iterable[str]) -> list[str]:
    """Return those of some columns that have a range."""
    names = list(columns)
    moved = traffic(names)
    return [name for name in names if name in _RANGED or name in moved]


def range_columns(columns: Iterable[str]) -> list[str]:
    """Return the columns of the ranges of some columns."""
    return [f"{name}_{end}" for name in ranged_names(columns) for end in ("low", "high")]


def ranged_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the lowest and the highest value of each column with a range."""
    found: dict[str, Any] = {}
    for name in ranged_names(rows[0]):
        values = [row[name] for row in rows]
        found |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    return found


def order_lines(directory: Path) -> list[str]:
    """Say how sure the order of the policies of some results is; nothing where they have no cases.

    Raises ConfigError as reading results does.
    """
    cases = _read_cases(directory)
    if cases is None:
        return []
    results = read_results(directory)
    labels = policy_labels(results)
    return list(orders(results.assign(policy=results["policy"].map(labels)), cases))


def range_lines(directory: Path, cell: int) -> list[str]:
    """Say of a cell what its cases give, and how sure the order of policies is. Raises ConfigError."""
    cases = _read_cases(directory)
    if cases is None or not (cases["cell"] == cell).any():
        return []
    own = cases[cases["cell"] == cell]
    times, shares = _span(own["exec_ms"], ",.1f"), _span(own["performance"], ".1%")
    return [f"{len(own)} cases: {times} ms, {shares} of ideal", *order_lines(directory)]


def _span(values: pd.Series[float], style: str) -> str:
    return f"{values.min():{style}} to {values.max():{style}}"


def _read_cases(directory: Path) -> pd.DataFrame | None:
    is_there = (directory / CASES).is_file()
    return read_csv(directory, CASES, read_provenance(directory)) if is_there else None


def orders(results: pd.DataFrame, cases: pd.DataFrame) -> Iterator[str]:
    """Say for each trace and combination of swept values how sure the order of its policies is.

    ``cases`` is uncertainty.csv. Policies are compared with the next slower one.
    """
    keys = case_keys(results, set())
    times = cases.pivot(index="case", columns="cell", values="exec_ms")
    ran = results[results["cell"].isin(list(times.columns))].drop_duplicates("cell")
    for _, group in ran.groupby(keys, sort=False, dropna=False):
        ordered = group.sort_values("exec_ms", kind="stable")
        if len(ordered) < 2:
            continue
        texts = ", ".join(
            f"{faster['policy']} {_beside(times[faster['cell']], times[slower['cell']], slower['policy'])}"
            for faster, slower in pairwise(ordered.to_dict("records"))
        )
        yield f"{case_name(ordered.iloc[0].to_dict(), keys)}, {len(times)} cases: {texts}"


def _beside(own: pd.Series[float], other: pd.Series[float], name: str) -> str:
    both = own.notna() & other.notna()
    faster, slower = int((own < other)[both].sum()), int((own > other)[both].sum())
    if not faster and not slower:
        return f"as fast as {name} in all"
    where = "all" if faster == int(both.sum()) else f"{faster} of {int(both.sum())}"
    return f"before {name} in {where}"
