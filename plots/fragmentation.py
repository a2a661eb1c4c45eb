"""How much more memory a design of contiguous memory needs than is in use, by allocator and order."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import bar_places, mark_handles, mark_missing
from g10sim.plots.designs import swept_column
from g10sim.plots.panels import panels
from g10sim.plots.style import hatched, styled
from g10sim.plots.traces import OK, cells_by, trace_names, without_ideal
from g10sim.units import parse_bytes


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace, with a group of bars per mode and order, a bar per allocator.

    A bar is the smallest of the swept GPU memories in which the cell runs, over the most memory in use there:
    1 is memory without a gap.
    """
    shown = _least_memories(without_ideal(results))
    mode, order, allocator = (swept_column(shown, name) for name in ("mode", "order", "allocator"))
    shown["group"] = [
        f"{one}\n{other}".replace("_", "\n") for one, other in zip(shown[mode], shown[order], strict=True)
    ]
    groups, traces = list(dict.fromkeys(shown["group"])), trace_names(shown)
    allocators = {
        name: replace(look, label=name.replace("_", " "))
        for name, look in hatched(dict.fromkeys(shown[allocator])).items()
    }
    made = panels(
        len(traces),
        columns=1,
        row_inches=1.5,
        legend=[*(Patch(**look.bar()) for look in allocators.values()), *mark_handles(shown)],
        legend_columns=3,
        ylabel="memory needed\n/ memory in use",
        sharex=True,
    )
    cells = cells_by(shown, "trace", "group", allocator)
    offsets, width = bar_places(len(allocators))
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        for place, group in enumerate(groups):
            for offset, (name, look) in zip(offsets, allocators.items(), strict=True):
                cell = cells.get((trace.trace, group, name))
                if cell is not None and cell["status"] == OK:
                    axes.bar(place + offset, cell["needed"], width, **look.bar())
                elif cell is not None:
                    mark_missing(axes, place + offset, cell["status"])
        axes.set_xticks(range(len(groups)), groups)
        axes.tick_params(axis="x", length=0)
        axes.set_ylim(1, 1.05 * max(1.1, shown["needed"].max()))
    return made.figure


def _least_memories(results: pd.DataFrame) -> pd.DataFrame:
    """Of the cells that differ in GPU memory alone, keep the one of the smallest in which it runs.

    ``needed`` is that memory over the most that is in use. Where none runs, one that did not is kept.
    """
    column = swept_column(results, "system.gpu.memory")
    sizes = results[column].map(parse_bytes)
    found = results.assign(
        size=sizes, fails=results["status"] != OK, needed=sizes / results["peak_gpu_bytes"]
    )
    others = [
        name for name in found if name in ("trace", "policy", "seed") or str(name).startswith("policies.")
    ]
    return found.sort_values(["fails", "size"]).drop_duplicates(others).sort_values("cell")
