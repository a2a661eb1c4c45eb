"""What offloading designs make of GPUs that share a link: throughput, and how far the batch may grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from g10sim.plots.bars import bar_places, ideal_handle, mark_handles, mark_missing
from g10sim.plots.designs import design_and_variant, swept_column
from g10sim.plots.panels import panels
from g10sim.plots.style import IDEAL, POLICIES, Look, hatched, model_name, styled
from g10sim.plots.traces import OK, that_ran, trace_names, without_ideal
from g10sim.stats.batch_search import batch_search

_GPUS = "workload.replicas"
_LOSS = 0.01
_COLUMNS = 2
_STEP_ASIDE = 0.15


@styled
def draw(results: pd.DataFrame) -> Figure:
    """Draw throughput over the number of GPUs, a panel per trace, then the largest batch without loss.

    A line per policy. Loss is measured against the first policy: a batch is without loss if its throughput is
    at least 99% of the best that the first policy reaches with any. Empty bars are the largest that runs.
    Dashes are unlimited GPU memory.
    """
    shown = without_ideal(results)
    shown = shown.assign(**{_GPUS: shown[swept_column(shown, _GPUS)].astype(int)})
    policies = {
        policy: replace(look, label=design_and_variant(policy)[1] or look.label)
        for policy, look in hatched(dict.fromkeys(shown["policy"])).items()
    }
    traces, models = trace_names(shown), list(dict.fromkeys(shown["model"]))
    made = panels(
        len(traces) + len(models),
        columns=_COLUMNS,
        row_inches=1.2,
        legend=[
            *(Line2D([], [], **look.curve()) for look in policies.values()),
            ideal_handle(),
            *mark_handles(shown),
        ],
        legend_columns=4,
        xlabel="GPUs that share the uplink",
    )
    for number, (axes, trace) in enumerate(zip(made.axes, traces, strict=False)):
        axes.set_title(trace.line)
        axes.set_ylabel("" if number % _COLUMNS else "throughput of a\nGPU (samples/s)")
        _draw_throughput(axes, shown[shown["trace"] == trace.trace], policies)
    for axes, model in zip(made.axes[len(traces) :], models, strict=True):
        axes.set_title(f"{model_name(model)}, no loss")
        axes.set_ylabel("batch size")
        _draw_batches(axes, shown[shown["model"] == model], policies)
    numbers = sorted(set(shown[_GPUS]))
    for axes in made.axes:
        axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
        axes.set_xlim(-0.5, len(numbers) - 0.5)
    return made.figure


def _draw_throughput(axes: Axes, cells: pd.DataFrame, policies: Mapping[str, Look]) -> None:
    """Draw the mean over the replicas of each cell; a cell has one status."""
    numbers = sorted(set(cells[_GPUS]))
    for line, (policy, look) in enumerate(policies.items()):
        rows = cells[cells["policy"] == policy]
        means = rows[rows["status"] == OK].groupby(_GPUS)["samples_per_s"].mean()
        axes.plot([numbers.index(number) for number in means.index], list(means), **look.curve())
        aside = (line - (len(policies) - 1) / 2) * _STEP_ASIDE
        for number, status in rows[rows["status"] != OK].groupby(_GPUS)["status"].first().items():
            mark_missing(axes, numbers.index(number) + aside, str(status), look.colour)
    ran = that_ran(cells)
    best = (ran["samples_per_s"] / ran["performance"]).max()
    ideal = POLICIES[IDEAL]
    axes.axhline(best, color=ideal.colour, linestyle=ideal.line, linewidth=0.8)
    axes.set_ylim(0, 1.1 * best)


def _draw_batches(axes: Axes, cells: pd.DataFrame, policies: Mapping[str, Look]) -> None:
    found = batch_search(cells, reference=next(iter(policies)), loss=_LOSS)
    numbers = sorted(set(cells[_GPUS]))
    offsets, width = bar_places(len(policies))
    for (policy, look), offset in zip(policies.items(), offsets, strict=True):
        rows = found[found["policy"] == policy]
        places = [numbers.index(number) + offset for number in rows[_GPUS]]
        empty = {**look.bar(), "facecolor": "none", "edgecolor": look.colour, "hatch": ""}
        axes.bar(places, rows["largest_batch"].fillna(0), width, **empty)
        axes.bar(places, rows["no_loss_batch"].fillna(0), width, **look.bar())
