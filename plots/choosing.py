"""Which rows of results a figure shows: those that are asked for, if it shows all that is swept in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import TYPE_CHECKING

from g10sim.errors import ConfigError
from g10sim.registry import not_found

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 60
_BEFORE, _AFTER = "policy", "seed"
"""Columns between which those of swept keys stand."""


def rows_where(results: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows that have these values in these columns. Raises ConfigError for what is not there."""
    for column, value in where.items():
        if column not in results:
            raise ConfigError(f"--where: found '{column}'{not_found(column, results.columns)}")
        texts = results[column].astype(str)
        if value not in texts.unique():
            raise ConfigError(f"--where {column}: found '{value}'{not_found(value, texts.unique())}")
        results = results[texts == value]
    return results


def check_sweeps(results: pd.DataFrame, figure: str, known: Iterable[str]) -> None:
    """Refuse results with several values of a swept key that a figure shows one of. Raises ConfigError.

    ``known`` are regular expressions of the keys that it shows all values of.
    """
    columns = list(map(str, results.columns))
    if _AFTER not in columns:
        return
    for key in columns[columns.index(_BEFORE) + 1 : columns.index(_AFTER)]:
        values = list(map(str, results[key].unique()))
        if len(values) > 1 and not any(re.fullmatch(pattern, key) for pattern in known):
            raise ConfigError(
                f"results: found {len(values)} values of {key} ({shorten(', '.join(values), _SHOWN)}); "
                f"allowed for {figure}: one of them, as with --where {key}=VALUE"
            )
