"""The figures that can be drawn: their names, what they show and which tables they need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from g10sim.errors import ConfigError, not_found

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """A figure: a function of its name in a module, or the function ``draw`` of a module of its name.

    The function takes the rows of results.csv, then the Parquet tables that ``tables`` names, in order. With
    ``of_one_cell`` it shows one cell of a run and takes its number as ``cell``; otherwise the figure has an
    experiment of the same name. With ``of_sizing`` it takes the two tables of ``g10sim size`` instead.
    ``sweeps`` is a regular expression of the swept keys that it shows all values of. ``most_traces`` have
    room on one page; of more there are several. One that ``has_mean`` over all traces takes the ``whole``
    results, too.
    """

    name: str
    title: str
    sweeps: str = ""
    tables: tuple[str, ...] = ()
    most_traces: int = 0
    has_mean: bool = False
    module: str = ""
    of_one_cell: bool = False
    of_sizing: bool = False

    @property
    def draw(self) -> Callable[..., Figure]:
        """The function, drawing in the house style."""
        from g10sim.plots.style import styled

        module = importlib.import_module(f"g10sim.plots.{self.module or self.name}")
        drawing: Callable[..., Figure] = getattr(module, self.name if self.module else "draw")
        return styled(drawing)

    def pages(self, results: pd.DataFrame, *tables: pd.DataFrame, **named: Any) -> list[Figure]:
        """Draw as many figures as the traces of some results take."""
        from g10sim.plots.style import in_rows, trace_names

        names = [trace.trace for trace in trace_names(results)] if self.most_traces else []
        if len(names) <= self.most_traces:
            return [self.draw(results, *tables, **named)]
        named |= {"whole": results} if self.has_mean else {}
        parts = (results[results["trace"].isin(part)] for part in in_rows(names, self.most_traces))
        return [self.draw(part, *tables, **named) for part in parts]


def _of(module: str, *entries: Entry, **shared: Any) -> tuple[Entry, ...]:
    """Return figures that are functions of their names in a module, with what they have in common."""
    return tuple(replace(entry, module=module, **shared) for entry in entries)


_PERFORMANCE = "performance of every policy"
_SSD_KEYS = "system.ssd.trim|system.ssd.streams"
_ALLOCATION_KEYS = r"system.gpu.memory|policies\.\d+\.(mode|order|allocator)"
_PAPER = (
    *_of(
        "demand",
        Entry("fig2", "memory of all live tensors and of active ones", tables=("working_sets",)),
        Entry("fig3", "lengths of inactive periods", tables=("inactive_periods",)),
        Entry("fig4", "sizes of tensors and lengths of their inactive periods", tables=("inactive_periods",)),
    ),
    *_of(
        "comparison",
        Entry("fig11", _PERFORMANCE, most_traces=24, has_mean=True),
        Entry("fig11b", f"{_PERFORMANCE} at the kernel times of the paper", most_traces=24, has_mean=True),
        Entry("fig12", "breakdown of the execution time", most_traces=12),
        Entry("fig13", "slowdown of kernels", tables=("kernels",), most_traces=15),
        Entry("fig14", "migration traffic", most_traces=12),
        Entry("fig15", "throughput by batch size", most_traces=12),
    ),
    *_of(
        "sweeps",
        Entry("fig16", "host memory, G10 with several batch sizes", "system.host.memory"),
        Entry("fig17", "host memory, several policies", "system.host.memory"),
        Entry("fig18", "SSD bandwidth", "system.ssd"),
        Entry("fig19", "variation of kernel times", "workload.variation.magnitude"),
    ),
    *_of(
        "demand",
        Entry("fig20", "memory of live tensors by kind", tables=("working_sets",)),
        Entry("fig21", "memory of active tensors by kind", tables=("working_sets",)),
    ),
)
_BEYOND = (
    *_of("comparison", Entry("bound", "distance of every policy to the bound", most_traces=24)),
    *_of("demand", Entry("pools", "memory pools: footprint over load", tables=("pools",), most_traces=24)),
    *_of("saved", Entry("swaps", "overhead against GPU memory", "system.gpu.memory")),
    *_of(
        "saved",
        Entry("savings", "memory saved and time added, one training at a time"),
        Entry("savings_jobs", "memory saved and time added, jobs on one GPU"),
        sweeps="workload.jobs",
        tables=("kernels",),
    ),
    *_of(
        "designs",
        Entry("flash_amplification", "write amplification of a nearly full SSD", _SSD_KEYS),
        Entry("flash_endurance", "life of SSDs", "system.ssd"),
    ),
    *_of("sweeps", Entry("flash_bandwidth", "performance over the number of drives", "system.ssd.drives")),
    *_of(
        "designs",
        Entry("vdnn_modes", "memory and performance of vDNN, by network and mode", "system.gpu.memory"),
        Entry("vdnn_bandwidth", "gain of vDNN++ over vDNN, by link bandwidth", "system.pcie.bandwidth"),
        Entry("fragmentation", "memory taken over memory in use, by allocator", _ALLOCATION_KEYS),
        Entry("gpus_per_uplink", "throughput and batch size of GPUs that share a link", "workload.replicas"),
        Entry(
            "link_occupancy", "what crosses a shared link in an iteration", tables=("kernels", "migrations")
        ),
    ),
    *_of(
        "offloading",
        Entry("zero_ladder", "performance over the size of the model"),
        Entry("training_gpu_memory", "training of language models over GPU memory", "system.gpu.memory"),
        Entry("training_host_memory", "training of language models over host memory", "system.host.memory"),
        Entry("training_ssd_bandwidth", "training of language models over SSD bandwidth", "system.ssd"),
        Entry("training_traffic", "bytes that a training step moves"),
        Entry("training_lifetime", "life of SSDs under training", "system.ssd"),
        Entry("decode_gpu_memory", "decoded tokens a second over GPU memory", "system.gpu.memory"),
        Entry("rok", "throughput over the peak of GPU memory: recompute, offload, keep"),
    ),
)
_ONE_CELL = _of(
    "cell",
    Entry("memory", "memory in use while one cell runs", tables=("memory",)),
    Entry("timeline", "one cell over time", tables=("kernels", "migrations")),
    Entry("stalls", "what the kernels of one cell waited for", tables=("kernels",)),
    of_one_cell=True,
)
_KNEE = Entry("knee", "performance over one resource, and the least that reaches a target", of_sizing=True)
_ALL = (*_PAPER, *_BEYOND, *_ONE_CELL, *_of("sweeps", _KNEE))
ENTRIES: Mapping[str, Entry] = {entry.name: entry for entry in _ALL}


CHARTS = ("line", "bar", "heat")
"""Figures of any columns of any results."""


def find(name: str) -> Entry:
    """Return the figure of a name. Raises ConfigError."""
    if name not in ENTRIES:
        raise ConfigError(
            f"found no figure '{name}'{not_found(name, ENTRIES)}, or all, or {', '.join(CHARTS)} with --x"
        )
    return ENTRIES[name]


def paper_figures() -> tuple[str, ...]:
    """Names of the figures of the G10 paper, in its order."""
    return tuple(entry.name for entry in _PAPER)
