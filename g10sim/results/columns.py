"""Columns of results.csv in one table: name, unit, formula, and the systems and designs that have them.

Formulas are Markdown, in the symbols of docs/results.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.places import tier_word
from g10sim.records import EXCHANGED_COLUMN, USUAL_TIERS, StallReason, Tiers, memory_columns, traffic_columns

Row = dict[str, int | float | str]
"""Columns of one job by name; text says which bound holds, all else is a number."""

STATUSES = OK, UNSUPPORTED, FAILED = "ok", "unsupported", "failed"
"""Outcomes of a cell."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its unit (empty for a share or a count), its formula, and its title in figures."""

    name: str
    unit: str
    formula: str
    title: str = ""


class ColumnGroup:
    """Columns that appear together, under a name in docs/results.md, where it ``applies`` to a cell."""

    def __init__(self, name: str, applies: Callable[[Any], bool], *columns: Column) -> None:
        self.name, self.applies, self.columns = name, applies, columns

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)


def _stall(reason: StallReason) -> Column:
    return Column(reason.column, "cycles", f"sum over *k* of W(*k*, `{reason}`): {reason.words}")


def metrics(tiers: Tiers = USUAL_TIERS) -> tuple[Column, ...]:
    """Return the metrics in a system with these tiers: kinds by name, fastest first."""
    moved = ((name, re.sub(r"(\w+)_to_(\w+)_bytes", r"\1, \2", name)) for name in traffic_columns(tiers))
    return (
        Column("ideal_cycles", "cycles", "sum over *k* of D(*k*), with `workload.variation` of the times "
               "that were executed; of the trace's own kernels, where the policy chose slower ones"),
        Column("exec_cycles", "cycles", "E - S"),
        Column("exec_ms", "ms", "1000 * `exec_cycles` / *f*", "time of an iteration (ms)"),
        Column("performance", "", "`ideal_cycles` / `exec_cycles`", "performance (ideal = 1)"),
        Column("samples_per_s", "1/s", "*B* * *f* / `exec_cycles`", "throughput (samples/s)"),
        Column("compute_cycles", "cycles", "sum over *k* of D(*k*) - `overlap_cycles`: computing with "
               "nothing in transfer"),
        Column("overlap_cycles", "cycles", "sum over *k* of O(*k*): computing while pages move"),
        Column("stall_cycles", "cycles", "sum over *k*, *r* of W(*k*, *r*)"),
        *map(_stall, StallReason.of_tiers(map(tier_word, tiers))),
        *(Column(name, "bytes", f"*p* * P({pair})") for name, pair in moved),
        Column("page_faults", "pages", "pages that a kernel demanded, first touches included, pages already "
               "in transfer not"),
        Column("peak_gpu_bytes", "bytes", "most GPU memory in use at a time"),
        *(Column(name, "bytes", "most memory of the tier in use at a time, by all jobs together")
          for name in memory_columns(tiers, "peak_{}_bytes")),
        Column("footprint_bytes", "bytes", "sum over tensors *t* of z(*t*), whether alive at the same time "
               "or not"),
        Column("oversubscription", "", "`footprint_bytes` / M"),
        Column("events", "", "kernel executions and steps of the transfers, of all iterations: the "
               "simulator's own work"),
        Column("iterations", "", "iterations that were run"),
        Column("steady", "", "`True`: iterations go on as the last ones [went](model.md#steady-state); "
               "`False`: they may not; empty after one iteration"),
        Column("period", "", "iterations after which exactly the same comes again: 1 where each is like the "
               "one before it; empty where that is not known"),
        Column("spread", "", "(longest - shortest) / mean time of the iterations that the row is the average "
               "of; empty after one iteration"),
    )  # fmt: skip


BOUND = ColumnGroup(
    "bound", lambda cell: True,
    Column("bound_cycles", "cycles", "closed form of the [bound](bound.md): no paged policy that drops "
           "nothing takes less; empty where none holds"),
    Column("bound_kind", "", "`steady`: it holds for the average of steady iterations, as this one is; "
           "`iteration`: for every single one; `none: REASON`"),
    Column("of_bound", "", "`bound_cycles` / `exec_cycles`: 1 is the best possible. A `steady` iteration "
           "may exceed it by as much as steady ones differ", "bound / time (best = 1)"),
)  # fmt: skip
IN_PLACE = ColumnGroup(
    "accessed", lambda cell: any(tier.kernel_access for tier in cell.system.all_tiers),
    Column("in_place_read_bytes", "bytes", "bytes that kernels read in memory tiers, each as often as "
           "they read it"),
    Column("in_place_written_bytes", "bytes", "bytes that kernels wrote in memory tiers"),
)  # fmt: skip
CPU = ColumnGroup(
    "cpu", lambda cell: cell.system.cpu is not None,
    Column("cpu_cycles", "cycles", "cycles of S to E during which a kernel of the job, of this iteration "
           "or the one before, computed on the CPU"),
    Column("cpu_fetched_bytes", "bytes", "bytes that came from other tiers straight to host memory for "
           "such kernels"),
    _stall(StallReason.CPU),
)  # fmt: skip
EXCHANGED = ColumnGroup(
    "exchanged", lambda cell: cell.sends,
    Column(EXCHANGED_COLUMN, "bytes", "bytes that the GPU sent during S to E in exchanges with other "
           "replicas: to the next one, or to the host with `method: host`; to other "
           "[stages](multi-gpu.md#pipelines)"),
)  # fmt: skip
CONTEXT = ColumnGroup(
    "context", lambda cell: bool(cell.system.gpu.beside_tensors),
    Column("context_gpu_bytes", "bytes", "memory that contexts and scratch of all jobs that may be on "
           "the job's GPU at a time take; no other column counts it"),
)  # fmt: skip
CONTIGUOUS = ColumnGroup(
    "contiguous", lambda cell: cell.copies_tensors,
    Column("reserved_gpu_bytes", "bytes", "GPU memory that some block has covered in the iteration; with "
           "a caching pool, most memory in chunks at a time"),
    Column("fragmentation", "", "`reserved_gpu_bytes` / `peak_gpu_bytes`: 1 is memory without a gap"),
    Column("largest_hole_bytes", "bytes", "largest block that could have been allocated when "
           "`peak_gpu_bytes` were in use"),
    Column("peak_pinned_bytes", "bytes", "most pinned host memory in use at a time, by all jobs"),
    Column("mean_gpu_bytes", "bytes", "GPU memory in use by the job's tensors, averaged over the cycles "
           "from S to E: what vDNN calls average memory"),
)  # fmt: skip
FLASH = ColumnGroup(
    "flash", lambda cell: any(isinstance(tier.drive, FlashSsdSpec) for tier in cell.system.all_tiers),
    Column("ssd_written_bytes", "bytes", "written to the SSD"),
    Column("ssd_flash_written_bytes", "bytes", "programmed into flash: the same, copies made by garbage "
           "collection, and data moved from the single-level region"),
    Column("ssd_write_amplification", "", "`ssd_flash_written_bytes` / `ssd_written_bytes`; 1 where "
           "nothing is written"),
    Column("ssd_run_write_amplification", "", "the same over all iterations so far: a drive takes time "
           "to settle"),
    Column("ssd_erased_bytes", "bytes", "erased, in whole superblocks"),
    Column("ssd_written_bytes_per_year", "bytes/year", "`ssd_written_bytes` * (365 * 86400 * *f* / "
           "`exec_cycles`): the iteration repeated day and night"),
    Column("ssd_drive_writes_per_day", "1/day", "`ssd_written_bytes_per_year` / 365 / capacity of all "
           "drives, data of others included"),
    Column("ssd_rated_drive_writes_per_day", "1/day", "those that the warranty covers: `rating.written` "
           "/ capacity of a drive / (365 * `rating.years`)"),
    Column("ssd_years_to_rated_cycles", "years", "rated program/erase cycles * all flash / "
           "`ssd_flash_written_bytes` of a year; `inf` where nothing is written"),
    Column("ssd_years_to_rated_writes", "years", "host writes that the warranty covers / "
           "`ssd_written_bytes_per_year`"),
)  # fmt: skip
JOBS = ColumnGroup(
    "jobs", lambda cell: not cell.one_job,
    Column("job", "", "number of the job, in the order of `workload.jobs` with `copies` counted"),
    Column("gpu", "", "the GPU it runs on"),
    Column("priority", "", "its priority"),
    Column("refused", "", "1: refused on arrival for lack of memory; the job never ran, and the columns "
           "of its iteration are empty"),
    Column("arrival_cycles", "cycles", "when it arrived"),
    Column("start_cycles", "cycles", "when it was admitted to its GPU"),
    Column("end_cycles", "cycles", "when it left the GPU"),
    Column("slowdown", "", "(`end_cycles` - `arrival_cycles`) / sum of `ideal_cycles` of all its "
           "iterations: 1 is a GPU to itself with room for everything"),
    Column("peak_gpu_bytes_of_all", "bytes", "most memory of its GPU in use at a time by all jobs "
           "together, in the iteration that is reported of this one"),
    Column("makespan_cycles", "cycles", "last `end_cycles` - first `arrival_cycles`, of all jobs"),
    Column("gpu_utilization", "", "sum of D(*k*) over all kernels of all iterations of all jobs / "
           "(`makespan_cycles` * number of GPUs that jobs are on)"),
    Column("total_samples_per_s", "1/s", "*f* * sum over jobs that ran of *B* * `iterations` / "
           "`makespan_cycles`"),
)  # fmt: skip
FURTHER = {group.name: group for group in (BOUND, IN_PLACE, CPU, EXCHANGED, CONTEXT, CONTIGUOUS, FLASH)}
"""Groups of further metrics of an iteration by name, in the order of results.csv."""


def metric_columns(tiers: Tiers = USUAL_TIERS) -> tuple[str, ...]:
    """Return the names of the metrics in a system with these tiers: kinds by name, fastest first."""
    return tuple(column.name for column in metrics(tiers))


def tier_columns(columns: Iterable[Hashable]) -> frozenset[str]:
    """Return those of the columns of a results.csv that a system without one of its tiers lacks."""
    return frozenset(metric_columns(tiers_of(columns))).difference(metric_columns({}))


def stall_columns(tiers: Iterable[str] = USUAL_TIERS) -> tuple[str, ...]:
    """Return the columns of stalls in a system with tiers of these names."""
    return tuple(reason.column for reason in StallReason.of_tiers(map(tier_word, tiers)))


TITLES = {column.name: column.title for column in (*metrics(), *BOUND.columns) if column.title}
"""Titles of columns in figures and reports."""


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


SHOWN: Mapping[str, Callable[[Any], Any]] = {
    "time (ms)": lambda rows: rows["exec_ms"],
    "of ideal": lambda rows: rows["performance"],
    "samples/s": lambda rows: rows["samples_per_s"],
    "stall": lambda rows: rows["stall_cycles"] / (rows["exec_cycles"] + (rows["exec_cycles"] == 0)),
    "moved (GB)": lambda rows: sum(rows[column] for column in traffic(rows)) / 1e9,
    "page faults": lambda rows: rows["page_faults"],
    "peak GPU (GiB)": lambda rows: rows["peak_gpu_bytes"] / 2**30,
}
"""Measures in tables for people, by title: from one row of results, or from all."""
