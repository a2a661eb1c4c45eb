"""Figures of what traces ask of memory: working sets and inactive periods, whatever the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.looks import BLUE, GREY, ORANGE, SKY, Look
from g10sim.plots import panels, style
from g10sim.results.columns import OK
from g10sim.results.reading import of_cell, seconds_per_cycle

_GIB, _MIB = 2**30, 2**20
_LEAST_GIB = 0.1
_STEPS = 120
_ALIVE, _IN_USE = Look(SKY, label="all live tensors"), Look(BLUE, label="active tensors")
_POOLS = (Look(GREY), Look(ORANGE, "////"), Look(BLUE), Look(SKY, "...."))
_PERIOD = "length of the inactive period (s)"


def fig2(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw memory of all live and of active tensors over the kernels; the dashes are the GPU's memory."""
    gpu_memory = Line2D([], [], label="GPU memory", **style.DASHES)
    legend = [*panels.handles([_ALIVE, _IN_USE]), gpu_memory]
    figure, shown = _over_kernels(
        results, working_sets, legend, legend_columns=3, ylabel="memory (GiB)", shared="y"
    )
    most = max(rows.groupby("kernel")["live_bytes"].sum().max() for _, rows in shown) / _GIB
    gpu_gib = float((results["footprint_bytes"] / results["oversubscription"]).iloc[0]) / _GIB
    for axes, rows in shown:
        for column, look in (("live_bytes", _ALIVE), ("active_bytes", _IN_USE)):
            drawn = peaks(rows, column).sum(axis="columns")
            axes.fill_between(drawn.index, drawn, step="mid", linewidth=0, facecolor=look.colour)
        axes.axhline(gpu_gib, **style.DASHES)
        axes.set_xlim(0, rows["kernel"].max())
        panels.logarithmic(axes, y=True)
        axes.set_ylim(_LEAST_GIB, 1.5 * max(most, gpu_gib))
        axes.locator_params(axis="x", nbins=3)
    return figure


def fig20(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw the bytes of living tensors by kind over the kernels of an iteration."""
    return _draw_by_kind(results, working_sets, "live_bytes", "live tensors (GiB)")


def fig21(results: pd.DataFrame, working_sets: pd.DataFrame) -> Figure:
    """Draw the bytes of the running kernel's tensors by kind over the kernels of an iteration."""
    return _draw_by_kind(results, working_sets, "active_bytes", "active tensors (GiB)")


def fig3(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> Figure:
    """Draw the share of inactive periods that are no longer than so long, a line per batch size."""
    periods = _periods(results, inactive_periods)
    models = style.by_model(style.trace_names(style.that_ran(results)))
    ylabel = "inactive periods (%)"
    made = panels.panels(list(models), row_inches=1.35, xlabel=_PERIOD, ylabel=ylabel, shared="xy")
    for axes, traces in zip(made.axes, models.values(), strict=True):
        lines = style.series(trace.batch for trace in traces)
        for trace, look in zip(traces, lines.values(), strict=True):
            lengths = np.sort(periods[trace.trace]["seconds"].to_numpy())
            shares = 100 * np.arange(1, len(lengths) + 1) / len(lengths)
            axes.plot(lengths, shares, drawstyle="steps-post", **{**look.curve(), "marker": ""})
        panels.logarithmic(axes, x=True)
        axes.set_ylim(0, 100)
        axes.legend(title="batch", loc="upper left", title_fontsize="small", fontsize="small")
    return made.figure


def fig4(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> Figure:
    """Draw size over length of inactive periods, a point each, by kind of tensor, a panel per trace."""
    periods = _periods(results, inactive_periods)
    traces = style.trace_names(style.that_ran(results))
    looks = {kind: look for kind, look in style.KINDS.items() if kind in set(inactive_periods["kind"])}
    titles, ylabel = [trace.line for trace in traces], "size of the tensor (MiB)"
    legend = [Line2D([], [], **{**look.curve(), "linestyle": "none"}) for look in looks.values()]
    made = panels.panels(titles, row_inches=1.4, legend=legend, xlabel=_PERIOD, ylabel=ylabel, shared="xy")
    for axes, trace in zip(made.axes, traces, strict=True):
        for kind, look in looks.items():
            of_kind = periods[trace.trace][periods[trace.trace]["kind"] == kind]
            points = {**look.curve(), "linestyle": "none", "markersize": 1.6, "markeredgewidth": 0.3}
            # Thousands of points: as paths they make a PDF slow.
            axes.plot(of_kind["seconds"], of_kind["size_bytes"] / _MIB, rasterized=True, **points)
        panels.logarithmic(axes, x=True, y=True)
    return made.figure


def pools(results: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw footprint over load for each memory pool and trace; the line at 1 is the least there can be."""
    shown = table.merge(results[["cell", "trace"]], on="cell").drop_duplicates(["trace", "pool"])
    shown = shown.assign(status=OK, ratio=shown["footprint_bytes"] / shown["load_bytes"])
    names = dict.fromkeys(shown["pool"])
    looks = {name: replace(_POOLS[place % len(_POOLS)], label=name) for place, name in enumerate(names)}
    made = panels.bars_in_rows(
        shown,
        style.trace_names(results),
        ("pool", looks),
        "ratio",
        ylabel="footprint / load",
        xlabel=style.below(results, "model, batch size"),
        legend=panels.handles(looks.values()),
        legend_columns=2,
    )
    for axes in made.axes:
        axes.axhline(1, **style.DASHES)
        axes.set_ylim(0.9, max(1.1, 1.03 * shown["ratio"].max()))
    return made.figure


def peaks(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Make a table of a column in GiB: a row per kernel (index), a column per kind of tensor.

    Of more kernels than a panel has room for, each row is the one that needs the most of some neighbours.
    """
    table = rows.pivot_table(index="kernel", columns="kind", values=column, aggfunc="sum") / _GIB
    places = pd.Series(range(len(table)), index=table.index) * _STEPS // len(table)
    return table.loc[table.sum(axis="columns").groupby(places).idxmax()]


def _draw_by_kind(results: pd.DataFrame, working_sets: pd.DataFrame, column: str, ylabel: str) -> Figure:
    """Draw a column of the table, in GiB, as areas of the kinds of tensors on top of each other."""
    most = working_sets.groupby("kind")[column].max()
    looks = {kind: look for kind, look in style.KINDS.items() if most.get(kind, 0)}
    figure, shown = _over_kernels(results, working_sets, panels.handles(looks.values()), ylabel=ylabel)
    for axes, rows in shown:
        table = peaks(rows, column)
        bottom = 0 * table.index
        for kind in [kind for kind in looks if kind in table]:
            top = bottom + table[kind].to_numpy()
            axes.fill_between(table.index, bottom, top, step="mid", linewidth=0, **looks[kind].bar())
            bottom = top
        axes.set_xlim(0, table.index[-1])
        axes.set_ylim(bottom=0)
        axes.locator_params(nbins=3)
    return figure


def _over_kernels(
    results: pd.DataFrame, working_sets: pd.DataFrame, legend: Sequence[Artist], **options: Any
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """Make a panel per trace, in which micro-batches are marked; return each with the rows of its trace."""
    found = [(trace, of_cell(working_sets, cell)) for trace, cell in _traces(results)]
    begins = [panels.micro_batches_begin(rows, "kernel") for _, rows in found]
    titles, xlabel = [trace.title for trace, _ in found], "kernel (in the order of the iteration)"
    entries = [*legend, *panels.beginnings_legend(chain(*begins))]
    made = panels.panels(titles, columns=3, row_inches=1.25, legend=entries, xlabel=xlabel, **options)
    for axes, places in zip(made.axes, begins, strict=True):
        panels.mark_beginnings(axes, places)
    return made.figure, [(axes, rows) for axes, (_, rows) in zip(made.axes, found, strict=True)]


def _traces(results: pd.DataFrame) -> Iterator[tuple[style.TraceName, dict[str, Any]]]:
    """Yield each trace with the first of its cells that ran: the tables depend on the trace alone."""
    ran = style.that_ran(results)
    cells = {cell["trace"]: cell for cell in style.records(ran.drop_duplicates("trace"))}
    for trace in style.trace_names(ran):
        yield trace, cells[trace.trace]


def _periods(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the inactive periods of each trace with their length, if any, in a column ``seconds``."""
    some = inactive_periods[inactive_periods["cycles"] > 0]
    found = {}
    for trace, cell in _traces(results):
        rows = of_cell(some, cell)
        found[trace.trace] = rows.assign(seconds=rows["cycles"] * seconds_per_cycle(cell))
    return found
