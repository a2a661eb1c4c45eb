"""Performance over one resource, up to the least of it that reaches a target."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from g10sim.errors import ConfigError
from g10sim.looks import BLUE, RED, Look
from g10sim.plots.panels import BOUND_LOOK, handles, panels
from g10sim.plots.style import DASHES, model_name, styled
from g10sim.plots.traces import OK, records

_SIMULATED = Look(BLUE, marker="o", label="simulated")
_ANSWER = Look(RED, marker="*", line="-", label="least that reaches it")
_TICKS = 5


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
        [_title(row, several=len(sizing.drop_duplicates(["trace", "policy"])) > 1) for row in shown],
        columns=2,
        row_inches=1.45,
        legend=[
            *handles([_SIMULATED, BOUND_LOOK], lines=True),
            Line2D([], [], **DASHES, label="target"),
            answer,
        ],
        legend_columns=4,
        ylabel="performance (ideal = 1)",
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
        ratio = (most / least) ** (1 / (_TICKS - 1))
        axes.set_xticks([least * ratio**place for place in range(_TICKS)])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _title(row: dict[str, object], *, several: bool) -> str:
    """Return the trace and the policy of a search, where there are several."""
    if not several:
        return ""
    model = model_name(str(row["model"]))
    return f"{model}, batch {row['batch_size']}\n{row['policy']}, {Path(str(row['trace'])).stem}"
