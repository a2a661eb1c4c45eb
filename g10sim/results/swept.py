"""Values of columns of results: the rows that have some, and all of a column in order, as numbers or texts.

Results write a swept value as it was given: ``16 GiB``, ``true``, or a mapping as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from g10sim.config.document import leaves
from g10sim.config.problems import check_choice
from g10sim.errors import ConfigError, not_found
from g10sim.results.legends import designs
from g10sim.units import QUANTITIES, Quantity

if TYPE_CHECKING:
    import pandas as pd

_BEFORE, _AFTER = "policy", "seed"
"""Columns between which those of swept keys stand."""
_SHOWN = 60


@dataclass(frozen=True)
class Values:
    """The values of a column, in order: numbers ascending, others as they appear.

    ``texts`` has what to show for each; ``numbers`` the same as numbers, in ``unit`` where they have one, and
    is empty where some value is none. ``name`` is the column, with the one entry that changes in mappings.
    """

    name: str
    texts: Mapping[Any, str]
    numbers: Mapping[Any, float]
    unit: str = ""

    @property
    def label(self) -> str:
        """The name with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def full_text(self, value: object) -> str:
        """Return the text of a value with its unit."""
        return f"{self.texts[value]} {self.unit}".rstrip()


def swept_keys(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of swept keys among those of results."""
    if _BEFORE not in columns or _AFTER not in columns:
        return ()
    return tuple(columns[columns.index(_BEFORE) + 1 : columns.index(_AFTER)])


@lru_cache
def as_number(key: str, text: str) -> tuple[str, int | float] | None:
    """Return the column for a swept quantity as a number, named by its unit, and the number.

    ``system.host.memory``, ``16 GiB`` gives ``system.host.memory_bytes``, 17179869184; None for a text that
    is no quantity.
    """
    for quantity, amounts in _amounts({key: text}):
        amount, factor = amounts[key], quantity.units[quantity.column_unit]
        return f"{key}_{quantity.column}", amount if factor == 1 else amount / factor
    return None


def _amounts(texts: Mapping[Any, str]) -> Iterator[tuple[Quantity, dict[Any, int]]]:
    """Yield each kind of quantity that all of some texts are, with their amounts."""
    for quantity in QUANTITIES:
        with suppress(ValueError):
            yield quantity, {value: quantity.parse(text) for value, text in texts.items()}


def values_of(column: pd.Series[Any], name: str) -> Values:
    """Return the values of a column, empty ones left out: as numbers, of one unit, where all are."""
    values = list(column.dropna().unique())
    truths = any(isinstance(value, bool) or str(value) in ("True", "False") for value in values)
    if not truths and all(hasattr(value, "__float__") for value in values):
        return _numbers(name, {value: float(value) for value in values}, "")
    texts, changing = _entries({value: str(value) for value in values})
    if len(changing) == 1:
        name = f"{name}.{changing[0]}"
    elif changing:
        name = f"{name}: {', '.join(changing)}"
    for quantity, amounts in _amounts(texts):
        unit = _unit(quantity, texts, amounts)
        factor = quantity.units[unit]
        return _numbers(name, {value: amount / factor for value, amount in amounts.items()}, unit)
    return Values(name, texts, {})


def _numbers(name: str, numbers: Mapping[Any, float], unit: str) -> Values:
    ordered = dict(sorted(numbers.items(), key=lambda pair: pair[1]))
    return Values(name, {value: _text(number) for value, number in ordered.items()}, ordered, unit)


def _unit(quantity: Quantity, texts: Mapping[Any, str], amounts: Mapping[Any, int]) -> str:
    """Return the unit, of those that amounts are written in, in which the numbers are shortest together."""
    largest_first = sorted(amounts, key=amounts.__getitem__, reverse=True)
    found = (re.search(r"[A-Za-z/]+$", texts[value].strip()) for value in largest_first)
    units = dict.fromkeys(match.group() for match in found if match) or quantity.units
    return min(units, key=lambda unit: sum(len(_text(n / quantity.units[unit])) for n in amounts.values()))


def _text(number: float) -> str:
    return f"{number:.6g}"


def _entries(texts: Mapping[Any, str]) -> tuple[dict[Any, str], tuple[str, ...]]:
    """Return of mappings the entries that differ, as one text where they are equal; and their names.

    Other texts stay as they are.
    """
    mappings = {value: _mapping(text) for value, text in texts.items()}
    parsed = [mapping for mapping in mappings.values() if mapping is not None]
    if len(parsed) < len(texts) or len(texts) < 2:
        return dict(texts), ()
    names = dict.fromkeys(name for mapping in parsed for name in mapping)
    changing = [name for name in names if len({mapping.get(name) for mapping in parsed}) > 1]
    shown = {}
    for value, mapping in mappings.items():
        parts = [(mapping or {}).get(name) or "" for name in changing]
        shown[value] = parts[0] if len(set(parts)) == 1 else ", ".join(filter(None, parts))
    return shown, tuple(changing)


def _mapping(text: str) -> dict[str, str] | None:
    """Return the entries of a mapping in JSON by their dotted names; None for any other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return {name: str(value) for name, value in leaves(found).items()} if isinstance(found, dict) else None


def rows_where(results: pd.DataFrame, where: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows that have these values in these columns.

    A policy is found by its key with or without parameters or by its label, a trace also by the name of its
    file; spaces in quantities do not count. Raises ConfigError for what is not there.
    """
    for column, text in where.items():
        check_choice(column, list(map(str, results.columns)), "--where: found")
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
