"""How long drives last when a training goes on day and night."""

from __future__ import annotations

import json
import math

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.errors import ConfigError
from g10sim.plots.bars import bar_places, mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.style import BLACK, looks, styled
from g10sim.plots.traces import OK, cells_by, trace_names, without_ideal

_DRIVE, _METRIC = "system.ssd", "ssd_years_to_rated_cycles"
_WARRANTY_YEARS = 5
_LEAST_YEARS, _MOST_YEARS = 0.01, 1000


def _drive(text: str) -> str:
    """Name of a swept drive without its maker, a word a line."""
    name = str(json.loads(text)["preset"]) if text.startswith("{") else text
    return name.partition("-")[2].replace("-", "\n").upper()


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a group of bars per drive; the line is the usual warranty."""
    for column in (_DRIVE, _METRIC):
        if column not in results.columns:
            raise ConfigError(
                f"results: found no column '{column}'; allowed: results of a run that sweeps over {_DRIVE} "
                "with presets of drives"
            )
    shown = without_ideal(results)
    policies, traces = looks(shown["policy"]), trace_names(shown)
    drives = list(dict.fromkeys(shown[_DRIVE]))
    made = panels(
        len(traces),
        columns=1,
        row_inches=1.5,
        legend=[*(Patch(**look.bar()) for look in policies.values()), *mark_handles(shown)],
        legend_columns=3,
        ylabel="years to rated program/erase cycles",
        sharex=True,
        sharey=True,
    )
    cells = cells_by(shown, "trace", _DRIVE, "policy")
    places, width = bar_places(len(policies))
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        axes.set_yscale("log")
        for group, drive in enumerate(drives):
            for place, (policy, look) in zip(places, policies.items(), strict=True):
                cell = cells.get((trace.trace, drive, policy))
                if cell is not None and cell["status"] == OK:
                    years = cell[_METRIC]
                    height = _MOST_YEARS if math.isinf(years) else years
                    axes.bar(group + place, height, width, **look.bar())
                elif cell is not None:
                    mark_missing(axes, group + place, cell["status"])
        axes.axhline(_WARRANTY_YEARS, color=BLACK, linestyle="--", linewidth=0.8)
        axes.set_ylim(_LEAST_YEARS, _MOST_YEARS)
        axes.set_xticks(range(len(drives)), [_drive(drive) for drive in drives])
        axes.grid(visible=False, axis="x")
    return made.figure
