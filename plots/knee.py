"""Performance over one resource, up to the least of it that reaches a target."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from g10sim.errors import ConfigError
from g10sim.looks import BLUE, RED, Look
from g10sim.plots.panels import BOUND_LOOK, handles, panels
from g10sim.plots.style import DASHES, records, styled, trace_names
from g10sim.results.columns import OK, TITLES

_SIMULATED = Look(BLUE, marker="o", label="simulated")
_ANSWER = Look(RED, marker="*", line="-", label="least that reaches it")
_SHORT = 5
"""Characters of labels of which five have room below a panel."""


@styled
def draw(sizing: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Draw a panel per search: performance over the amount, its bound, the target, and the answer.

    Raises ConfigError where there is no search with a curve.
    """
    shown = [row for row in records(sizing) if row["search"] in set(curves["search"])]
    if not shown:
        raise ConfigError("sizing: found no search that applies; allowed: a system with one of the resources")
    answer = Line2D([], [], **{**_ANSWER.curve(), "linestyle": "none", "markersize": 7})
    made = panels(
        _titles(sizing, shown),
        columns=2,
        row_inches=1.45,
        legend=[
            *handles([_SIMULATED, BOUND_LOOK], lines=True),
            Line2D([], [], **DASHES, label="target"),
            answer,
        ],
        legend_columns=4,
        ylabel=TITLES["performance"],
        shared="y",
    )
    for axes, row in zip(made.axes, shown, strict=True):
        curve = curves[curves["search"] == row["search"]].sort_values("amount")
        _draw(axes, curve)
        axes.axhline(row["target"], **DASHES)
        if pd.notna(row["answer"]):
            at = curve.loc[curve["text"] == row["answer"], "amount"].iloc[0]
            axes.plot(
                [at], [row["performance"]], clip_on=False, zorder=3, **{**_ANSWER.curve(), "markersize": 7}
            )
        axes.set(ylim=(0, 1.08), xlabel=f"{curve['title'].iloc[0]} ({curve['unit'].iloc[0]})")
    return made.figure


def _draw(axes: Axes, curve: pd.DataFrame) -> None:
    bound = curve[curve["best_performance"].notna()]
    axes.plot(bound["amount"], bound["best_performance"], **BOUND_LOOK.curve())
    ran = curve[curve["status"] == OK]
    axes.plot(ran["amount"], ran["performance"], **{**_SIMULATED.curve(), "markersize": 2.5})
    least, most = curve["amount"].min(), curve["amount"].max()
    if least > 0 and most > least:
        axes.set_xscale("log")
        ticks = _ticks(least, most, 5)
        ticks = ticks if max(map(len, ticks.values())) <= _SHORT else _ticks(least, most, 3)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _ticks(least: float, most: float, count: int) -> dict[float, str]:
    """Return that many places at even ratios, with their labels."""
    places = [least * (most / least) ** (place / (count - 1)) for place in range(count)]
    return {place: f"{place:.3g}" for place in places}


def _titles(sizing: pd.DataFrame, shown: list[dict[str, Any]]) -> list[str]:
    """Return the trace, the policy and the swept values of each search; nothing where there is one case."""
    swept = [column for column in sizing.columns if "." in column]
    if len(sizing.drop_duplicates(["trace", "policy", *swept])) == 1:
        return [""] * len(shown)
    names = {name.trace: name.line for name in trace_names(sizing)}
    return [
        f"{names[row['trace']]}\n{', '.join(str(row[key]) for key in ('policy', *swept))}" for row in shown
    ]
