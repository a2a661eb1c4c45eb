"""Memory in use while one cell runs: GPU memory against its size, host memory, and the SSD."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from g10sim.plots.panels import panels
from g10sim.plots.style import BLACK, BLUE, GREY, ORANGE, SKY, styled
from g10sim.stats.one_cell import of_cell, row_of_cell, seconds_per_cycle

_GIB = 2**30
_GPU_LINES = ("-", "--", "-.", ":")


@styled
def draw(results: pd.DataFrame, memory: pd.DataFrame, *, cell: int | None = None) -> Figure:
    """Draw the bytes in use at the end of every kernel of all iterations, and the size of GPU memory."""
    row = row_of_cell(results, cell)
    levels = of_cell(memory, row)
    made = panels(2, columns=1, row_inches=1.05, xlabel="time (s)", ylabel="memory in use (GiB)", sharex=True)
    figure, (gpu_axes, other_axes) = made.figure, made.axes
    second = seconds_per_cycle(row)
    for place, (gpu, of_gpu) in enumerate(levels.groupby("gpu")):
        name = "GPU" if levels["gpu"].nunique() == 1 else f"GPU {gpu}"
        colour, line = (BLUE, SKY)[place % 2], _GPU_LINES[place // 2 % len(_GPU_LINES)]
        time = of_gpu["time"] * second
        gpu_axes.step(
            time, of_gpu["gpu_bytes"] / _GIB, where="post", color=colour, linestyle=line, label=name
        )
    size = row["footprint_bytes"] / row["oversubscription"] / _GIB
    gpu_axes.axhline(size, color=BLACK, linestyle="--", linewidth=0.8, label="size of GPU memory")
    every = levels.sort_values("time", kind="stable")
    for column, label, colour, line in (
        ("host_bytes", "host", ORANGE, "-"),
        ("flash_bytes", "SSD", GREY, "--"),
    ):
        time = every["time"] * second
        other_axes.step(time, every[column] / _GIB, where="post", color=colour, linestyle=line, label=label)
    for axes in made.axes:
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
    gpu_axes.set_ylim(0, 1.08 * max(size, levels["gpu_bytes"].max() / _GIB))
    handles = [handle for axes in made.axes for handle in axes.get_legend_handles_labels()[0]]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure
