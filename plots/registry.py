"""The figures that can be drawn: their names, what they show and which tables they need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from g10sim.errors import ConfigError
from g10sim.registry import not_found

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Entry:
    """A figure: a function of its name in a module, or the function ``draw`` of a module of its name.

    The function takes the rows of results.csv, then the Parquet tables that ``tables`` names, in order. With
    ``of_one_cell`` it shows one cell of a run and takes its number as ``cell``; otherwise the figure has an
    experiment of the same name, and is one of the G10 paper unless it is ``beyond_paper``. With ``of_sizing``
    it takes the two tables of ``g10sim size`` instead. ``sweeps`` are regular expressions of the swept keys
    that it shows all values of. ``most_traces`` have room on one page; of more there are several.
    """

    name: str
    title: str
    tables: tuple[str, ...] = ()
    module: str = ""
    of_one_cell: bool = False
    beyond_paper: bool = False
    of_sizing: bool = False
    sweeps: tuple[str, ...] = ()
    most_traces: int = 0

    @property
    def draw(self) -> Callable[..., Figure]:
        """The function, drawing in the house style."""
        from g10sim.plots.style import styled

        module = importlib.import_module(f"g10sim.plots.{self.module or self.name}")
        return styled(getattr(module, self.name if self.module else "draw"))

    def pages(self, results: pd.DataFrame, *tables: pd.DataFrame, **named: Any) -> list[Figure]:
        """Draw as many figures as the traces of some results take."""
        from g10sim.plots.traces import in_rows, trace_names

        names = [trace.trace for trace in trace_names(results)] if self.most_traces else []
        if len(names) <= self.most_traces:
            return [self.draw(results, *tables, **named)]
        named |= {"whole": results} if self.name in _WITH_MEAN else {}
        parts = (results[results["trace"].isin(part)] for part in in_rows(names, self.most_traces))
        return [self.draw(part, *tables, **named) for part in parts]


_PAPER = (
    Entry("fig2", "memory of all live tensors and of active ones", ("working_sets",), "demand"),
    Entry("fig3", "lengths of inactive periods", ("inactive_periods",), "demand"),
    Entry("fig4", "sizes of tensors and lengths of their inactive periods", ("inactive_periods",), "demand"),
    Entry("fig11", "performance of every policy", (), "comparison"),
    Entry("fig11b", "performance of every policy at the kernel times of the paper", (), "comparison"),
    Entry("fig12", "breakdown of the execution time", (), "comparison"),
    Entry("fig13", "slowdown of kernels", ("kernels",), "comparison"),
    Entry("fig14", "migration traffic", (), "comparison"),
    Entry("fig15", "throughput by batch size", (), "comparison"),
    Entry("fig16", "host memory, G10 with several batch sizes", (), "sweeps"),
    Entry("fig17", "host memory, several policies", (), "sweeps"),
    Entry("fig18", "SSD bandwidth", (), "sweeps"),
    Entry("fig19", "variation of kernel times", (), "sweeps"),
    Entry("fig20", "memory of live tensors by kind", ("working_sets",), "demand"),
    Entry("fig21", "memory of active tensors by kind", ("working_sets",), "demand"),
)
_BEYOND = (
    Entry("bound", "distance of every policy to the bound"),
    Entry("pools", "memory pools: footprint over load", ("pools",), "demand"),
    Entry("swaps", "overhead against GPU memory", (), "saved"),
    Entry("savings", "memory saved and time added, one training at a time", ("kernels",), "saved"),
    Entry("savings_jobs", "memory saved and time added, jobs on one GPU", ("kernels",), "saved"),
    Entry("flash_amplification", "write amplification of a nearly full SSD", (), "designs"),
    Entry("flash_endurance", "life of SSDs", (), "designs"),
    Entry("flash_bandwidth", "performance over the number of drives", (), "sweeps"),
    Entry("vdnn_modes", "memory and performance of vDNN, by network and mode", (), "designs"),
    Entry("vdnn_bandwidth", "gain of vDNN++ over vDNN, by link bandwidth", (), "designs"),
    Entry("fragmentation", "memory taken over memory in use, by allocator", (), "designs"),
    Entry("gpus_per_uplink", "throughput and batch size of GPUs that share a link", (), "designs"),
    Entry("link_occupancy", "what crosses a shared link in an iteration", ("kernels", "migrations")),
    Entry("zero_ladder", "performance over the size of the model", (), "offloading"),
    Entry("training_gpu_memory", "training of language models over GPU memory", (), "offloading"),
    Entry("training_host_memory", "training of language models over host memory", (), "offloading"),
    Entry("training_ssd_bandwidth", "training of language models over SSD bandwidth", (), "offloading"),
    Entry("training_traffic", "bytes that a training step moves", (), "offloading"),
    Entry("training_lifetime", "life of SSDs under training", (), "offloading"),
    Entry("decode_gpu_memory", "decoded tokens a second over GPU memory", (), "offloading"),
    Entry("rok", "throughput over the peak of GPU memory: recompute, offload, keep", (), "offloading"),
)
_ONE_CELL = (
    Entry("memory", "memory in use while one cell runs", ("memory",), "cell"),
    Entry("timeline", "one cell over time", ("kernels", "migrations"), "cell"),
    Entry("stalls", "what the kernels of one cell waited for", ("kernels",), "cell"),
)
_SIZING = (Entry("knee", "performance over one resource, and the least that reaches a target"),)
_WITH_MEAN = ("fig11", "fig11b")
_MOST_TRACES = dict.fromkeys(("bound", "pools", "fig11", "fig11b"), 24) | {"fig13": 15}
_MOST_TRACES |= dict.fromkeys(("fig12", "fig14", "fig15"), 12)
_SWEEPS: Mapping[str, tuple[str, ...]] = {
    "fig16": ("system.host.memory",),
    "fig17": ("system.host.memory",),
    "fig18": ("system.ssd",),
    "fig19": ("workload.variation.magnitude",),
    "swaps": ("system.gpu.memory",),
    "savings": ("workload.jobs",),
    "savings_jobs": ("workload.jobs",),
    "flash_amplification": ("system.ssd.trim", "system.ssd.streams"),
    "flash_endurance": ("system.ssd",),
    "flash_bandwidth": ("system.ssd.drives",),
    "vdnn_modes": ("system.gpu.memory",),
    "vdnn_bandwidth": ("system.pcie.bandwidth",),
    "fragmentation": ("system.gpu.memory", r"policies\.\d+\.(mode|order|allocator)"),
    "gpus_per_uplink": ("workload.replicas",),
    "training_gpu_memory": ("system.gpu.memory",),
    "training_host_memory": ("system.host.memory",),
    "training_ssd_bandwidth": ("system.ssd",),
    "training_lifetime": ("system.ssd",),
    "decode_gpu_memory": ("system.gpu.memory",),
}
ENTRIES: Mapping[str, Entry] = {
    entry.name: replace(
        entry, sweeps=_SWEEPS.get(entry.name, ()), most_traces=_MOST_TRACES.get(entry.name, 0)
    )
    for entry in (
        *_PAPER,
        *(replace(entry, beyond_paper=True) for entry in _BEYOND),
        *(replace(entry, of_one_cell=True) for entry in _ONE_CELL),
        *(replace(entry, of_sizing=True) for entry in _SIZING),
    )
}


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
    return tuple(
        name
        for name, entry in ENTRIES.items()
        if not (entry.of_one_cell or entry.beyond_paper or entry.of_sizing)
    )
