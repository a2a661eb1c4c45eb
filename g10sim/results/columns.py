"""Names of columns: made from the memory tiers of a system, and read back from tables of any run."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator

from g10sim.places import tier_word
from g10sim.records import USUAL_TIERS, StallReason, Tiers, memory_columns, traffic_columns

Row = dict[str, int | float | str]
"""Columns of one job by name; text says which bound holds, all else is a number."""


def stall_columns(tiers: Iterable[str] = USUAL_TIERS) -> tuple[str, ...]:
    """Return the columns of stalls in a system with tiers of these names."""
    return tuple(reason.column for reason in StallReason.of_tiers(map(tier_word, tiers)))


def metric_columns(tiers: Tiers = USUAL_TIERS) -> tuple[str, ...]:
    """Return the metrics of results.csv in a system with these tiers: kinds by name, fastest first."""
    return (
        *("ideal_cycles", "exec_cycles", "exec_ms", "performance", "samples_per_s"),
        *("compute_cycles", "overlap_cycles", "stall_cycles"),
        *stall_columns(tiers),
        *traffic_columns(tiers),
        *("page_faults", "peak_gpu_bytes"),
        *memory_columns(tiers, "peak_{}_bytes"),
        *("footprint_bytes", "oversubscription", "events"),
        *("iterations", "steady", "period", "spread"),
    )


CPU_COLUMNS = ("cpu_cycles", "cpu_fetched_bytes", StallReason.CPU.column)
"""Further columns where the system has a CPU."""
CONTEXT_COLUMN = "context_gpu_bytes"
"""Further column where jobs take memory in addition to their tensors."""
STALL_COLUMNS = stall_columns()
METRIC_COLUMNS = metric_columns()
BOUND_COLUMNS = ("bound_cycles", "bound_kind", "of_bound")
"""Further columns, which compare a run with its bound; ``bound_kind`` is text."""
FLASH_COLUMNS = (
    "ssd_written_bytes",
    "ssd_flash_written_bytes",
    "ssd_write_amplification",
    "ssd_run_write_amplification",
    "ssd_erased_bytes",
    "ssd_written_bytes_per_year",
    "ssd_drive_writes_per_day",
    "ssd_rated_drive_writes_per_day",
    "ssd_years_to_rated_cycles",
    "ssd_years_to_rated_writes",
)
"""Further columns where the SSD's flash is modelled."""
CONTIGUOUS_COLUMNS = (
    *("reserved_gpu_bytes", "fragmentation", "largest_hole_bytes", "peak_pinned_bytes"),
    "mean_gpu_bytes",
)
"""Further columns of designs that copy whole tensors."""
IN_PLACE_COLUMNS = ("in_place_read_bytes", "in_place_written_bytes")
"""Further columns where kernels can use tensors in a memory tier."""
JOB_METRIC_COLUMNS: tuple[str, ...] = (
    "refused",
    "arrival_cycles",
    "start_cycles",
    "end_cycles",
    "slowdown",
    "peak_gpu_bytes_of_all",
    "makespan_cycles",
    "gpu_utilization",
    "total_samples_per_s",
)
"""Further columns of workloads with several jobs."""


def stall_reasons(columns: Iterable[Hashable]) -> dict[str, StallReason]:
    """Return the reasons that kernels of a table may stall for, by column."""
    return {column: StallReason(reason) for column, (reason,) in _parts(columns, r"stall_(\w+)_cycles")}


def traffic(columns: Iterable[Hashable]) -> dict[str, tuple[str, str]]:
    """Return source and target of the bytes that moved, by column."""
    found = _parts(columns, r"([^\W_]\w*)_to_(\w+)_bytes")
    return {column: (source, target) for column, (source, target) in found}


def fault_pages(columns: Iterable[Hashable]) -> dict[str, str]:
    """Return the word of the tier that page faults were served from, by column of pages."""
    return {column: word for column, (word,) in _parts(columns, r"(\w+)_fault_pages")}


def tiers_of(columns: Iterable[Hashable]) -> dict[str, str]:
    """Return the tiers of the systems of a results.csv: kinds by name, fastest first."""
    names = [str(column) for column in columns]
    found = [source for source, target in traffic(names).values() if target == "gpu"]
    return {name: "memory" if f"peak_{name}_bytes" in names else "ssd" for name in reversed(found)}


def memory_levels(columns: Iterable[Hashable]) -> dict[str, str]:
    """Return the word of each place but the GPU whose bytes in use a table of memory has, by column."""
    return {column: word for column, (word,) in _parts(columns, r"(\w+)_bytes") if word != "gpu"}


def _parts(columns: Iterable[Hashable], pattern: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the columns of a pattern with the parts of their names."""
    for column in columns:
        if match := re.fullmatch(pattern, str(column)):
            yield str(column), match.groups()
