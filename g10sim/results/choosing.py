"""Choose rows of results by values of columns; policies and traces also by shorter names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from g10sim.errors import ConfigError
from g10sim.registry import not_found
from g10sim.results.legends import designs
from g10sim.results.swept import swept_keys

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 60


def rows_where(results: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows that have these values in these columns.

    A policy is found by its key with or without parameters or by its label, a trace also by the name of its
    file; spaces in quantities do not count. Raises ConfigError for what is not there.
    """
    for column, text in where.items():
        if column not in results:
            raise ConfigError(f"--where: found '{column}'{not_found(column, map(str, results.columns))}")
        names = _names(results, column)
        wanted = {value for value, given in names.items() if text == given[0]}
        wanted = wanted or {value for value, given in names.items() if _plain(text) in map(_plain, given)}
        if not wanted:
            known = [given[0] for given in names.values()]
            choices = not_found(text, known) if known else "; allowed: none (the column has no values)"
            raise ConfigError(f"--where {column}: found '{text}'{choices}")
        results = results[results[column].isin(wanted)]
    return results


def differing_keys(results: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns that tell the cells of some results apart."""
    keys = ("trace", "policy", *swept_keys(list(map(str, results.columns))))
    return tuple(key for key in keys if results[key].nunique(dropna=False) > 1)


def several_values(results: pd.DataFrame, key: str) -> str:
    """Say how many values of a key there are, and the first of them."""
    values = list(map(str, results[key].unique()))
    return f"{len(values)} values of {key} ({shorten(', '.join(values), _SHOWN)})"


def _names(results: pd.DataFrame, column: str) -> dict[Any, list[str]]:
    """Return what each value of a column can be called, first as results write it."""
    if column == "policy":
        found = designs(results)
        return {policy: [policy, design.key, design.label, design.title] for policy, design in found.items()}
    values = list(results[column].dropna().unique())
    if column == "trace":
        return {trace: [trace, Path(trace).name, Path(trace).stem] for trace in values}
    return {value: [str(value), f"{value:g}" if isinstance(value, float) else str(value)] for value in values}


def _plain(text: str) -> str:
    return text.replace(" ", "").lower()
