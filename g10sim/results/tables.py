"""Records, and the needs of traces, as pandas tables.

Tables of records have one row per record; the columns are the fields of the record. Nothing in the tables of
traces depends on the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from g10sim import records as recorded
from g10sim.analysis.footprint import live_bytes_by_kind, working_set_bytes_by_kind
from g10sim.analysis.timeline import kernel_starts
from g10sim.analysis.vitality import inactive_periods
from g10sim.results.columns import stall_columns
from g10sim.trace.repetition import each
from g10sim.trace.workload import Job

if TYPE_CHECKING:
    import pandas as pd


TABLES: Mapping[str, type[recorded.TierRecord]] = {
    "kernels": recorded.KernelRecord,
    "migrations": recorded.MigrationRecord,
    "memory": recorded.MemoryRecord,
}


_TYPES = dict.fromkeys(("source", "target", "cause", "kind", "pool"), "string")
_TYPES |= dict.fromkeys(("persistent", "wraps"), "bool")
"""Types of columns that are not whole numbers."""


def records_table(name: str, records: recorded.RunRecords, jobs: Sequence[Job] = ()) -> pd.DataFrame:
    """Make the table of a name in ``TABLES``, one row per record; times in cycles, places by name.

    The columns depend on the tiers of the system alone, and on whether it has a CPU. Stalls of kernels have
    one column per reason; with ``jobs`` that accumulate gradients they have their ``micro_batch``, too.
    """
    import pandas as pd

    columns = [column for column in TABLES[name].column_names(records.tiers) if column != "stalls"]
    rows = [record.columns() for record in getattr(records, name)]
    table = _typed(pd.DataFrame({column: [_plain(row[column]) for row in rows] for column in columns}))
    if name != "kernels":
        return table
    spread = [{reason.column: cycles for reason, cycles in record.stalls} for record in records.kernels]
    has_cpu = any(record.cpu is not None for record in records.iterations)
    reasons = [*stall_columns(records.tiers), *([recorded.StallReason.CPU.column] if has_cpu else [])]
    stalls = pd.DataFrame(spread, columns=reasons, index=table.index)
    numbers = [np.array(_micro_batches(job), dtype=np.int64) for job in jobs]
    if any(found.any() for found in numbers):
        places = zip(table["job"], table["kernel"], strict=True)
        table["micro_batch"] = [numbers[job][kernel] for job, kernel in places]
    return table.join(stalls.fillna(0).astype("int64"))


def _micro_batches(job: Job) -> list[int]:
    return list(each(job.trace.kernels, attrgetter("micro_batch")))


def _plain(value: object) -> object:
    return value.name if isinstance(value, Enum | recorded.Location) else value


def working_sets_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per job, kernel and kind of tensor: bytes of it that are alive, and that the kernel uses.

    ``start`` is when the kernel starts if none ever waits, ``duration`` how long it takes, both in cycles;
    ``micro_batch`` is the kernel's, 0 for none.
    """
    return _table((_working_sets(job, clock_hz) for job in jobs), _WORKING_SETS)


def inactive_periods_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per inactive period: the tensor, its kind and size, and how long the period is.

    Kernels ``start_kernel`` to ``end_kernel`` - 1 do not touch the tensor; one that ``wraps`` crosses the
    border of the iteration. ``kernels`` counts them, ``cycles`` is the sum of their durations.
    """
    return _table((_inactive_periods(job, clock_hz) for job in jobs), _INACTIVE_PERIODS)


def pools_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per job and memory pool: its footprint over some iterations, and the load, in bytes."""
    from g10sim.results.pools import compare_pools  # what runs nothing needs no allocators

    return _table((map(asdict, compare_pools(job.trace)) for job in jobs), _POOLS)


TRACE_TABLES: Mapping[str, Callable[[Sequence[Job], int], pd.DataFrame]] = {
    "working_sets": working_sets_table,
    "inactive_periods": inactive_periods_table,
    "pools": pools_table,
}

_WORKING_SETS = ["job", "kernel", "start", "duration", "micro_batch", "kind", "live_bytes", "active_bytes"]
_POOLS = ["job", "pool", "load_bytes", "footprint_bytes"]
_INACTIVE_PERIODS = [
    *("job", "tensor", "kind", "size_bytes", "persistent", "start_kernel", "end_kernel", "wraps"),
    *("kernels", "cycles"),
]


def _table(parts: Iterable[pd.DataFrame | Iterable[Any]], columns: list[str]) -> pd.DataFrame:
    """Make a table of the rows of each job, whose column types do not depend on the rows."""
    import pandas as pd

    tables = [pd.DataFrame(part, columns=columns).assign(job=job) for job, part in enumerate(parts)]
    return pd.concat(map(_typed, tables or [pd.DataFrame(columns=columns)]), ignore_index=True)


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype({column: _TYPES.get(str(column), "int64") for column in table})


def _working_sets(job: Job, clock_hz: int) -> pd.DataFrame:
    import pandas as pd

    starts, kernels = kernel_starts(job.trace, clock_hz), len(job.trace.kernels)
    live, active = live_bytes_by_kind(job.trace), working_set_bytes_by_kind(job.trace)
    return pd.DataFrame(
        {
            "kernel": np.repeat(np.arange(kernels), len(live)),
            "start": np.repeat(starts[:-1], len(live)),
            "duration": np.repeat(np.diff(starts), len(live)),
            "micro_batch": np.repeat(_micro_batches(job), len(live)),
            "kind": [kind.value for kind in live] * kernels,
            "live_bytes": np.array(list(live.values())).T.ravel(),
            "active_bytes": np.array([active[kind] for kind in live]).T.ravel(),
        }
    )


def _inactive_periods(job: Job, clock_hz: int) -> Iterator[dict[str, Any]]:
    trace, starts = job.trace, kernel_starts(job.trace, clock_hz)
    for period in inactive_periods(trace):
        tensor = trace.tensors[period.tensor]
        yield {
            "tensor": tensor.id,
            "kind": tensor.kind.value,
            "size_bytes": tensor.size_bytes,
            "persistent": tensor.persistent,
            "start_kernel": period.start,
            "end_kernel": period.end,
            "wraps": period.wraps,
            "kernels": period.num_kernels(len(trace.kernels)),
            "cycles": period.cycles(starts),
        }
