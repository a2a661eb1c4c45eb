"""What one design gains over another of its family as the link to host memory gets faster."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from g10sim.errors import ConfigError
from g10sim.plots.designs import design_and_variant, swept_column
from g10sim.plots.panels import panels
from g10sim.plots.style import series, styled
from g10sim.plots.traces import OK, Cells, cells_by, trace_names, without_ideal
from g10sim.units import parse_rate

_GB = 1e9
_MOST_LABELS = 4


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a line per variant (mode), the gain in throughput over bandwidth.

    The design that comes first in the results is compared with the other one; both need the same variants.
    """
    shown = without_ideal(results)
    column = swept_column(shown, "system.pcie.bandwidth")
    parts = [design_and_variant(policy) for policy in shown["policy"]]
    shown = shown.assign(
        design=[design for design, _ in parts],
        variant=[variant for _, variant in parts],
        rate=[parse_rate(text) / _GB for text in shown[column]],
    )
    designs = list(dict.fromkeys(shown["design"]))
    if len(designs) != 2:
        raise ConfigError(
            f"results: found {len(designs)} designs; allowed: two, to compare one with the other"
        )
    variants, traces = series(dict.fromkeys(shown["variant"])), trace_names(shown)
    cells = cells_by(shown, "trace", "variant", "rate", "design")
    rates = sorted(set(shown["rate"]))
    made = panels(
        len(traces),
        columns=2,
        row_inches=1.25,
        legend=[Line2D([], [], **look.curve()) for look in variants.values()],
        xlabel="bandwidth of the link, in each direction (GB/s)",
        ylabel=f"gain of {designs[1]} over {designs[0]} (%)",
        sharex=True,
        sharey=True,
    )
    highest = 1.0
    for axes, trace in zip(made.axes, traces, strict=True):
        axes.set_title(trace.line)
        for variant, look in variants.items():
            line = _gains(cells, (trace.trace, variant), rates, designs)
            axes.plot(list(line), list(line.values()), **look.curve())
            highest = max(highest, *line.values(), 0)
        _label_rates(axes, rates)
    for axes in made.axes:
        axes.set_ylim(0, 1.08 * highest)
    return made.figure


def _gains(cells: Cells, line: tuple[Any, ...], rates: list[float], designs: list[str]) -> dict[float, float]:
    """Gains in percent by bandwidth, where both designs run."""
    found = {}
    for rate in rates:
        before, after = (cells.get((*line, rate, design)) for design in designs)
        if before is not None and after is not None and before["status"] == after["status"] == OK:
            found[rate] = 100 * (before["exec_cycles"] / after["exec_cycles"] - 1)
    return found


def _label_rates(axes: Axes, rates: list[float]) -> None:
    """Label some bandwidths, about as far from each other as there is room for."""
    factor = (rates[-1] / rates[0]) ** (1 / _MOST_LABELS)
    labelled = [rates[0]]
    for rate in rates:
        if rate > labelled[-1] and rate >= labelled[-1] * factor:
            labelled.append(rate)
    axes.set_xscale("log")
    axes.set_xticks(labelled, [f"{rate:g}" for rate in labelled])
    axes.xaxis.set_minor_locator(NullLocator())
