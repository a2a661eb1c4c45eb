"""What the traces of a workload ask of memory, as pandas tables; nothing in them depends on the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from g10sim.analysis.footprint import live_bytes_by_kind
from g10sim.analysis.timeline import kernel_starts
from g10sim.analysis.vitality import inactive_periods
from g10sim.analysis.working_set import working_set_bytes_by_kind
from g10sim.hardware.allocators.comparison import compare_pools
from g10sim.trace.workload import Job

if TYPE_CHECKING:
    import pandas as pd


def working_sets_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per job, kernel and kind of tensor: bytes of it that are alive, and that the kernel uses.

    ``start`` is when the kernel starts if none ever waits, ``duration`` how long it takes, both in cycles.
    """
    import pandas as pd

    parts = [_working_sets(number, job, clock_hz) for number, job in enumerate(jobs)]
    return pd.concat(parts, ignore_index=True) if parts else _empty(_WORKING_SETS)


def inactive_periods_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per inactive period: the tensor, its kind and size, and how long the period is.

    Kernels ``start_kernel`` to ``end_kernel`` - 1 do not touch the tensor; one that ``wraps`` crosses the
    border of the iteration. ``kernels`` counts them, ``cycles`` is the sum of their durations.
    """
    import pandas as pd

    parts = [_inactive_periods(number, job, clock_hz) for number, job in enumerate(jobs)]
    return pd.concat(parts, ignore_index=True) if parts else _empty(_INACTIVE_PERIODS)


def pools_table(jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    """One row per job and memory pool: its footprint over some iterations, and the load, in bytes."""
    import pandas as pd

    rows = [
        {
            "job": number,
            "pool": use.pool,
            "load_bytes": use.load_bytes,
            "footprint_bytes": use.footprint_bytes,
        }
        for number, job in enumerate(jobs)
        for use in compare_pools(job.trace)
    ]
    return pd.DataFrame(rows, columns=list(_POOLS)).astype(dict(_POOLS))


TRACE_TABLES: Mapping[str, Callable[[Sequence[Job], int], pd.DataFrame]] = {
    "working_sets": working_sets_table,
    "inactive_periods": inactive_periods_table,
    "pools": pools_table,
}

_WORKING_SETS = {
    "job": "int64",
    "kernel": "int64",
    "start": "int64",
    "duration": "int64",
    "kind": "string",
    "live_bytes": "int64",
    "active_bytes": "int64",
}
_POOLS = {"job": "int64", "pool": "string", "load_bytes": "int64", "footprint_bytes": "int64"}
_INACTIVE_PERIODS = {
    "job": "int64",
    "tensor": "int64",
    "kind": "string",
    "size_bytes": "int64",
    "persistent": "bool",
    "start_kernel": "int64",
    "end_kernel": "int64",
    "wraps": "bool",
    "kernels": "int64",
    "cycles": "int64",
}


def _empty(columns: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns=list(columns)).astype(dict(columns))


def _working_sets(number: int, job: Job, clock_hz: int) -> pd.DataFrame:
    import pandas as pd

    trace = job.trace
    starts = kernel_starts(trace, clock_hz)
    active = working_set_bytes_by_kind(trace)
    parts = [
        pd.DataFrame(
            {
                "job": number,
                "kernel": np.arange(len(trace.kernels)),
                "start": starts[:-1],
                "duration": np.diff(starts),
                "kind": kind.value,
                "live_bytes": live,
                "active_bytes": active[kind],
            }
        )
        for kind, live in live_bytes_by_kind(trace).items()
    ]
    table = pd.concat(parts, ignore_index=True) if parts else _empty(_WORKING_SETS)
    return table.sort_values("kernel", kind="stable").astype(_WORKING_SETS)


def _inactive_periods(number: int, job: Job, clock_hz: int) -> pd.DataFrame:
    import pandas as pd

    trace = job.trace
    starts = kernel_starts(trace, clock_hz)
    rows = []
    for period in inactive_periods(trace):
        tensor = trace.tensors[period.tensor]
        place = (period.start, period.end, period.wraps)
        length = (period.num_kernels(len(trace.kernels)), period.cycles(starts))
        kind = (tensor.kind.value, tensor.size_bytes, tensor.persistent)
        rows.append((number, tensor.id, *kind, *place, *length))
    return pd.DataFrame(rows, columns=list(_INACTIVE_PERIODS)).astype(_INACTIVE_PERIODS)
