"""Lines over a swept quantity: performance of policies or batch sizes, in panels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from g10sim.errors import ConfigError
from g10sim.plots.bars import draw_ideal, ideal_handle, mark_handles, mark_missing
from g10sim.plots.panels import Panels, panels
from g10sim.plots.style import Look, looks, series
from g10sim.plots.traces import OK, by_model, cells_by, trace_names, without_ideal
from g10sim.stats.seeds import over_seeds

_METRIC = "performance"
_STEP_ASIDE = 0.12


@dataclass(frozen=True)
class Sweep:
    """The quantity on the horizontal axis: its column in the results, how to read a value, its label."""

    column: str
    read: Callable[[Any], float]
    label: str


_Points: TypeAlias = dict[float, dict[str, Any]]


def per_policy(results: pd.DataFrame, sweep: Sweep) -> Panels:
    """Draw a panel per trace with a line per policy."""
    shown = _averaged(results, sweep)
    policies, traces = looks(shown["policy"]), trace_names(shown)
    legend = [Line2D([], [], **look.curve()) for look in policies.values()]
    made = _panels(len(traces), 2, legend, shown, sweep)
    points = _points(shown, sweep, "trace", "policy")
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        lines = [(look, points.get((trace.trace, policy), {})) for policy, look in policies.items()]
        _draw_lines(axes, lines, _values(shown, sweep))
    return made


def per_batch_size(results: pd.DataFrame, sweep: Sweep) -> Panels:
    """Draw a panel per model with a line per batch size, all of the first policy."""
    shown = _averaged(results, sweep)
    shown = shown[shown["policy"] == shown["policy"].iloc[0]]
    models = by_model(trace_names(shown))
    made = _panels(len(models), 2, [], shown, sweep)
    points = _points(shown, sweep, "trace")
    for axes, (model, traces) in zip(made.axes, models.items(), strict=True):
        batches = series(trace.batch for trace in traces).values()
        lines = [(look, points.get((trace.trace,), {})) for trace, look in zip(traces, batches, strict=True)]
        _draw_lines(axes, lines, _values(shown, sweep))
        handles = [Line2D([], [], **look.curve()) for look, _ in lines]
        axes.legend(
            handles=handles,
            title=f"{model}, batch",
            title_fontsize="medium",
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=min(3, len(handles)),
            columnspacing=0.6,
            handletextpad=0.3,
        )
    return made


def _averaged(results: pd.DataFrame, sweep: Sweep) -> pd.DataFrame:
    """Average over seeds, with intervals. Raises ConfigError where nothing was swept."""
    if sweep.column not in results.columns:
        raise ConfigError(
            f"results: found no column '{sweep.column}'; allowed: results of a run that sweeps over it"
        )
    return over_seeds(without_ideal(results), [_METRIC])


def _values(shown: pd.DataFrame, sweep: Sweep) -> list[float]:
    return sorted({sweep.read(value) for value in shown[sweep.column]})


def _points(shown: pd.DataFrame, sweep: Sweep, *columns: str) -> dict[tuple[Any, ...], _Points]:
    """Cells of each line, by the swept value."""
    found: dict[tuple[Any, ...], _Points] = {}
    for (*line, value), cell in cells_by(shown, *columns, sweep.column).items():
        found.setdefault(tuple(line), {})[sweep.read(value)] = cell
    return found


def _panels(count: int, columns: int, legend: Iterable[Any], shown: pd.DataFrame, sweep: Sweep) -> Panels:
    made = panels(
        count,
        columns=columns,
        row_inches=1.3,
        legend=[*legend, ideal_handle(), *mark_handles(shown)],
        legend_columns=4,
        xlabel=sweep.label,
        ylabel="performance (ideal = 1)",
        sharex=True,
        sharey=True,
    )
    values = _values(shown, sweep)
    for axes in made.axes:
        draw_ideal(axes)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_xlim(-0.4, len(values) - 0.6)
        axes.set_ylim(0, 1.08)
    return made


def _draw_lines(axes: Axes, lines: list[tuple[Look, _Points]], values: list[float]) -> None:
    for number, (look, points) in enumerate(lines):
        drawn = [(place, points[value]) for place, value in enumerate(values) if value in points]
        good = [(place, cell) for place, cell in drawn if cell["status"] == OK]
        if good:
            axes.errorbar(
                [place for place, _ in good],
                [cell[_METRIC] for _, cell in good],
                yerr=[cell[f"{_METRIC}_interval"] for _, cell in good],
                capsize=1.5,
                elinewidth=0.6,
                **look.curve(),
            )
        aside = (number - (len(lines) - 1) / 2) * _STEP_ASIDE
        for place, cell in drawn:
            if cell["status"] != OK:
                mark_missing(axes, place + aside, cell["status"], look.colour)
