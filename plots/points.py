"""The points of a chart of any results: a value over a column, by series and panel, with bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from g10sim.errors import ConfigError, not_found
from g10sim.looks import Look, distinct
from g10sim.plots.style import at_bound, looks, series, that_ran, trace_names, without_ideal
from g10sim.results.columns import OK, TITLES
from g10sim.results.seeds import interval
from g10sim.results.swept import Values, differing_keys, several_values, values_of

PERFORMANCE = "performance"
_BOUNDED = (PERFORMANCE, "samples_per_s")
"""Metrics that are larger the less time an iteration takes."""
NONE = "none"
"""Stands for an empty value: that of a parameter which a policy does not have."""

_OF_WORKLOADS = ("trace", "model", "batch_size")
_LEVELS = ("peak_", "footprint_", "reserved_", "largest_")
"""Beginnings of columns of bytes that lie in memory; others count bytes that moved."""
_NAMES = {"gpu": "GPU", "ssd": "SSD", "cpu": "CPU"}


@dataclass(frozen=True)
class Roles:
    """The columns of a chart: the axes, and of which values there are series and panels.

    Empty ``hue`` and ``col``: one series, one panel.
    """

    x: str
    y: str = PERFORMANCE
    hue: str = ""
    col: str = ""

    @property
    def columns(self) -> list[str]:
        """The columns that tell points apart."""
        return [column for column in (self.col, self.hue, self.x) if column]


@dataclass(frozen=True)
class Points:
    """The content of a chart: ``table`` has a row per point with the columns of ``roles``, and four more.

    ``value`` is the mean over seeds in the unit of ``label``, ``value_interval`` the half width of its 95%
    confidence interval, ``status`` how the cells ended, ``bound`` what no policy can exceed. Results with a
    range under uncertainty have its ends as ``value_low`` and ``value_high``. ``x``, ``hues`` and ``panels``
    are the values of the columns in order.
    """

    roles: Roles
    table: pd.DataFrame
    label: str
    x: Values
    hues: dict[Any, Look]
    panels: dict[Any, str]
    hue_title: str = ""
    has_ideal: bool = False

    @property
    def has_bounds(self) -> bool:
        """Return whether some bound is known."""
        return bool(self.table["bound"].notna().any())

    def of_panel(self, panel: object) -> pd.DataFrame:
        """Return the points of a panel; without a hue, all have that of no name."""
        found = self.table if not self.roles.col else self.table[self.table[self.roles.col] == panel]
        return found if self.roles.hue else found.assign(**{"": ""})

    def data(self) -> pd.DataFrame:
        """Return the points under titles with their units, for a file."""
        names = {
            self.roles.x: self.x.label,
            "value": self.label,
            "value_interval": f"{self.label}, 95% interval",
            "value_low": f"{self.label}, lowest",
            "value_high": f"{self.label}, highest",
        }
        found = self.table
        if self.x.numbers:
            found = found.assign(**{self.roles.x: found[self.roles.x].map(self.x.numbers)})
        return found.rename(columns=names)


def points(results: pd.DataFrame, roles: Roles) -> Points:
    """Return the points of a chart, without the policy ``ideal`` where ``y`` is performance: it is a line.

    Raises ConfigError where columns are missing or several rows are one point.
    """
    roles = _complete(roles)
    _check(results, roles)
    is_performance = roles.y == PERFORMANCE
    shown = without_ideal(results) if is_performance else results
    that_ran(shown)
    shown = shown.assign(**{column: _told(shown[column]) for column in roles.columns})
    _check_single(shown, roles)
    label, factor = _measure(shown, roles.y)
    columns = {"value": roles.y, "value_low": f"{roles.y}_low", "value_high": f"{roles.y}_high"}
    found = {name: shown[column] * factor for name, column in columns.items() if column in shown}
    bound = at_bound(shown, roles.y) if roles.y in _BOUNDED else math.nan
    table = _averaged(shown.assign(bound=bound, **found), roles)
    return Points(
        roles,
        table,
        label,
        named(shown, roles.x),
        _looks(shown, roles.hue),
        _panels(shown, roles.col),
        "" if roles.hue in ("", "policy", "trace") else named(shown, roles.hue).label,
        is_performance,
    )


def _told(values: pd.Series[Any]) -> pd.Series[Any]:
    """Return values with a word where there is none."""
    return pd.Series([NONE if pd.isna(value) else value for value in values], values.index, dtype=object)


def _complete(roles: Roles) -> Roles:
    """Fill in what is left to choose: series are policies, panels are traces, unless they are elsewhere."""
    given = {roles.x, roles.hue, roles.col}
    if not roles.hue and "policy" not in given:
        roles = replace(roles, hue="policy")
    if not roles.col and given.isdisjoint(_OF_WORKLOADS):
        roles = replace(roles, col="trace")
    return roles


def _check(results: pd.DataFrame, roles: Roles) -> None:
    for option in ("x", "y", "hue", "col"):
        column = getattr(roles, option)
        if column and column not in results:
            raise ConfigError(f"--{option}: found '{column}'{not_found(column, map(str, results.columns))}")
        if column and results[column].isna().all():
            raise ConfigError(f"--{option}: found no value of '{column}'; allowed: a column with values")
    if not pd.api.types.is_numeric_dtype(results[roles.y]):
        numbers = [str(name) for name in results if pd.api.types.is_numeric_dtype(results[name])]
        raise ConfigError(f"--y: found text in '{roles.y}'{not_found(roles.y, numbers)}")
    twice = [column for column in roles.columns if roles.columns.count(column) > 1]
    if twice:
        raise ConfigError(f"--x, --hue and --col: found '{twice[0]}' twice; allowed: three columns")


def _check_single(shown: pd.DataFrame, roles: Roles) -> None:
    """Refuse several rows of one seed at a point. Raises ConfigError with the keys that they differ by."""
    keys = [*differing_keys(shown), *(["job"] if "job" in shown else [])]
    groups = shown.groupby(roles.columns, dropna=False)
    several = [
        key for key in keys if key not in roles.columns and (groups[key].nunique(dropna=False) > 1).any()
    ]
    if several:
        found = " and ".join(several_values(shown, key) for key in several)
        raise ConfigError(
            f"results: found {found} at one point; allowed: one each, as with --where {several[0]}=VALUE, "
            f"or a panel or series for each, with --col {several[0]} or --hue {several[0]}"
        )


def _averaged(shown: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Return a row per point: means over seeds."""
    rows = []
    ends = [name for name in ("value_low", "value_high") if name in shown]
    for key, group in shown.groupby(roles.columns, sort=False, dropna=False):
        status = next((text for text in group["status"] if text != OK), OK)
        value, half_width = interval(list(group["value"])) if status == OK else (math.nan, math.nan)
        rows.append((*key, value, half_width, status, group["bound"].mean(), *group[ends].mean()))
    table = pd.DataFrame(rows, columns=[*roles.columns, "value", "value_interval", "status", "bound", *ends])
    # The bound of a workload and a machine is the same for all policies.
    same = [column for column in roles.columns if column != "policy"]
    if same and len(table):
        table["bound"] = table.groupby(same, dropna=False)["bound"].transform("max")
    return table


def _measure(shown: pd.DataFrame, column: str) -> tuple[str, Any]:
    """Return the label of a column with its unit, and by what its values are multiplied."""
    if column in TITLES:
        return TITLES[column], 1
    words = " ".join(_NAMES.get(word, word) for word in column.split("_")[:-1])
    if column.endswith("_cycles"):
        return f"{words} (ms)", shown["exec_ms"] / shown["exec_cycles"].where(shown["exec_cycles"] > 0)
    if column.endswith("_bytes"):
        is_level = column.startswith(_LEVELS)
        return f"{words} ({'GiB' if is_level else 'GB'})", 1 / (2**30 if is_level else 10**9)
    return column.replace("_", " "), 1


def named(shown: pd.DataFrame, column: str) -> Values:
    """Return the values of a column, policies and traces under the names that figures write."""
    if column == "policy":
        return Values(column, {policy: look.label for policy, look in looks(shown).items()}, {})
    if column == "trace":
        return Values(column, {name.trace: name.line.replace("\n", " ") for name in trace_names(shown)}, {})
    given = shown[column][shown[column] != NONE]
    found = values_of(given, column)
    return found if len(given) == len(shown) else replace(found, texts={**found.texts, NONE: NONE})


def _looks(shown: pd.DataFrame, column: str) -> dict[Any, Look]:
    if not column:
        return {"": next(iter(series([""]).values()))}
    if column == "policy":
        return looks(shown)
    texts = named(shown, column).texts
    return distinct({value: replace(look, label=texts[value]) for value, look in series(texts).items()})


def _panels(shown: pd.DataFrame, column: str) -> dict[Any, str]:
    if not column:
        return {"": ""}
    if column == "trace":
        return {name.trace: name.line for name in trace_names(shown)}
    values = named(shown, column)
    if column == "policy":
        return dict(values.texts)
    last = values.name.rpartition(".")[2]
    return {value: f"{last} {values.full_text(value)}" for value in values.texts}
