"""Figures of memory that policies save and the time that it costs: MSR and EOR of TENSILE in percent."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from g10sim.looks import BLACK, Look
from g10sim.plots import style
from g10sim.plots.panels import draw_groups, handles, mark_missing, panels
from g10sim.results.columns import OK
from g10sim.results.legends import Design, designs
from g10sim.results.savings import savings as memory_saved
from g10sim.units import parse_bytes

_METRICS = {"msr": "memory saved\n(%)", "eor": "time added\n(%)"}
_WORDS = {
    "across_iterations": {"False": "within iterations"},
    "recomputation": {"False": "swaps only"},
    "swap_out_barrier": {"True": "with barrier"},
    "replan_threshold": {"None": "first plan kept"},
    "score": {name: name.upper() for name in ("doa", "aoa", "wdoa", "swdoa")} | {"combined": "combined"},
    "mode": {"conv": "convolutions", "all": "all layers", "dyn": "dynamic"},
}
_FREED: dict[str, Any] = {"color": BLACK, "linestyle": "--", "linewidth": 1.0}
_HALF_GROUP = 0.46
_TRACES_PER_ROW, _COLUMNS = 5, 3
_NARROW = 9
"""Characters of a line that has room under a group."""
_MIX = "mixed"
_MEMORY = "system.gpu.memory"
_STEP_ASIDE = 0.012
"""Distance of marks alongside each other, as a share of the axis."""


def savings(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw, for each row of traces, a panel of the memory saved and one of the time added.

    Where there are results of ``base_uvm``, a line across a group is what freeing dead tensors saves.
    """
    cells = _saved(results, kernels)
    # With room, Base UVM moves nothing: what it saves is the memory of dead tensors alone.
    shown = cells[cells["policy"] != style.BASE_UVM]
    policies = saved_looks(shown)
    rows = style.in_rows(
        sorted(style.trace_names(results), key=lambda trace: trace.batch_size), _TRACES_PER_ROW
    )
    freed = cells[(cells["policy"] == style.BASE_UVM) & (cells["status"] == OK)].set_index("trace")["msr"]
    legend = handles(policies.values(), shown)
    if len(freed):
        legend.append(Line2D([], [], label="dead tensors freed, no swaps", **_FREED))
    made = panels(
        [""] * len(_METRICS) * len(rows), columns=1, row_inches=1.15, legend=legend, legend_columns=2
    )
    by_trace = style.cells_by(shown, "trace", "policy")
    for axes, (traces, metric) in zip(made.axes, product(rows, _METRICS), strict=True):
        draw_groups(axes, by_trace, {trace.trace: _ticked(trace) for trace in traces}, policies, metric)
        for group, trace in enumerate(traces):
            if metric == "msr" and trace.trace in freed:
                axes.plot([group - _HALF_GROUP, group + _HALF_GROUP], [freed[trace.trace]] * 2, **_FREED)
        axes.set(xlim=(-0.5, len(rows[0]) - 0.5), ylabel=_METRICS[metric])
    made.figure.align_ylabels()
    return made.figure


def savings_jobs(results: pd.DataFrame, kernels: pd.DataFrame) -> Figure:
    """Draw a panel per network with a group of bars per number of jobs: memory saved, then time added."""
    cells = _saved(results, kernels)
    policies = saved_looks(cells)
    names = list(dict.fromkeys(cells["model"]))
    columns = min(_COLUMNS, len(names))
    places = -(-len(names) // columns) * columns
    titles = [style.model_name(name) if name else _MIX for name in names] + [""] * (places - len(names))
    titles, legend = titles * len(_METRICS), handles(policies.values(), cells)
    made = panels(titles, columns=columns, row_inches=0.95, legend=legend, legend_columns=2, xlabel="jobs")
    for number, axes in enumerate(made.axes):
        metric, place = list(_METRICS)[number // places], number % places
        if place >= len(names):
            axes.set_axis_off()
            continue
        shown = cells[cells["model"] == names[place]]
        counts = {count: str(count) for count in sorted(set(shown["jobs"]))}
        draw_groups(axes, style.cells_by(shown, "jobs", "policy"), counts, policies, metric)
        axes.set_xlim(-0.5, len(counts) - 0.5)
        if metric == "msr":
            axes.set_ylim(0, 100)
        axes.set_ylabel("" if place % columns else _METRICS[metric])
    made.figure.align_ylabels()
    return made.figure


def swaps(results: pd.DataFrame) -> Figure:
    """Draw how much longer an iteration takes than with room for everything, over GPU memory.

    A panel per trace with a line per policy; cells that did not run are marked.
    """
    given = style.without_ideal(results)
    given = given.assign(
        gib=given[style.swept_column(given, _MEMORY)].map(parse_bytes) / 2**30,
        overhead=100 * (given["exec_cycles"] / given["ideal_cycles"] - 1),
    )
    style.that_ran(given)
    lines = style.series_of_designs(given, _in_words)
    traces, step = style.trace_names(given), _STEP_ASIDE * (given["gib"].max() - given["gib"].min())
    # Markers are hollow to be seen where those of others lie on them.
    hollow: dict[str, Any] = {"markerfacecolor": "none", "markersize": 4.5}
    titles, xlabel = [trace.line for trace in traces], "GPU memory (GiB)"
    legend = [*(Line2D([], [], **look.curve(), **hollow) for look in lines.values()), *handles([], given)]
    made = panels(
        titles, row_inches=1.4, legend=legend, legend_columns=3, xlabel=xlabel, ylabel="overhead (%)"
    )
    for axes, trace in zip(made.axes, traces, strict=True):
        for number, (policy, look) in enumerate(lines.items()):
            cells = given[(given["trace"] == trace.trace) & (given["policy"] == policy)].sort_values("gib")
            ran = cells[cells["status"] == OK]
            axes.plot(ran["gib"], ran["overhead"], **look.curve(), **hollow)
            aside = step * (number - (len(lines) - 1) / 2)
            missing = cells[cells["status"] != OK]
            for gib, status in zip(missing["gib"], missing["status"], strict=True):
                mark_missing(axes, gib + aside, status, look.colour)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=-0.06 * axes.get_ylim()[1])
    return made.figure


def saved_looks(results: pd.DataFrame) -> dict[str, Look]:
    """Return a look for each policy, with its parameters in words where there are any for them."""
    labels = {policy: _in_words(design) for policy, design in designs(results).items()}
    return {policy: replace(look, label=labels[policy]) for policy, look in style.looks(results).items()}


def _saved(results: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Return a row per cell of every policy but ``ideal``: how it ended, MSR and EOR in percent.

    Columns: ``cell``, ``policy``, ``status``, ``trace`` (of the first job), ``model`` (empty where jobs have
    several), ``jobs``, ``msr`` and ``eor``, empty where it did not run. Raises ConfigError as
    ``memory_saved`` does, and where there is no policy but ``ideal``.
    """
    rows = style.without_ideal(results).groupby("cell", sort=False)
    cells = rows[["policy", "status", "trace", "model"]].first().assign(jobs=rows.size())
    cells.loc[rows["model"].nunique() > 1, "model"] = ""
    found = memory_saved(results, style.IDEAL, kernels).set_index("cell")[list(_METRICS)] * 100
    return cells.join(found).reset_index()


def _in_words(design: Design) -> str:
    """Return the name of a policy with its parameters in words where there are any for them."""
    pairs, words = dict(design.parameters), [design.label]
    if "prediction_error" in pairs and pairs.get("replan_threshold") == "None":
        words.append("cold start")
        del pairs["prediction_error"], pairs["replan_threshold"]
    words += [_WORDS.get(key, {}).get(value, f"{key}={value}") for key, value in pairs.items()]
    return ", ".join(words)


def _ticked(trace: style.TraceName) -> str:
    """Return the name of a trace in narrow lines: five of them lie next to each other."""
    model = trace.model if len(trace.model) <= _NARROW else trace.model.replace("-", "-\n", 1)
    return f"{model}\nbatch {trace.batch_size}"
