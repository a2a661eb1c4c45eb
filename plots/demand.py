"""Memory that traces ask for while their kernels run, from the table ``working_sets``."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.panels import panels
from g10sim.plots.style import KINDS, Look
from g10sim.plots.traces import TraceName, records, that_ran, trace_names
from g10sim.stats.one_cell import of_cell

GIB = 2**30
COLUMNS = 3
ROW_INCHES = 1.25
KERNELS = "kernel (in the order of the iteration)"

_STEPS = 120


def demands(results: pd.DataFrame, working_sets: pd.DataFrame) -> Iterator[tuple[TraceName, pd.DataFrame]]:
    """Yield each trace with its rows of the table.

    Of several cells with one trace the first that ran counts: the table depends on the trace alone.
    """
    ran = that_ran(results)
    cells = {cell["trace"]: cell for cell in records(ran.drop_duplicates("trace"))}
    for trace in trace_names(ran):
        yield trace, of_cell(working_sets, cells[trace.trace])


def draw_by_kind(results: pd.DataFrame, working_sets: pd.DataFrame, column: str, ylabel: str) -> Figure:
    """Draw a column of the table, in GiB, as areas of the kinds of tensors on top of each other."""
    found = list(demands(results, working_sets))
    most = working_sets.groupby("kind")[column].max()
    shown = {kind: look for kind, look in KINDS.items() if most.get(kind, 0)}
    made = panels(
        len(found),
        columns=COLUMNS,
        row_inches=ROW_INCHES,
        legend=[Patch(**look.bar()) for look in shown.values()],
        legend_columns=4,
        xlabel=KERNELS,
        ylabel=ylabel,
    )
    for axes, (trace, rows) in zip(made.axes, found, strict=True):
        axes.set_title(trace.title)
        _draw_areas(axes, rows, column, shown)
    return made.figure


def peaks(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Make a table of a column in GiB: a row per kernel (index), a column per kind of tensor.

    Of more kernels than a panel has room for, each row is the one that needs the most of some neighbours.
    """
    table = rows.pivot_table(index="kernel", columns="kind", values=column, aggfunc="sum") / GIB
    places = pd.Series(range(len(table)), index=table.index) * _STEPS // len(table)
    return table.loc[table.sum(axis="columns").groupby(places).idxmax()]


def _draw_areas(axes: Axes, rows: pd.DataFrame, column: str, shown: dict[str, Look]) -> None:
    table = peaks(rows, column)
    bottom = 0 * table.index
    for kind, look in shown.items():
        if kind in table.columns:
            top = bottom + table[kind].to_numpy()
            axes.fill_between(table.index, bottom, top, step="mid", linewidth=0, **look.bar())
            bottom = top
    axes.set_xlim(0, table.index[-1])
    axes.set_ylim(bottom=0)
    axes.locator_params(nbins=3)
