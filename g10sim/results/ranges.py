"""Ranges of results under uncertainty, and whether the order of policies holds in all cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g10sim.results.cases import case_keys, case_name
from g10sim.results.columns import traffic
from g10sim.results.legends import policy_labels
from g10sim.results.reading import read_csv, read_provenance, read_results

if TYPE_CHECKING:
    import pandas as pd

CASES = "uncertainty.csv"
"""Table of the cases of every cell: factors, and what came of them."""
_RANGED = ("exec_ms", "performance")


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
    lines = [
        f"{len(own)} cases: {_span(own['exec_ms'], ',.1f')} ms, {_span(own['performance'], '.1%')} of ideal"
    ]
    return lines + order_lines(directory)


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
        pairs = zip(ordered.to_dict("records"), ordered.to_dict("records")[1:], strict=False)
        texts = ", ".join(
            f"{faster['policy']} {_beside(times[faster['cell']], times[slower['cell']], slower['policy'])}"
            for faster, slower in pairs
        )
        yield f"{case_name(ordered.iloc[0].to_dict(), keys)}, {len(times)} cases: {texts}"


def _beside(own: pd.Series[float], other: pd.Series[float], name: str) -> str:
    both = own.notna() & other.notna()
    faster, slower = int((own < other)[both].sum()), int((own > other)[both].sum())
    if not faster and not slower:
        return f"as fast as {name} in all"
    where = "all" if faster == int(both.sum()) else f"{faster} of {int(both.sum())}"
    return f"before {name} in {where}"
