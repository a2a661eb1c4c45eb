"""What the records say about one kernel of a cell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from g10sim.cli.explain_words import PLACES, reason_of, seconds
from g10sim.cli.text import rounded_bytes
from g10sim.errors import ConfigError
from g10sim.experiment.opened import OpenedCell
from g10sim.records import MigrationCause
from g10sim.stats.summary import STALL_COLUMNS
from g10sim.trace.model import Kernel

if TYPE_CHECKING:
    import pandas as pd

_CAUSES = {
    MigrationCause.PAGE_FAULT.name: "demanded",
    MigrationCause.PREFETCH.name: "prefetched",
    MigrationCause.PLANNED_EVICTION.name: "evicted as planned",
    MigrationCause.MAKING_ROOM.name: "pushed out to make room",
}


def describe_kernel(opened: OpenedCell, number: int) -> Iterator[str]:
    """Yield lines about a kernel of the reported iteration: its time, its faults, and each of its tensors.

    Raises ConfigError where there is no such kernel or kernels were not recorded.
    """
    if opened.kernels is None:
        raise ConfigError(
            "kernel: found no kernels.parquet; allowed: results of a run with 'record: [kernels]'"
        )
    kernels = opened.trace.kernels
    if not 0 <= number < len(kernels):
        raise ConfigError(f"kernel {number}: found no such kernel; allowed: 0 to {len(kernels) - 1}")
    kernel = kernels[number]
    record = opened.kernels[opened.kernels["kernel"] == number].iloc[0]
    where = f", {kernel.layer}" if kernel.layer else ""
    yield (
        f"Kernel {number} ({kernel.name}{where}) of cell {int(opened.row['cell'])}, iteration "
        f"{record['iteration']}: {seconds(opened, record['end'] - record['start'])}, of which "
        f"{seconds(opened, record['compute_cycles'])} computing and "
        f"{seconds(opened, record['stall_cycles'])} stalled"
    )
    for column in STALL_COLUMNS:
        if record.get(column):
            yield f"  stalled {seconds(opened, record[column])}: {reason_of(column)}"
    yield from _pages(opened, record)
    yield from _tensors(opened, kernel, record)


def _pages(opened: OpenedCell, record: pd.Series[int]) -> Iterator[str]:
    page = opened.system.gpu.page_size
    if opened.row["page_faults"]:
        for column, place in (
            ("host_fault_pages", "in host memory"),
            ("flash_fault_pages", "on the SSD"),
            ("first_touch_pages", "new"),
        ):
            if record[column]:
                size = rounded_bytes(int(record[column]) * page)
                yield f"  {record[column]:,} pages ({size}) faulted: {place}"
    if record["in_transfer_pages"]:
        size = rounded_bytes(int(record["in_transfer_pages"]) * page)
        yield f"  {size} of its tensors were in transfer when it started"


def _tensors(opened: OpenedCell, kernel: Kernel, record: pd.Series[int]) -> Iterator[str]:
    yield f"Its {len(kernel.tensors)} tensors:"
    for number in kernel.tensors:
        tensor = opened.trace.tensors[number]
        role = "reads" if number in kernel.inputs else "writes"
        yield f"  {role} {tensor.name} ({tensor.kind.value}, {rounded_bytes(tensor.size_bytes)})"
        if opened.migrations is not None:
            moves = opened.migrations[opened.migrations["tensor"] == number]
            yield from (f"    {line}" for line in _history(opened, moves, record))
    if opened.migrations is None:
        yield "  how they got there is not in these results; run with 'record: [kernels, migrations]'"


def _history(opened: OpenedCell, moves: pd.DataFrame, record: pd.Series[int]) -> Iterator[str]:
    """Say when a tensor last left the GPU and when it came (back), as seen from the start of the kernel."""
    start, end = record["start"], record["start"] + record["stall_cycles"]
    before = moves[moves["start"] <= end]
    arrivals = before[before["target"] == "GPU"]
    departures = before[(before["source"] == "GPU") & (before["target"] != "NONE")]
    if not arrivals.empty:
        departures = departures[departures["start"] <= arrivals["start"].iloc[-1]]
    for last in (departures.tail(1), arrivals.tail(1)):
        if not last.empty:
            move = last.iloc[0]
            way = (
                f"from {PLACES[move['source']]}"
                if move["target"] == "GPU"
                else f"to {PLACES[move['target']]}"
            )
            since, until = _relative(opened, move["start"] - start), _relative(opened, move["end"] - start)
            cause, size = _CAUSES.get(move["cause"], move["cause"]), rounded_bytes(int(move["size_bytes"]))
            yield f"{cause} {way}, {size}: began {since}, done {until}"
    if arrivals.empty and departures.empty:
        yield "was on the GPU all the time"


def _relative(opened: OpenedCell, cycles: int) -> str:
    if cycles == 0:
        return "when the kernel started"
    return f"{seconds(opened, abs(cycles))} {'before' if cycles < 0 else 'after'} it started"
