"""Figures of one cell: memory in use, one iteration over time, and what its kernels waited for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g10sim.errors import ConfigError
from g10sim.looks import BLACK, BLUE, GREEN, SKY, Look, distinct
from g10sim.places import direction, level
from g10sim.plots import panels
from g10sim.plots.style import model_name, new_figure
from g10sim.results import reading
from g10sim.results.columns import memory_levels, stall_reasons

_GIB = 2**30
_GPU_LINES = ("-", "--", "-.", ":")
_COMPUTE, _STALL = Look(GREEN, label="computing"), Look(BLACK, label="stalled")
_BINS_OF_TIMELINE, _BINS_OF_STALLS = 300, 60
_ROW_INCHES = 0.3
_LONGEST_KERNELS = 8


def memory(results: pd.DataFrame, table: pd.DataFrame, *, cell: int | None = None) -> Figure:
    """Draw the bytes in use at the end of every kernel of all iterations, and the size of GPU memory."""
    row = reading.row_of_cell(results, cell)
    used = reading.of_cell(table, row)
    made = panels.panels(
        ["", ""], columns=1, row_inches=1.05, xlabel="time (s)", ylabel="memory in use (GiB)", shared="x"
    )
    gpu_axes, other_axes = made.axes
    second = reading.seconds_per_cycle(row)
    for place, (gpu, of_gpu) in enumerate(used.groupby("gpu")):
        name = "GPU" if used["gpu"].nunique() == 1 else f"GPU {gpu}"
        line = _GPU_LINES[place // 2 % len(_GPU_LINES)]
        look = Look((BLUE, SKY)[place % 2], marker="", line=line, label=name)
        gpu_axes.step(of_gpu["time"] * second, of_gpu["gpu_bytes"] / _GIB, where="post", **look.curve())
    size = row["footprint_bytes"] / row["oversubscription"] / _GIB
    gpu_axes.axhline(size, color=BLACK, linestyle="--", linewidth=0.8, label="size of GPU memory")
    every = used.sort_values("time", kind="stable")
    levels = {column: level(word) for column, word in memory_levels(every).items()}
    for column, look in distinct(levels).items():
        shown = {**look.curve(), "marker": ""}
        other_axes.step(every["time"] * second, every[column] / _GIB, where="post", **shown)
    for axes in made.axes:
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
    gpu_axes.set_ylim(0, 1.08 * max(size, used["gpu_bytes"].max() / _GIB))
    legend = [handle for axes in made.axes for handle in axes.get_legend_handles_labels()[0]]
    made.figure.legend(handles=panels.row_by_row(legend, 4), loc="outside upper center", ncols=4)
    return made.figure


def timeline(
    results: pd.DataFrame, kernels: pd.DataFrame, migrations: pd.DataFrame, *, cell: int | None = None
) -> Figure:
    """Draw a row for each activity; its height is the share of time, in slices of 1/300 of the time shown.

    That is the reported iteration; of several jobs, from the first one that starts to the last that ends.
    Lines mark where micro-batches begin, if one job runs.
    """
    jobs = _reported(reading.rows_of_cell(results, cell), kernels)
    every = pd.concat([shown for _, shown in jobs])
    second = reading.seconds_per_cycle(jobs[0][0])
    edges, times = _slices(every, second, _BINS_OF_TIMELINE)
    begins = panels.micro_batches_begin(every, "start") if len(jobs) == 1 else []
    places = [(start - edges[0]) * second for start in begins]
    rows = []
    for row, shown in jobs:
        waited = shown["start"] + shown["stall_cycles"]
        for look, starts, ends in ((_COMPUTE, waited, shown["end"]), (_STALL, shown["start"], waited)):
            own = look if len(jobs) == 1 else replace(look, label=f"job {int(row['job'])}\n{look.label}")
            rows.append((own, reading.busy_share(starts, ends, edges)))
    moves = migrations[migrations["cell"] == jobs[0][0]["cell"]] if "cell" in migrations else migrations
    rows += _transfers(moves[(moves["end"] > edges[0]) & (moves["start"] < edges[-1])], edges)
    figure = new_figure(0.45 + _ROW_INCHES * len(rows))
    grid = figure.subplots(len(rows), 1, sharex=True, squeeze=False)
    for axes, (look, shares) in zip(grid[:, 0], rows, strict=True):
        axes.stairs(shares, times, fill=True, facecolor=look.colour, hatch=look.hatch, linewidth=0)
        axes.set(ylim=(0, 1), yticks=[])
        axes.set_ylabel(look.label, rotation=0, ha="right", va="center", color=BLACK)
        axes.tick_params(axis="x", length=0)
        panels.mark_beginnings(axes, places)
    grid[-1, 0].set(xlabel="time in the iteration (s)", xlim=(0, times[-1]))
    if places:
        figure.legend(handles=panels.beginnings_legend(places), loc="outside upper center")
    return figure


def _transfers(moves: pd.DataFrame, edges: list[float]) -> list[tuple[Look, list[float]]]:
    """Return a row for each direction in which something moves."""
    ends = set(zip(moves["source"], moves["target"], strict=True))
    arriving_first = sorted(ends, key=lambda pair: (pair[0] == "NONE", pair[1] != "GPU", pair))
    looks = {pair: direction(*pair) for pair in arriving_first if pair[1] != "NONE"}
    rows = []
    for (source, target), look in distinct(looks).items():
        moved = moves[(moves["source"] == source) & (moves["target"] == target)]
        label = f"{look.label}\n{moved['size_bytes'].sum() / 1e9:.1f} GB"
        rows.append((replace(look, label=label), reading.busy_share(moved["start"], moved["end"], edges)))
    return rows


def stalls(results: pd.DataFrame, kernels: pd.DataFrame, *, cell: int | None = None) -> Figure:
    """Draw stalls by reason: share of time over the iteration, for each job, and the longest stalls of all.

    The stalls of a kernel lie before its computing, one reason after the other. Raises ConfigError
    where no kernel stalled.
    """
    jobs = _reported(reading.rows_of_cell(results, cell), kernels)
    every = pd.concat([shown for _, shown in jobs], ignore_index=True)
    second, reasons = reading.seconds_per_cycle(jobs[0][0]), stall_reasons(every)
    looks = distinct({column: reason.look for column, reason in reasons.items() if every[column].any()})
    if not looks:
        number = jobs[0][0]["cell"]
        raise ConfigError(f"cell {number}: found no stalls; allowed: a cell in which kernels stall")
    figure = new_figure(1.35 + 1.25 * len(jobs) + 0.13 * -(-len(looks) // 2))
    grid = figure.subplots(len(jobs) + 1, 1, height_ratios=(*[1] * len(jobs), 1.1), squeeze=False)[:, 0]
    for axes, (row, shown) in zip(grid, jobs, strict=False):
        _draw_over_time(axes, shown, looks, second)
        axes.set_title(f"job {int(row['job'])}: {model_name(row['model'])}" if len(jobs) > 1 else "")
    _draw_longest(grid[-1], every, looks, second)
    shares = every[list(looks)].sum() / sum(row["exec_cycles"] for row, _ in jobs)
    labelled = [replace(look, label=f"{look.label} {shares[column]:.1%}") for column, look in looks.items()]
    figure.legend(handles=panels.row_by_row(panels.handles(labelled), 2), loc="outside upper center", ncols=2)
    return figure


def _reported(rows: list[dict[str, Any]], kernels: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return each job of a cell with the kernels of its reported iteration."""
    return [(row, reading.reported_kernels(reading.of_cell(kernels, row), row)) for row in rows]


def _slices(kernels: pd.DataFrame, second: float, count: int) -> tuple[list[float], list[float]]:
    """Divide the time of some kernels: the edges of slices in cycles, and in seconds from the first."""
    start, end = int(kernels["start"].min()), int(kernels["end"].max())
    edges = [start + (end - start) * step / count for step in range(count + 1)]
    return edges, [(edge - start) * second for edge in edges]


def _draw_over_time(axes: Axes, shown: pd.DataFrame, looks: dict[str, Look], second: float) -> None:
    edges, times = _slices(shown, second, _BINS_OF_STALLS)
    floor, since = [0.0] * _BINS_OF_STALLS, shown["start"]
    for column, look in looks.items():
        until = since + shown[column]
        shares = [100 * share for share in reading.busy_share(since, until, edges)]
        plain: Any = {"facecolor": look.colour, "hatch": look.hatch}  # too narrow for edges
        axes.bar(times[:-1], shares, times[1] - times[0], bottom=floor, align="edge", linewidth=0, **plain)
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
        since = until
    axes.set(
        xlim=(0, times[-1]), ylim=(0, 100), xlabel="time in the iteration (s)", ylabel="stalled\n(% of time)"
    )


def _draw_longest(axes: Axes, shown: pd.DataFrame, looks: dict[str, Look], second: float) -> None:
    longest = shown[shown["stall_cycles"] > 0].nlargest(_LONGEST_KERNELS, "stall_cycles")
    places, floor = range(len(longest)), longest["stall_cycles"] * 0.0
    for column, look in looks.items():
        milliseconds = longest[column] * second * 1000
        axes.bar(places, milliseconds, 0.8, bottom=floor, **look.bar())
        floor = floor + milliseconds
    names = longest["kernel"].astype(str)
    several = "job" in shown and shown["job"].nunique() > 1
    axes.set_xticks(places, longest["job"].astype(str) + "." + names if several else names)
    axes.tick_params(axis="x", length=0)
    what = f"{'job.' if several else ''}kernel (those that stall longest)"
    axes.set(xlabel=what, ylabel="stall (ms)", ylim=(0, None))
