"""Names and order of the traces of some results in figures."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pandas as pd

from g10sim.errors import ConfigError
from g10sim.plots.style import IDEAL, model_name
from g10sim.results.columns import OK
from g10sim.results.reading import MACHINE

Item = TypeVar("Item")
Cells: TypeAlias = dict[tuple[Any, ...], dict[str, Any]]
"""Rows of results by some of their columns."""


_KNOWN_WORD = re.compile(r"s\d+|(bf|fp|float|int)\d+|tf32")
"""Parts of the names of files that say the sequence length or the type of numbers."""
_LENGTH = "seq"
_LABEL_CHARACTERS = 62
_QUARTER_OF_COLUMN, _THIRD_OF_COLUMN, _HALF_COLUMN = 12, 14, 26
"""As many characters as have room in a part of a column."""


def _narrow(text: str, room: int) -> str:
    """Break a text into lines that have room in a part of a column."""
    lines = [""]
    for part in re.findall(rf"{_LENGTH}\s\d+\s*|[^\s_/-]{{1,{room - 1}}}[\s_/-]*|[\s_/-]+", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > room:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class TraceName:
    """A trace as results name it (``trace``), and its model and batch size as figures write them."""

    trace: str
    model: str
    batch_size: int
    detail: str = ""

    @property
    def label(self) -> str:
        """Model and batch size below each other, for a group of bars."""
        return "\n".join(_narrow(text, _QUARTER_OF_COLUMN) for text in (self.model, self.batch))

    @property
    def title(self) -> str:
        """Model and batch size below each other, for a narrow panel."""
        return "\n".join(_narrow(text, _THIRD_OF_COLUMN) for text in (self.model, f"batch {self.batch}"))

    @property
    def line(self) -> str:
        """Model and batch size in one line, if they are short enough for half a column."""
        text = f"{self.model}, batch {self.batch}"
        return text if len(text) <= _HALF_COLUMN else self.title

    @property
    def batch(self) -> str:
        """Batch size, with what else tells the trace from others of this model and batch size."""
        return f"{self.batch_size} {self.detail}".strip()


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as mappings from column to value."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def cells_by(results: pd.DataFrame, *columns: str) -> Cells:
    """Rows of some results by the values of these columns; of several with equal ones the last."""
    return {tuple(row[column] for column in columns): row for row in records(results)}


def at_bound(results: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Return what a metric that grows with speed would be at the bound; NaN where there is none."""
    if "bound_cycles" not in results:
        return pd.Series(math.nan, index=results.index)
    return results[metric] * results["exec_cycles"] / results["bound_cycles"]


def best_possible(results: pd.DataFrame, metric: str, *by: str) -> dict[Any, float]:
    """Return what a metric would be at the bound, by the values of some columns.

    Where cells have several bounds, the one that holds for all; nothing where there is none.
    """
    best = at_bound(results, metric).dropna()
    return dict(best.groupby([results.loc[best.index, column] for column in by]).max())


def below(results: pd.DataFrame, axis: str = "") -> str:
    """Return the label below a figure: what is on the axis, and the machine where it is known."""
    text = "; ".join(filter(None, (axis, results.attrs.get(MACHINE))))
    return textwrap.fill(text, _LABEL_CHARACTERS)


def without_ideal(results: pd.DataFrame) -> pd.DataFrame:
    """Rows of all policies but the ideal one. Raises ConfigError where there is none."""
    shown = results[results["policy"] != IDEAL]
    if shown.empty:
        raise ConfigError(f"results: found no policy to show; allowed: at least one other than '{IDEAL}'")
    return shown


def that_ran(results: pd.DataFrame) -> pd.DataFrame:
    """Rows of the cells that have numbers. Raises ConfigError where there is none."""
    shown = results[results["status"] == OK]
    if shown.empty:
        raise ConfigError("results: found no cell that ran; allowed: at least one with status 'ok'")
    return shown


def trace_names(results: pd.DataFrame) -> list[TraceName]:
    """List the traces of some results by model (in order of appearance) and batch size."""
    rows = records(results.drop_duplicates("trace"))
    order = {row["model"]: place for place, row in reversed(list(enumerate(rows)))}
    rows.sort(key=lambda row: (order[row["model"]], row["batch_size"], row["trace"]))
    return [
        TraceName(row["trace"], model_name(row["model"]), int(row["batch_size"]), _detail(row, rows))
        for row in rows
    ]


def _detail(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return what tells a trace from others of its model, apart from the batch size, by the files' names.

    That is the sequence length and the type of numbers, and anything else among traces of one batch size.
    """
    peers = [other for other in rows if other["model"] == row["model"]]
    twins = [other for other in peers if other["batch_size"] == row["batch_size"]]
    found = [
        word
        for word in _words(row)
        if any(word not in _words(other) for other in (peers if _KNOWN_WORD.fullmatch(word) else twins))
    ]
    if len(twins) > 1 and not found:
        return f"({Path(row['trace']).stem})"
    return " ".join(re.sub(r"^s(\d+)$", rf"{_LENGTH} \1", word) for word in found)


def _words(row: Mapping[str, Any]) -> list[str]:
    """Return the parts of the name of a trace's file, without its batch size."""
    sizes = (str(row["batch_size"]), f"b{row['batch_size']}")
    return [word for word in re.split(r"[-_ ]+", Path(row["trace"]).stem) if word not in sizes]


def by_model(names: Sequence[TraceName]) -> dict[str, list[TraceName]]:
    """Group traces by model, in order."""
    return {model: list(group) for model, group in groupby(names, key=lambda name: name.model)}


def in_rows(items: Sequence[Item], most: int) -> list[list[Item]]:
    """Spread items over rows of at most ``most``, in order."""
    return [list(items[start : start + most]) for start in range(0, len(items), most)]


def swept_column(results: pd.DataFrame, name: str, wanted: str = "of a run that sweeps over it") -> str:
    """Find the column of a swept quantity; of a parameter of a policy that of any policy.

    Raises ConfigError where there is none, which says what results are ``wanted``.
    """
    for column in results.columns:
        if column == name or re.fullmatch(rf"policies\.\d+\.{re.escape(name)}", column):
            return str(column)
    raise ConfigError(f"results: found no column '{name}'; allowed: results {wanted}")
