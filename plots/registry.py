"""The figures that can be drawn: their names, what they show and which tables they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from g10sim.errors import ConfigError
from g10sim.registry import choices_text, nearest


@dataclass(frozen=True)
class Entry:
    """A figure. Its module has its name and a function ``draw(results, TABLE, ...)``.

    ``results`` are the rows of results.csv; ``tables`` name the Parquet tables that follow, in order. With
    ``of_one_cell`` it shows one cell of a run, and ``draw`` takes its number as ``cell``; otherwise it
    has an experiment of the same name, and is a figure of the G10 paper unless it is ``beyond_paper``.
    """

    name: str
    title: str
    tables: tuple[str, ...] = ()
    of_one_cell: bool = False
    beyond_paper: bool = False


ENTRIES: Mapping[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("fig2", "memory of all live tensors and of active ones", ("working_sets",)),
        Entry("fig3", "lengths of inactive periods", ("inactive_periods",)),
        Entry("fig4", "sizes of tensors and lengths of their inactive periods", ("inactive_periods",)),
        Entry("fig11", "performance of every policy"),
        Entry("fig12", "breakdown of the execution time"),
        Entry("fig13", "slowdown of kernels", ("kernels",)),
        Entry("fig14", "migration traffic"),
        Entry("fig15", "throughput by batch size"),
        Entry("fig16", "host memory, G10 with several batch sizes"),
        Entry("fig17", "host memory, several policies"),
        Entry("fig18", "SSD bandwidth"),
        Entry("fig19", "variation of kernel times"),
        Entry("fig20", "memory of live tensors by kind", ("working_sets",)),
        Entry("fig21", "memory of active tensors by kind", ("working_sets",)),
        Entry("pools", "memory pools: footprint over load", ("pools",), beyond_paper=True),
        Entry("swaps", "overhead against GPU memory", beyond_paper=True),
        Entry(
            "savings", "memory saved and time added, one training at a time", ("kernels",), beyond_paper=True
        ),
        Entry(
            "savings_jobs", "memory saved and time added, jobs on one GPU", ("kernels",), beyond_paper=True
        ),
        Entry("flash_amplification", "write amplification of a nearly full SSD", beyond_paper=True),
        Entry("flash_endurance", "life of SSDs", beyond_paper=True),
        Entry("flash_bandwidth", "performance over the number of drives", beyond_paper=True),
        Entry("vdnn_modes", "memory and performance of vDNN, by network and mode", beyond_paper=True),
        Entry("vdnn_bandwidth", "gain of vDNN++ over vDNN, by link bandwidth", beyond_paper=True),
        Entry("fragmentation", "memory taken over memory in use, by allocator", beyond_paper=True),
        Entry("gpus_per_uplink", "throughput and batch size of GPUs that share a link", beyond_paper=True),
        Entry("memory", "memory in use while one cell runs", ("memory",), of_one_cell=True),
        Entry("timeline", "one cell over time", ("kernels", "migrations"), of_one_cell=True),
        Entry("stalls", "what the kernels of one cell waited for", ("kernels",), of_one_cell=True),
    )
}


def find(name: str) -> Entry:
    """Return the figure of a name. Raises ConfigError."""
    if name not in ENTRIES:
        raise ConfigError(
            f"found no figure '{name}'{nearest(name, ENTRIES)}; allowed: {choices_text(ENTRIES)}, or all"
        )
    return ENTRIES[name]


def paper_figures() -> tuple[str, ...]:
    """Names of the figures of the G10 paper, in its order."""
    return tuple(name for name, entry in ENTRIES.items() if not (entry.of_one_cell or entry.beyond_paper))
