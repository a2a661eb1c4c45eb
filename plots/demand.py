"""Memory that traces ask for while their kernels run, from the table ``working_sets``."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.panels import panels
from g10sim.plots.style import KINDS, Look
from g10sim.plots.traces import TraceName, records, trace_names

GIB = 2**30
COLUMNS = 3
ROW_INCHES = 1.25


def demands(results: pd.DataFrame, working_sets: pd.DataFrame) -> Iterator[tuple[TraceName, pd.DataFrame]]:
    """Yield each trace with its rows of the table; a column ``seconds`` says when kernels start.

    Of several cells with one trace the first counts: the table depends on the trace alone.
    """
    first = results.drop_duplicates("trace").set_index("trace")
    for trace in trace_names(results):
        (cell,) = records(first.loc[[trace.trace]])
        rows = working_sets[working_sets["cell"] == cell["cell"]].copy()
        rows["seconds"] = rows["start"] * (cell["exec_ms"] / 1000 / cell["exec_cycles"])
        yield trace, rows


def draw_by_kind(results: pd.DataFrame, working_sets: pd.DataFrame, column: str, ylabel: str) -> Figure:
    """Draw a column of the table, in GiB, as areas of the kinds of tensors on top of each other."""
    found = list(demands(results, working_sets))
    peaks = working_sets.groupby("kind")[column].max()
    shown = {kind: look for kind, look in KINDS.items() if peaks.get(kind, 0)}
    made = panels(
        len(found),
        columns=COLUMNS,
        row_inches=ROW_INCHES,
        legend=[Patch(**look.bar()) for look in shown.values()],
        legend_columns=4,
        xlabel="time in the iteration (s)",
        ylabel=ylabel,
    )
    for axes, (trace, rows) in zip(made.axes, found, strict=True):
        axes.set_title(trace.title)
        _draw_areas(axes, rows, column, shown)
    return made.figure


def _draw_areas(axes: Axes, rows: pd.DataFrame, column: str, shown: dict[str, Look]) -> None:
    table = rows.pivot_table(index="seconds", columns="kind", values=column, aggfunc="max")
    bottom = 0 * table.index
    for kind, look in shown.items():
        if kind in table.columns:
            top = bottom + table[kind].to_numpy() / GIB
            axes.fill_between(table.index, bottom, top, step="post", linewidth=0, **look.bar())
            bottom = top
    axes.set_xlim(0, table.index[-1])
    axes.set_ylim(bottom=0)
    axes.locator_params(nbins=3)
