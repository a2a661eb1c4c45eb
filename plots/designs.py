"""Figures of designs of one family, and of what a swept part of the machine makes of each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from textwrap import fill
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g10sim.errors import ConfigError
from g10sim.looks import BLACK, BLUE, ORANGE, Look
from g10sim.plots import panels, style
from g10sim.results.batch_search import batch_search
from g10sim.results.columns import OK
from g10sim.results.legends import designs
from g10sim.units import parse_bytes, parse_rate

_MEMORY, _GPUS = "system.gpu.memory", "workload.replicas"
_GB, _GIB = 1e9, 2**30
_TRACES_PER_ROW = 5
_MOST_LABELS = 4
_LOSS = 0.01
_STEP_ASIDE = 0.15
_TRIM, _STREAMS = "system.ssd.trim", "system.ssd.streams"
_DRIVE, _YEARS = "system.ssd", "ssd_years_to_rated_cycles"
_WARRANTY_YEARS = 5
_WARRANTY = Look(BLACK, marker="", line="--", label=f"warranty of {_WARRANTY_YEARS} years")
_LEAST_YEARS, _MOST_YEARS = 0.01, 1000
_SLICES = 240
_OUT, _IN = Look(ORANGE, label="from the GPUs (up)"), Look(BLUE, label="to the GPUs (down)")
_TITLE_CHARACTERS, _TITLE_LINE_INCHES = 46, 0.12

Numbers: TypeAlias = npt.NDArray[np.float64]


def vdnn_modes(results: pd.DataFrame) -> Figure:
    """Draw peak GPU memory and performance below each other, a group of bars per trace, a bar per policy.

    Where GPU memory is swept, the smallest one counts, and is a dashed line. For what does not run in it, an
    empty bar shows the memory that it takes in a larger one.
    """
    shown = style.without_ideal(results)
    sizes = shown[_MEMORY].map(parse_bytes) if _MEMORY in shown else 0
    shown = shown.assign(size=sizes, gib=shown["peak_gpu_bytes"] / _GIB)
    least = shown["size"].min()
    counts, larger = shown[shown["size"] == least], shown[shown["size"] > least]
    policies = style.series_of_designs(counts, lambda one: f"{one.label} {one.variant}".strip())
    cells = style.cells_by(counts, "trace", "policy")
    fits = {key: cell for key, cell in cells.items() if cell["status"] == OK}
    others = style.cells_by(larger[larger["status"] == OK], "trace", "policy")
    rows = style.in_rows(style.trace_names(shown), _TRACES_PER_ROW)
    titles, legend = [""] * 2 * len(rows), panels.handles(policies.values(), counts)
    made = panels.panels(titles, columns=1, row_inches=1.0, legend=legend, legend_columns=3)
    for number, traces in enumerate(rows):
        memory, performance = made.axes[2 * number : 2 * number + 2]
        groups = {trace.trace: trace.label for trace in traces}
        more = {key: cell for key, cell in others.items() if key not in fits}
        panels.draw_groups(memory, more, dict.fromkeys(groups, ""), policies, "gib", hollow=True)
        panels.draw_groups(memory, fits, dict.fromkeys(groups, ""), policies, "gib")
        panels.draw_groups(performance, cells, groups, policies, "performance")
        if least:
            memory.axhline(least / _GIB, **style.DASHES)
        memory.set(ylabel="GPU memory\n(GiB)", xlim=(-0.5, len(rows[0]) - 0.5))
        panels.draw_ideal(performance)
        performance.set(ylabel="performance\n(ideal = 1)", xlim=(-0.5, len(rows[0]) - 0.5), ylim=(0, 1.08))
    return made.figure


def vdnn_bandwidth(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace with a line per variant (mode), the gain in throughput over bandwidth.

    The design that comes first in the results is compared with the other one; both need the same variants.
    """
    shown = style.without_ideal(results)
    column, found = style.swept_column(shown, "system.pcie.bandwidth"), designs(shown)
    shown = shown.assign(
        design=[found[policy].label for policy in shown["policy"]],
        variant=[found[policy].variant for policy in shown["policy"]],
        rate=[parse_rate(text) / _GB for text in shown[column]],
    )
    names = list(dict.fromkeys(shown["design"]))
    if len(names) != 2:
        raise ConfigError(f"results: found {len(names)} designs; allowed: two, to compare one with the other")
    variants, traces = style.series(dict.fromkeys(shown["variant"])), style.trace_names(shown)
    made = panels.panels(
        [trace.line for trace in traces],
        row_inches=1.25,
        legend=panels.handles(variants.values(), lines=True),
        legend_columns=3,
        xlabel="bandwidth of the link, in each direction (GB/s)",
        ylabel=f"gain of {names[1]} over {names[0]} (%)",
        shared="xy",
    )
    times = shown[shown["status"] == OK].pivot_table(
        index=["trace", "variant", "rate"], columns="design", values="exec_cycles", aggfunc="last"
    )
    times = times.reindex(columns=names).dropna().reset_index()
    gains = times.assign(gain=100 * (times[names[0]] / times[names[1]] - 1))
    for axes, trace in zip(made.axes, traces, strict=True):
        for variant, look in variants.items():
            line = gains[(gains["trace"] == trace.trace) & (gains["variant"] == variant)]
            axes.plot(line["rate"], line["gain"], **look.curve())
        _label_rates(axes, sorted(set(shown["rate"])))
        axes.set_ylim(0, 1.08 * max([1.0, *gains["gain"]]))
    return made.figure


def fragmentation(results: pd.DataFrame) -> Figure:
    """Draw a panel per trace, with a group of bars per mode and order, a bar per allocator.

    A bar is the smallest of the swept GPU memories in which the cell runs, over the most memory in use there:
    1 is memory without a gap.
    """
    shown = _least_memories(style.without_ideal(results))
    mode, order, allocator = (style.swept_column(shown, name) for name in ("mode", "order", "allocator"))
    shown["group"] = shown[mode].str.cat(shown[order], sep="\n").str.replace("_", "\n")
    shown["allocator"] = shown[allocator].str.replace("_", " ")
    groups = "group", {group: group for group in dict.fromkeys(shown["group"])}
    bars = "allocator", style.series(dict.fromkeys(shown["allocator"]))
    ylabel = "memory needed\n/ memory in use"
    made = panels.bars_per_trace(shown, groups, bars, "needed", ylabel=ylabel, row_inches=1.5)
    for axes in made.axes:
        axes.set_ylim(1, 1.05 * max(1.1, shown["needed"].max()))
    return made.figure


def _least_memories(results: pd.DataFrame) -> pd.DataFrame:
    """Of the cells that differ in GPU memory alone, keep the one of the smallest in which it runs.

    ``needed`` is that memory over the most that is in use. Where none runs, one that did not is kept.
    """
    sizes = results[style.swept_column(results, _MEMORY)].map(parse_bytes)
    found = results.assign(
        size=sizes, fails=results["status"] != OK, needed=sizes / results["peak_gpu_bytes"]
    )
    others = [
        name for name in found if name in ("trace", "policy", "seed") or str(name).startswith("policies.")
    ]
    return found.sort_values(["fails", "size"]).drop_duplicates(others).sort_values("cell")


def flash_amplification(results: pd.DataFrame) -> Figure:
    """Draw what an SSD writes for each byte given: by trace, policy, and how much it knows of the tensors."""
    shown = style.without_ideal(results)
    trim, streams = style.swept_column(shown, _TRIM), style.swept_column(shown, _STREAMS)
    metric = style.swept_column(shown, "ssd_run_write_amplification", "of a system with a model of flash")
    known = shown[trim].astype(str).str.lower().map({"true": "trim", "false": "no trim"})
    numbers = shown[streams].astype(int)
    shown = shown.assign(variant=known.where(numbers == 1, known + ", " + numbers.astype(str) + " streams"))
    # Names side by side would touch: every second one stands a line lower.
    looks = enumerate(style.looks(shown).items())
    groups = "policy", {policy: "\n" * (at % 2) + look.label for at, (policy, look) in looks}
    bars = "variant", style.series(dict.fromkeys(shown["variant"]))
    made = panels.bars_per_trace(
        shown, groups, bars, metric, ylabel="write amplification", row_inches=1.3, legend_columns=2
    )
    for axes in made.axes:
        axes.set_ylim(1, 1.05 * max(1.1, axes.dataLim.y1))
    return made.figure


def flash_endurance(results: pd.DataFrame) -> Figure:
    """Draw how long drives last when a training goes on day and night, and the usual warranty.

    Bars that reach the top are of drives that last longer, or are not written to.
    """
    shown = style.without_ideal(results)
    drives = dict.fromkeys(shown[style.swept_column(shown, _DRIVE)])
    metric = style.swept_column(shown, _YEARS, "of a system with a model of flash")
    shown = shown.assign(years=shown[metric].replace(math.inf, _MOST_YEARS))
    groups, bars = (_DRIVE, {drive: _drive(drive) for drive in drives}), ("policy", style.looks(shown))
    options = {"ylabel": "years to rated\nprogram/erase cycles", "row_inches": 1.5, "shared": "xy"}
    made = panels.bars_per_trace(shown, groups, bars, "years", lines=[_WARRANTY], **options)
    for axes in made.axes:
        panels.draw_level(axes, _WARRANTY, _WARRANTY_YEARS)
        panels.logarithmic(axes, y=True)
        axes.set_ylim(_LEAST_YEARS, _MOST_YEARS)
    return made.figure


def _drive(text: str) -> str:
    """Return the name of a swept drive without its maker, a word a line."""
    name = str(json.loads(text)["preset"]) if text.startswith("{") else text
    return name.partition("-")[2].replace("-", "\n").upper()


def gpus_per_uplink(results: pd.DataFrame) -> Figure:
    """Draw throughput over the number of GPUs, a panel per trace, then the largest batch without loss.

    A line per policy. Loss is measured against the first policy: a batch is without loss if its throughput is
    at least 99% of the best that the first policy reaches with any. Empty bars are the largest that runs.
    Dashes are unlimited GPU memory.
    """
    shown = style.without_ideal(results)
    shown = shown.assign(**{_GPUS: shown[style.swept_column(shown, _GPUS)].astype(int)})
    policies = style.series_of_designs(shown, lambda design: design.variant or design.label)
    traces, models = style.trace_names(shown), list(dict.fromkeys(shown["model"]))
    titles = [*(trace.line for trace in traces), *(f"{style.model_name(model)}, no loss" for model in models)]
    legend = panels.handles(policies.values(), shown, ideal=True, lines=True)
    made = panels.panels(titles, row_inches=1.2, legend=legend, xlabel="GPUs that share the uplink")
    for number, (axes, trace) in enumerate(zip(made.axes, traces, strict=False)):
        axes.set_ylabel("" if number % 2 else "throughput of a\nGPU (samples/s)")
        _draw_throughput(axes, shown[shown["trace"] == trace.trace], policies)
    for axes, model in zip(made.axes[len(traces) :], models, strict=True):
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
            panels.mark_missing(axes, numbers.index(number) + aside, str(status), look.colour)
    ran = style.that_ran(cells)
    best = (ran["samples_per_s"] / ran["performance"]).max()
    panels.draw_ideal(axes, best)
    axes.set_ylim(0, 1.1 * best)


def _draw_batches(axes: Axes, cells: pd.DataFrame, policies: Mapping[str, Look]) -> None:
    found = batch_search(cells, reference=next(iter(policies)), loss=_LOSS).assign(status=OK)
    batches = style.cells_by(found.fillna({"largest_batch": 0, "no_loss_batch": 0}), _GPUS, "policy")
    groups = {number: str(number) for number in sorted(set(cells[_GPUS]))}
    panels.draw_groups(axes, batches, groups, policies, "largest_batch", hollow=True)
    panels.draw_groups(axes, batches, groups, policies, "no_loss_batch")


def _label_rates(axes: Axes, rates: list[float]) -> None:
    """Label some bandwidths, about as far from each other as there is room for."""
    factor = (rates[-1] / rates[0]) ** (1 / _MOST_LABELS)
    labelled = [rates[0]]
    for rate in rates:
        if rate > labelled[-1] and rate >= labelled[-1] * factor:
            labelled.append(rate)
    panels.label_some(axes, {rate: f"{rate:g}" for rate in labelled})


def link_occupancy(results: pd.DataFrame, kernels: pd.DataFrame, migrations: pd.DataFrame) -> Figure:
    """Draw the rates of all GPUs together over the last iteration, a panel per policy that runs.

    Titles have the share of ideal performance. Copies from the GPUs are drawn upwards, copies to them
    downwards. What was not copied (new memory) does not count.
    """
    ran = style.that_ran(results).drop_duplicates("cell")
    copies = migrations[(migrations["source"] != "NONE") & (migrations["target"] != "NONE")]
    titles = [
        fill(f"{_parameters(row['policy'])}: {row['performance']:.0%} of ideal", _TITLE_CHARACTERS)
        for row in style.records(ran)
    ]
    height = 0.8 + _TITLE_LINE_INCHES * max(title.count("\n") for title in titles)
    legend = panels.handles((_OUT, _IN))
    xlabel, ylabel = "time in the last iteration (ms)", "copies (GB/s)"
    made = panels.panels(
        titles, columns=1, row_inches=height, legend=legend, xlabel=xlabel, ylabel=ylabel, shared="xy"
    )
    for axes, row in zip(made.axes, style.records(ran), strict=True):
        end = int(kernels.loc[kernels["cell"] == row["cell"], "end"].max())
        edges = np.linspace(end - row["exec_cycles"], end, _SLICES + 1)
        ms = float(row["exec_ms"] / row["exec_cycles"])
        own = copies[copies["cell"] == row["cell"]]
        leaving = own["source"] == "GPU"
        for part, look, sign in ((own[leaving], _OUT, 1), (own[~leaving], _IN, -1)):
            rates = np.diff(_copied(part, edges)) / np.diff(edges) / ms / 1e6
            axes.stairs(sign * rates, (edges - edges[0]) * ms, fill=True, color=look.colour, linewidth=0)
        axes.yaxis.set_major_formatter(lambda rate, _: f"{abs(rate):g}")
        axes.axhline(0, color="black", linewidth=0.4)
    return made.figure


def _copied(copies: pd.DataFrame, times: Numbers) -> Numbers:
    """Return the bytes copied by each time, every copy at its mean rate."""
    start, end, size = (copies[name].to_numpy(dtype=np.float64) for name in ("start", "end", "size_bytes"))
    share = np.clip((times[:, None] - start) / np.maximum(1, end - start), 0, 1)
    return np.asarray(share @ size)


def _parameters(policy: str) -> str:
    """Return what a policy's name has in brackets; without brackets, the name."""
    return policy.partition("(")[2].removesuffix(")") or policy
