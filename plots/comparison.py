"""Figures that compare policies trace by trace: performance, throughput, breakdown of time, and traffic."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from g10sim.errors import ConfigError
from g10sim.looks import RED, SKY, WHITE, Look, distinct
from g10sim.places import direction
from g10sim.plots import panels, style
from g10sim.results.columns import OK, TITLES, traffic
from g10sim.results.reading import of_cell, reported_kernels
from g10sim.results.seeds import over_seeds

_TIMES = {
    "overlap_cycles": Look(SKY, "....", label="compute, pages moving"),
    "compute_cycles": Look(WHITE, label="compute"),
    "stall_cycles": Look(RED, "////", label="stall"),
}
_GB = 1e9
_NAME_CHARACTERS = 11, 26  # of the room for names below stacks, at least, and of a line
_STACK_WIDTH = 0.78
_MEAN = "mean"
"""Name of what stands for all traces."""


def fig11(results: pd.DataFrame, *, whole: pd.DataFrame | None = None) -> Figure:
    """Draw performance, a bar for each policy and trace; the line at 1 is unlimited GPU memory.

    Dots are the bounds of policies without recomputation. Of several seeds bars are the mean, with its
    interval. The last group is the geometric mean of the traces that all these policies run, in the
    ``whole`` results where these are one page of them.
    """
    best = style.best_possible(results, "performance")
    shown = _means(style.without_ideal(results), "performance")
    policies, traces = style.looks(shown), style.trace_names(shown)
    every = shown if whole is None else _means(style.without_ideal(whole), "performance")
    mean, count = _over_traces(every)
    if count > 1:
        shown = pd.concat([shown, mean])
        traces.append(style.TraceName(_MEAN, "geometric mean", count, "traces"))
    xlabel, ylabel = style.below(results, "model, batch size"), TITLES["performance"]
    legend = panels.handles(policies.values(), shown, ideal=True, bound=bool(best))
    made = panels.bars_in_rows(
        shown, traces, ("policy", policies), "performance", ylabel=ylabel, xlabel=xlabel, legend=legend
    )
    for axes, row in zip(made.axes, panels.trace_rows(traces), strict=True):
        panels.draw_ideal(axes)
        panels.draw_steps(axes, [best.get(trace.trace) for trace in row], panels.BOUND_LOOK)
        axes.set(ylim=(0, 1.08), yticks=[0, 0.25, 0.5, 0.75, 1])
    return made.figure


fig11b = fig11


def fig12(results: pd.DataFrame) -> Figure:
    """Draw what the execution time of each policy and trace goes to, in shares; of several seeds the mean."""
    times = results[list(_TIMES)]
    shares = results.assign(**100 * times.div(times.sum(axis="columns"), axis="index"))
    figure = _draw_stacks(shares, _TIMES, ylabel="share of the execution time (%)", shared=True)
    for axes in figure.axes:
        axes.set(ylim=(0, 100), yticks=[0, 50, 100])
    return figure


def fig13(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw kernels from the least to the most slowed down, a line per policy, a panel per trace.

    Of every kernel of the reported iteration: its time, with its stalls, over its own duration. Kernels of
    less than a cycle are left out.
    """
    shown = style.without_ideal(results)
    policies, traces = style.looks(shown), style.trace_names(shown)
    lines = {policy: replace(look, marker="") for policy, look in policies.items()}
    made = panels.panels(
        [trace.title for trace in traces],
        columns=3,
        row_inches=1.35,
        legend=panels.handles(lines.values(), lines=True),
        legend_columns=3,
        xlabel=style.below(results, "kernels, least slowed down first (%)"),
        ylabel="kernel time (own duration = 1)",
        shared="xy",
    )
    cells = style.cells_by(shown[shown["status"] == OK], "trace", "policy")
    for axes, trace in zip(made.axes, traces, strict=True):
        for policy in [policy for policy in lines if (trace.trace, policy) in cells]:
            cell = cells[trace.trace, policy]
            some = reported_kernels(of_cell(kernels, cell), cell).query("compute_cycles > 0")
            slowdowns = ((some["end"] - some["start"]) / some["compute_cycles"]).sort_values()
            axes.plot(np.linspace(0, 100, len(some)), slowdowns, linewidth=1.2, **lines[policy].curve())
        axes.set(xlim=(0, 100), xticks=[0, 50, 100])
        panels.logarithmic(axes, y=True)
    return made.figure


def fig14(results: pd.DataFrame) -> Figure:
    """Draw the bytes that move between memories, by direction; every panel has its own scale.

    Of several seeds parts of a bar are means, each with its interval.
    """
    parts = distinct({column: direction(*ends) for column, ends in traffic(results).items()})
    scaled = results.assign(**results[list(parts)] / _GB)
    figure = _draw_stacks(scaled, parts, ylabel="traffic per iteration (GB)", shared=False)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=4)
    return figure


def fig15(results: pd.DataFrame) -> Figure:
    """Draw throughput, a bar per batch size and policy, a panel per model; dashes are unlimited memory.

    Dots are the bounds of policies without recomputation. Of several seeds bars are the mean, with its
    interval.
    """
    best = style.best_possible(results, "samples_per_s")
    results = _means(results, "samples_per_s")
    shown = style.without_ideal(results)
    policies = style.looks(shown)
    models = style.by_model(style.trace_names(results))
    widest = max(map(len, models.values())) * len(policies)
    columns = 2 if widest <= panels.BESIDE_EACH_OTHER else 1
    legend = panels.handles(policies.values(), shown, ideal=True, bound=bool(best))
    xlabel, ylabel = style.below(results, "batch size"), TITLES["samples_per_s"]
    made = panels.panels(
        list(models), columns=columns, row_inches=1.25, legend=legend, xlabel=xlabel, ylabel=ylabel
    )
    cells = style.cells_by(results, "trace", "policy")
    for axes, traces in zip(made.axes, models.values(), strict=True):
        batches = {trace.trace: trace.batch.replace(" ", "\n") for trace in traces}
        panels.draw_groups(axes, cells, batches, policies, "samples_per_s")
        ideal = [cells.get((trace.trace, style.IDEAL), {"status": ""}) for trace in traces]
        reached = [cell["samples_per_s"] if cell["status"] == OK else None for cell in ideal]
        panels.draw_steps(axes, reached, panels.ideal_look())
        panels.draw_steps(axes, [best.get(trace.trace) for trace in traces], panels.BOUND_LOOK)
        axes.set_xlim(-0.6, len(traces) - 0.4)
        axes.locator_params(axis="y", nbins=4)
    return made.figure


def bound(results: pd.DataFrame) -> Figure:
    """Draw the bound over the time of each policy, a bar for each policy and trace; the line is the bound.

    Policies that no bound holds for are left out. Raises ConfigError where it holds for none.
    """
    shown = style.without_ideal(results)
    bounded = shown["of_bound"].notna() if "of_bound" in shown else pd.Series(False, index=shown.index)
    compared = set(shown.loc[bounded, "policy"])
    if not compared:
        raise ConfigError("results: found no cell with a bound; allowed: runs of one job with paged memory")
    shown = shown[bounded | (shown["policy"].isin(compared) & (shown["status"] != OK))]
    policies = style.looks(shown)
    bars, traces = ("policy", policies), style.trace_names(shown)
    xlabel, ylabel = style.below(results, "model, batch size"), "bound / time (best = 1)"
    legend = panels.handles(policies.values(), shown, bound=True)
    made = panels.bars_in_rows(shown, traces, bars, "of_bound", ylabel=ylabel, xlabel=xlabel, legend=legend)
    for axes in made.axes:
        panels.draw_level(axes, panels.BOUND_LOOK)
        axes.set(ylim=(0, 1.08), yticks=[0, 0.25, 0.5, 0.75, 1])
    return made.figure


def _means(results: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return results with the means of some columns over seeds and their intervals, if there are several."""
    seeds = results["seed"].nunique() if "seed" in results else 1
    return over_seeds(results, columns) if seeds > 1 else results


def _over_traces(cells: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return a row per policy with its geometric mean of performance, and over how many traces that is."""
    ran = cells[cells["status"] == OK]
    table = ran.pivot_table("performance", "trace", "policy", sort=False).dropna()
    means = np.exp(np.log(table).mean()).rename("performance").reset_index()
    return means.assign(trace=_MEAN, status=OK), len(table)


def _draw_stacks(results: pd.DataFrame, parts: Mapping[str, Look], *, ylabel: str, shared: bool) -> Figure:
    """Draw columns stacked in their order, a panel per trace, a stack per policy but the ideal one.

    With ``shared`` all panels have the same scale.
    """
    shown = _means(style.without_ideal(results), *parts)
    policies, traces = style.looks(shown), style.trace_names(shown)
    names = [textwrap.fill(look.label, _NAME_CHARACTERS[1]) for look in policies.values()]
    longest = max(len(line) for name in names for line in name.splitlines())
    names_inches = panels.CHARACTER_INCHES * max(longest, _NAME_CHARACTERS[0])
    made = panels.panels(
        [trace.title for trace in traces],
        columns=3,
        row_inches=1.15 + names_inches / -(-len(traces) // 3),
        legend=panels.handles(parts.values(), shown),
        legend_columns=2,
        xlabel=style.below(results),
        ylabel=ylabel,
        shared="xy" if shared else "x",
    )
    cells = style.cells_by(shown, "trace", "policy")
    for axes, trace in zip(made.axes, traces, strict=True):
        for place, policy in enumerate(policies):
            cell = cells.get((trace.trace, policy))
            if cell is not None and cell["status"] == OK:
                bottom = 0.0
                for column, look in parts.items():
                    if cell[column]:
                        axes.bar(place, cell[column], _STACK_WIDTH, bottom=bottom, **look.bar())
                        bottom += cell[column]
                        panels.draw_interval(axes, place, bottom, panels.spread(cell, column))
            elif cell is not None:
                panels.mark_missing(axes, place, cell["status"])
        axes.set_xticks(range(len(policies)), names, rotation=90)
        axes.set_xlim(-0.6, len(policies) - 0.4)
        axes.tick_params(axis="x", length=0)
    return made.figure
