"""What a drive has to write beyond what it is given, by what it knows of the tensors."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from g10sim.errors import ConfigError
from g10sim.plots.bars import bar_places, mark_handles, mark_missing
from g10sim.plots.panels import panels
from g10sim.plots.style import looks, series, styled
from g10sim.plots.traces import OK, cells_by, trace_names, without_ideal

_TRIM, _STREAMS = "system.ssd.trim", "system.ssd.streams"
_METRIC = "ssd_run_write_amplification"


def _variant(trim: object, streams: object) -> str:
    told = "trim" if str(trim).lower() == "true" else "no trim"
    number = int(str(streams))
    return told if number == 1 else f"{told}, {number} streams"


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a group of bars per policy, one for each kind of knowledge."""
    for column in (_TRIM, _STREAMS, _METRIC):
        if column not in results.columns:
            raise ConfigError(
                f"results: found no column '{column}'; allowed: results of a run that sweeps over "
                f"{_TRIM} and {_STREAMS}"
            )
    shown = without_ideal(results)
    shown = shown.assign(
        variant=[_variant(trim, number) for trim, number in zip(shown[_TRIM], shown[_STREAMS], strict=True)]
    )
    policies, traces = looks(shown["policy"]), trace_names(shown)
    variants = series(dict.fromkeys(shown["variant"]))
    made = panels(
        len(traces),
        columns=1,
        row_inches=1.3,
        legend=[*(Patch(**look.bar()) for look in variants.values()), *mark_handles(shown)],
        legend_columns=2,
        ylabel="write amplification",
    )
    cells = cells_by(shown, "trace", "policy", "variant")
    places, width = bar_places(len(variants))
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        heights = [1.1]
        for group, policy in enumerate(policies):
            for place, (variant, look) in zip(places, variants.items(), strict=True):
                cell = cells.get((trace.trace, policy, variant))
                if cell is not None and cell["status"] == OK:
                    axes.bar(group + place, cell[_METRIC], width, **look.bar())
                    heights.append(cell[_METRIC])
                elif cell is not None:
                    mark_missing(axes, group + place, cell["status"])
        axes.set_xticks(range(len(policies)), [look.label for look in policies.values()])
        axes.grid(visible=False, axis="x")
        axes.set_ylim(1, 1.05 * max(heights))
    return made.figure
