"""Which rows of results a figure shows: those that are asked for, if it shows all that is swept in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from g10sim.config.problems import check_choice
from g10sim.errors import ConfigError
from g10sim.text import shown

if TYPE_CHECKING:
    import pandas as pd

_BEFORE, _AFTER = "policy", "seed"
"""Columns between which those of swept keys stand."""


def rows_where(results: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows that have these values in these columns. Raises ConfigError for what is not there."""
    for column, value in where.items():
        check_choice(column, results.columns, "--where: found")
        texts = results[column].astype(str)
        check_choice(value, texts.unique(), f"--where {column}: found")
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
                f"results: found {len(values)} values of {key} ({', '.join(map(shown, values))}); "
                f"allowed for {figure}: one of them, as with --where {key}=VALUE"
            )
