"""Memory and performance of offloading designs, by network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.plots.bars import bar_places, draw_ideal, mark_handles, mark_missing
from g10sim.plots.designs import short_name
from g10sim.plots.panels import panels
from g10sim.plots.style import BLACK, Look, hatched, styled
from g10sim.plots.traces import OK, Cells, TraceName, cells_by, in_rows, trace_names, without_ideal
from g10sim.units import parse_bytes

_MEMORY = "system.gpu.memory"
_GIB = 2**30
_TRACES_PER_ROW = 5


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw peak GPU memory and performance below each other, a group of bars per trace, a bar per policy.

    Where GPU memory is swept, the smallest one counts, and is a dashed line. For what does not run in it, an
    empty bar shows the memory that it takes in a larger one.
    """
    shown = without_ideal(results)
    sizes = shown[_MEMORY].map(parse_bytes) if _MEMORY in shown else pd.Series(0, shown.index)
    counts = shown[sizes == sizes.min()]
    larger = shown[(sizes > sizes.min()) & (shown["status"] == OK)]
    policies = {
        policy: replace(look, label=short_name(policy))
        for policy, look in hatched(dict.fromkeys(counts["policy"])).items()
    }
    cells, others = cells_by(counts, "trace", "policy"), cells_by(larger, "trace", "policy")
    rows = in_rows(trace_names(shown), _TRACES_PER_ROW)
    made = panels(
        2 * len(rows),
        columns=1,
        row_inches=1.0,
        legend=[*(Patch(**look.bar()) for look in policies.values()), *mark_handles(counts)],
        legend_columns=3,
    )
    for number, traces in enumerate(rows):
        memory, performance = made.axes[2 * number : 2 * number + 2]
        bars = _Bars(traces, policies, cells)
        _draw_memory(memory, bars, others, sizes.min() / _GIB)
        _draw_performance(performance, bars)
        memory.set_xticks(range(len(traces)), [""] * len(traces))
        performance.set_xticks(range(len(traces)), [trace.label for trace in traces])
        for axes in (memory, performance):
            axes.tick_params(axis="x", length=0)
            axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
    return made.figure


@dataclass(frozen=True)
class _Bars:
    """Groups of bars: a group per trace, a bar per policy."""

    traces: Sequence[TraceName]
    policies: dict[str, Look]
    cells: Cells

    def places(self) -> Iterator[tuple[tuple[str, str], float, float, Look]]:
        """Key of a cell, where its bar stands, how wide it is and how it looks."""
        offsets, width = bar_places(len(self.policies))
        for group, trace in enumerate(self.traces):
            for offset, (policy, look) in zip(offsets, self.policies.items(), strict=True):
                yield (trace.trace, policy), group + offset, width, look


def _draw_memory(axes: Axes, bars: _Bars, larger: Cells, memory_gib: float) -> None:
    for key, place, width, look in bars.places():
        cell, other = bars.cells.get(key), larger.get(key)
        if cell is not None and cell["status"] == OK:
            axes.bar(place, cell["peak_gpu_bytes"] / _GIB, width, **look.bar())
        elif other is not None:
            empty = {**look.bar(), "facecolor": "none", "edgecolor": look.colour, "hatch": ""}
            axes.bar(place, other["peak_gpu_bytes"] / _GIB, width, **empty)
    if memory_gib:
        axes.axhline(memory_gib, color=BLACK, linestyle="--", linewidth=0.8)
    axes.set_ylabel("GPU memory\n(GiB)")


def _draw_performance(axes: Axes, bars: _Bars) -> None:
    for key, place, width, look in bars.places():
        cell = bars.cells.get(key)
        if cell is not None and cell["status"] == OK:
            axes.bar(place, cell["performance"], width, **look.bar())
        elif cell is not None:
            mark_missing(axes, place, cell["status"])
    draw_ideal(axes)
    axes.set_ylim(0, 1.08)
    axes.set_ylabel("performance\n(ideal = 1)")
