"""Memory that policies save for one training at a time, and the time that it costs."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from g10sim.plots.bars import mark_handles
from g10sim.plots.panels import panels
from g10sim.plots.saved import METRICS, draw_bars, saved_cells, saved_looks
from g10sim.plots.style import BASE_UVM, BLACK, styled
from g10sim.plots.traces import OK, TraceName, cells_by, in_rows, trace_names

_TRACES_PER_ROW = 5
_FREEING = BASE_UVM  # what it saves is the memory of dead tensors alone: with room it moves nothing
_HALF_GROUP = 0.46
_NARROW = 9
"""Characters of a line that has room under a group."""


@styled
def draw(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw, for each row of traces, a panel of what is saved and one of what it costs.

    Where there are results of ``base_uvm``, a line across a group is what freeing dead tensors saves.
    """
    cells = saved_cells(results, kernels)
    shown = cells[cells["policy"] != _FREEING]
    policies = saved_looks(shown["policy"])
    traces = sorted(trace_names(results), key=lambda trace: trace.batch_size)
    rows = in_rows(traces, _TRACES_PER_ROW)
    legend = [*(Patch(**look.bar()) for look in policies.values()), *mark_handles(shown)]
    freeing = cells[(cells["policy"] == _FREEING) & (cells["status"] == OK)].set_index("trace")["msr"]
    if len(freeing):
        legend.append(Line2D([], [], **_line("dead tensors freed, no swaps")))
    made = panels(len(METRICS) * len(rows), columns=1, row_inches=1.15, legend=legend, legend_columns=2)
    by_trace = cells_by(shown, "trace", "policy")
    for number, axes in enumerate(made.axes):
        metric, traces = list(METRICS)[number % len(METRICS)], rows[number // len(METRICS)]
        groups = [
            {
                policy: by_trace[trace.trace, policy]
                for policy in policies
                if (trace.trace, policy) in by_trace
            }
            for trace in traces
        ]
        draw_bars(axes, metric, groups, policies)
        if metric == "msr":
            _draw_freeing(axes, traces, freeing)
        axes.set_xlim(-0.5, max(map(len, rows)) - 0.5)
        axes.set_xticks(range(len(traces)), [_ticked(trace) for trace in traces])
        axes.set_ylabel(METRICS[metric].replace(" (", "\n("))
    made.figure.align_ylabels()
    return made.figure


def _draw_freeing(axes: Axes, traces: list[TraceName], freeing: pd.Series) -> None:
    for group, trace in enumerate(traces):
        if trace.trace in freeing.index:
            ends = [group - _HALF_GROUP, group + _HALF_GROUP]
            axes.plot(ends, [freeing[trace.trace]] * 2, **_line(""))


def _line(label: str) -> dict[str, Any]:
    return {"color": BLACK, "linestyle": "--", "linewidth": 1.0, "label": label}


def _ticked(trace: TraceName) -> str:
    """Name of a trace in narrow lines: five of them lie beside each other."""
    model = trace.model if len(trace.model) <= _NARROW else trace.model.replace("-", "-\n", 1)
    return f"{model}\nbatch {trace.batch_size}"
