"""Figures of performance over a swept quantity or a searched one: lines in panels."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.errors import ConfigError
from g10sim.looks import BLACK, BLUE, RED, Look
from g10sim.plots import style
from g10sim.plots.panels import BOUND_LOOK, Lines, Panels, draw_ideal, draw_lines, handles, label_some, panels
from g10sim.results.columns import OK, TITLES
from g10sim.results.seeds import over_seeds
from g10sim.units import parse_bytes, parse_rate

_METRIC = "performance"
_BEST = "best performance"
_STEP_ASIDE = 0.12
_SIMULATED = Look(BLUE, marker="o", label="simulated")
_ANSWER = Look(RED, marker="*", line="-", label="least that reaches it")
_SHORT = 5
"""Characters of labels of which five have room below a panel."""


@dataclass(frozen=True)
class Sweep:
    """The quantity on the horizontal axis: its column in the results, how to read a value, its label."""

    column: str
    read: Callable[[Any], float]
    label: str


_HOST_MEMORY = Sweep("system.host.memory", lambda text: parse_bytes(text) / 2**30, "host memory (GiB)")
_SSD_BANDWIDTH = Sweep(
    "system.ssd", lambda text: parse_rate(json.loads(text)["read_bandwidth"]) / 1e9, "SSD bandwidth (GB/s)"
)
_DRIVES = Sweep("system.ssd.drives", float, "drives of 3.2 GB/s")
_VARIATION = Sweep(
    "workload.variation.magnitude", lambda share: 100 * float(share), "variation of kernel times (±%)"
)


def fig16(results: pd.DataFrame) -> Figure:
    """Draw performance over host memory, a line per batch size, a panel per model."""
    return _per_batch_size(results, _HOST_MEMORY, bound=True).figure


def fig17(results: pd.DataFrame) -> Figure:
    """Draw performance over host memory, a line per policy, a panel per trace."""
    return _per_policy(results, _HOST_MEMORY)


def fig18(results: pd.DataFrame) -> Figure:
    """Draw performance over the bandwidth of the SSD, a line per policy, a panel per trace."""
    return _per_policy(results, _SSD_BANDWIDTH)


def flash_bandwidth(results: pd.DataFrame) -> Figure:
    """Draw performance over the number of drives of flash, a line per policy, a panel per trace."""
    return _per_policy(results, _DRIVES)


def fig19(results: pd.DataFrame) -> Figure:
    """Draw mean performance over the size of the variation, with 95% confidence intervals over seeds."""
    made = _per_batch_size(results, _VARIATION)
    least = results[_METRIC].min()
    for axes in made.axes:  # the intervals are narrow: from zero on they would not be seen
        axes.set_ylim(bottom=max(0, math.floor(10 * least - 0.5) / 10))
    return made.figure


def _per_policy(results: pd.DataFrame, sweep: Sweep) -> Figure:
    """Draw a panel per trace with a line per policy."""
    shown = _averaged(results, sweep)
    policies, traces = style.looks(shown), style.trace_names(shown)
    bounds = [_bound_line(shown, sweep, trace.trace, BOUND_LOOK) for trace in traces]
    lines = [
        [(look, _points(shown, sweep, trace=trace.trace, policy=key)) for key, look in policies.items()]
        + bound
        for trace, bound in zip(traces, bounds, strict=True)
    ]
    legend = [*policies.values(), *([BOUND_LOOK] if any(bounds) else [])]
    return _draw_panels(shown, sweep, [trace.line for trace in traces], lines, legend).figure


def _per_batch_size(results: pd.DataFrame, sweep: Sweep, *, bound: bool = False) -> Panels:
    """Draw a panel per model with a line per batch size, all of the first policy, and its ``bound``."""
    shown = _averaged(results, sweep)
    shown = shown[shown["policy"] == shown["policy"].iloc[0]]
    models, lines = style.by_model(style.trace_names(shown)), []
    for traces in models.values():
        pairs = zip(traces, style.series(trace.batch for trace in traces).values(), strict=True)
        panel: Lines = []
        for trace, look in pairs:
            panel.append((look, _points(shown, sweep, trace=trace.trace)))
            if bound:
                dots = replace(BOUND_LOOK, colour=look.colour)
                panel += _bound_line(shown, sweep, trace.trace, dots)
        lines.append(panel)
    has_bounds = any(look.line == BOUND_LOOK.line for drawn in lines for look, _ in drawn)
    legend = [replace(BOUND_LOOK, colour=BLACK)] if has_bounds else []
    made = _draw_panels(shown, sweep, [""] * len(models), lines, legend)
    for axes, model, drawn in zip(made.axes, models, lines, strict=True):
        batches = [look for look, _ in drawn if look.label != BOUND_LOOK.label]
        axes.legend(
            handles=handles(batches, lines=True),
            title=f"{model}, batch",
            title_fontsize="medium",
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=min(3, len(batches)),
            columnspacing=0.6,
            handletextpad=0.3,
        )
    return made


def _averaged(results: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """Average over seeds, with intervals. Raises ConfigError where nothing was swept."""
    style.swept_column(results, sweep.column)
    shown = style.without_ideal(results)
    return over_seeds(shown.assign(**{_BEST: style.at_bound(shown, _METRIC)}), [_METRIC, _BEST])


def _bound_line(shown: pd.DataFrame, sweep: Sweep, trace: str, look: Look) -> Lines:
    """Return the line of what a trace would do at its bound; none where no bound holds."""
    some = shown[(shown["trace"] == trace) & shown[_BEST].notna()]
    best = some.groupby(sweep.column, sort=False)[_BEST].max()
    points = {sweep.read(value): {"status": OK, _METRIC: reached} for value, reached in best.items()}
    return [(look, points)] if points else []


def _points(shown: pd.DataFrame, sweep: Sweep, **line: str) -> dict[float, dict[str, Any]]:
    """Return the cells of a line, which has these values in its columns, by the swept value."""
    for column, value in line.items():
        shown = shown[shown[column] == value]
    return {sweep.read(value): cell for (value,), cell in style.cells_by(shown, sweep.column).items()}


def _draw_panels(
    shown: pd.DataFrame, sweep: Sweep, titles: Sequence[str], lines: Sequence[Lines], legend: Iterable[Look]
) -> Panels:
    """Draw a panel with a title for each entry of ``lines``, all with the same scales."""
    values = sorted({sweep.read(value) for value in shown[sweep.column]})
    places = {value: float(place) for place, value in enumerate(values)}
    entries, ylabel = handles(legend, shown, ideal=True, lines=True), TITLES["performance"]
    made = panels(titles, row_inches=1.3, legend=entries, xlabel=sweep.label, ylabel=ylabel, shared="xy")
    for axes, drawn in zip(made.axes, lines, strict=True):
        draw_ideal(axes)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set(xlim=(-0.4, len(values) - 0.6), ylim=(0, 1.08))
        draw_lines(axes, drawn, places, _METRIC, _STEP_ASIDE)
    return made


def knee(sizing: pd.DataFrame, curves: pd.DataFrame) -> Figure:
    """Draw a panel per search: performance over the amount, its bound, the target, and the answer.

    Raises ConfigError where there is no search with a curve.
    """
    shown = [row for row in style.records(sizing) if row["search"] in set(curves["search"])]
    if not shown:
        raise ConfigError("sizing: found no search that applies; allowed: a system with one of the resources")
    target = Line2D([], [], **style.DASHES, label="target")
    star = {**_ANSWER.curve(), "markersize": 7}
    answer = Line2D([], [], **{**star, "linestyle": "none"})
    titles, ylabel = _titles(sizing, shown), TITLES["performance"]
    legend = [*handles([_SIMULATED, BOUND_LOOK], lines=True), target, answer]
    made = panels(titles, row_inches=1.45, legend=legend, ylabel=ylabel, shared="y")
    for axes, row in zip(made.axes, shown, strict=True):
        curve = curves[curves["search"] == row["search"]].sort_values("amount")
        _draw_curve(axes, curve)
        axes.axhline(row["target"], **style.DASHES)
        if pd.notna(row["answer"]):
            at = curve.loc[curve["text"] == row["answer"], "amount"].iloc[0]
            axes.plot([at], [row["performance"]], clip_on=False, zorder=3, **star)
        axes.set(ylim=(0, 1.08), xlabel=f"{curve['title'].iloc[0]} ({curve['unit'].iloc[0]})")
    return made.figure


def _draw_curve(axes: Axes, curve: pd.DataFrame) -> None:
    bound = curve[curve["best_performance"].notna()]
    axes.plot(bound["amount"], bound["best_performance"], **BOUND_LOOK.curve())
    ran = curve[curve["status"] == OK]
    axes.plot(ran["amount"], ran["performance"], **{**_SIMULATED.curve(), "markersize": 2.5})
    least, most = curve["amount"].min(), curve["amount"].max()
    if least > 0 and most > least:
        ticks = _ticks(least, most, 5)
        ticks = ticks if max(map(len, ticks.values())) <= _SHORT else _ticks(least, most, 3)
        label_some(axes, ticks)


def _ticks(least: float, most: float, count: int) -> dict[float, str]:
    """Return that many places at even ratios, with their labels."""
    places = [least * (most / least) ** (place / (count - 1)) for place in range(count)]
    return {place: f"{place:.3g}" for place in places}


def _titles(sizing: pd.DataFrame, shown: list[dict[str, Any]]) -> list[str]:
    """Return the trace, the policy and the swept values of each search; nothing where there is one case."""
    swept = [column for column in sizing.columns if "." in column]
    if len(sizing.drop_duplicates(["trace", "policy", *swept])) == 1:
        return [""] * len(shown)
    names = {name.trace: name.line for name in style.trace_names(sizing)}
    return [
        f"{names[row['trace']]}\n{', '.join(str(row[key]) for key in ('policy', *swept))}" for row in shown
    ]
