"""Which rows of results a figure shows: those that are asked for, if it shows all that is swept in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import TYPE_CHECKING

from g10sim.errors import ConfigError
from g10sim.registry import not_found
from g10sim.stats.swept import swept_keys

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 60


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
    for key in swept_keys(list(map(str, results.columns))):
        if results[key].nunique(dropna=False) > 1 and not any(
            re.fullmatch(known_key, key) for known_key in known
        ):
            raise ConfigError(
                f"results: found {several_values(results, key)}; "
                f"allowed for {figure}: one of them, as with --where {key}=VALUE"
            )


def several_values(results: pd.DataFrame, key: str) -> str:
    """Say how many values of a key there are, and the first of them."""
    values = list(map(str, results[key].unique()))
    return f"{len(values)} values of {key} ({shorten(', '.join(values), _SHOWN)})"
