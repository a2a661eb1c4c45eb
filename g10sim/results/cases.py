"""Cells that a measure is made of: which belong to it, their names, averages, and where their time goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from g10sim.errors import ConfigError, choices_text
from g10sim.results.columns import OK, stall_reasons

if TYPE_CHECKING:
    import pandas as pd

_AVERAGES: Mapping[str, Callable[[list[float]], float]] = {
    "mean": fmean,
    "geometric_mean": geometric_mean,
    "highest": max,
    "lowest": min,
}

Average: TypeAlias = Literal["mean", "geometric_mean", "highest", "lowest"]
Where: TypeAlias = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Measured:
    """A number and what it is made of: a value for each case by its name, and the cells that were looked at.

    ``value`` is None where no cell gives one. ``cells`` are rows of results. ``notes`` say of cases why they
    are as they are.
    """

    value: float | None
    cases: Mapping[str, float]
    cells: pd.DataFrame
    notes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, average: Average, cases: Mapping[str, float], *parts: Any) -> Measured:
        """Make it with the average of its cases as its value; ``parts`` are the cells, and notes if any.

        Raises ConfigError for a geometric mean of what is not above 0.
        """
        for name, value in cases.items() if average == "geometric_mean" else ():
            if value <= 0:
                raise ConfigError(f"geometric_mean: found {value:g} for {name}; allowed: values above 0")
        return cls(_AVERAGES[average](list(cases.values())) if cases else None, cases, *parts)


def cells_of(results: pd.DataFrame, policy: str, column: str, where: Where) -> pd.DataFrame:
    """Return one row per cell that ran: what tells it apart, and its ``value``. Raises ConfigError."""
    rows = rows_of(policy, results, results)
    for name in (column, *where):
        if name not in results.columns:
            raise ConfigError(f"found no column '{name}' in the results")
    rows = rows[rows["status"] == OK]
    for name, value in where.items():
        rows = rows.loc[[_same(found, value) for found in rows[name]]]
    first = rows.drop_duplicates("cell")
    values = rows.groupby("cell", sort=False)[column].mean()
    return first.assign(value=first["cell"].map(values))[["cell", *case_keys(results, set()), "value"]]


def _same(found: object, value: str | int | float) -> bool:
    """Return whether a value of a column is the one that is named: as a number, or as a text."""
    if isinstance(found, str) or isinstance(value, str):
        return str(found) == str(value)
    return float(str(found)) == value


def rows_of(policy: str, found: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a policy. Raises ConfigError, which names those of the results, if there is none."""
    rows = found[found["policy"] == policy]
    if rows.empty:
        known = choices_text(set(results["policy"]))
        raise ConfigError(f"found no policy '{policy}' in the results; allowed: {known}")
    return rows


def case_keys(results: pd.DataFrame, without: set[str]) -> list[str]:
    """Return the columns that say what was run except for the policy and its parameters."""
    names = list(results.columns)
    said = names[: names.index("status")]
    known = {"cell", "name", "model", "batch_size", "policy", *without}
    return [name for name in said if name not in known and not name.startswith("policies.")]


def case_name(row: Mapping[Any, Any], keys: list[str]) -> str:
    """Name a case: its trace (or model), and swept values."""
    swept = [row[key] for key in keys if key not in ("trace", "model", "seed")]
    texts = [str(value) for value in swept if value is not None and str(value) != "nan"]
    return ", ".join([Path(str(row.get("trace", row.get("model")))).stem, *texts])


def breakdown(cells: pd.DataFrame, most: int = 4) -> str:
    """Say for each policy of some cells where their time goes, in percent, the largest shares first."""
    ran = cells[cells["status"] == OK]
    columns = {"compute_cycles": "computing", "overlap_cycles": "computing during copies"}
    columns |= {column: reason.value.replace("_", " ") for column, reason in stall_reasons(cells).items()}
    texts = []
    for policy, rows in ran.groupby("policy", sort=False):
        total = float(np.nansum(rows["exec_cycles"]))
        shares = {name: float(np.nansum(rows[column])) / total for column, name in columns.items() if total}
        largest = sorted(shares.items(), key=lambda item: -item[1])[:most]
        said = ", ".join(f"{name} {share:.1%}" for name, share in largest if share >= 0.001)
        peak = float(np.nanmax(rows["peak_gpu_bytes"])) / 2**30
        texts.append(f"{policy}: {said}; at most {peak:.2f} GiB")
    return " | ".join(texts)


def written(value: float | None, unit: str) -> str:
    """Write a value as a reader expects it: a percentage, a factor, or a number."""
    if value is None:
        return ""
    return {"percent": f"{value:.1%}", "factor": f"{value:.2f}x", "number": f"{value:.3g}"}[unit]
