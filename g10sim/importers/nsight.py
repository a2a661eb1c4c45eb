"""Reports of NVIDIA Nsight Systems, exported to SQLite: kernels, copies and allocations of one GPU.

A report tells when kernels ran and when memory was allocated and released, but not which kernel uses which
allocation. Tables and columns are those of NVIDIA's "SQLite Export Schema Reference"
(docs.nvidia.com/nsight-systems, nsys-exporter/exported_data.html).
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from g10sim.errors import TraceError
from g10sim.importers.operations import Operation, Storage, build_trace
from g10sim.registry import choices_text
from g10sim.text import shown
from g10sim.trace.model import Phase, Trace

_WHAT = "a report of Nsight Systems as SQLite (nsys export --type sqlite)"
_KERNELS, _COPIES, _FILLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
_MEMORY, _STRINGS = "CUDA_GPU_MEMORY_USAGE_EVENTS", "StringIds"
_COLUMNS: Mapping[str, Sequence[str]] = {
    _KERNELS: ("start", "end", "deviceId", "shortName"),
    _COPIES: ("start", "end", "deviceId", "copyKind", "bytes"),
    _FILLS: ("start", "end", "deviceId", "bytes"),
    _MEMORY: ("start", "deviceId", "address", "bytes", "memoryOperationType"),
    _STRINGS: ("id", "value"),
}
_MEMORY_KIND = "memKind"
_DEVICE_KINDS = (2, 3, 4, 5, 6)
"""Of ENUM_CUDA_MEM_KIND: device memory, arrays, managed and static memory; the others lie in host memory."""
_ALLOCATED, _RELEASED = 0, 1
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 8
"""Of CUpti_ActivityMemcpyKind: host to device, device to host, device to device."""
_DIRECTIONS = {_TO_DEVICE: "host to GPU", _TO_HOST: "GPU to host"}
_MOST = 2**62


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and GPU in one direction: how many, their bytes, and the nanoseconds of all."""

    direction: str
    count: int
    size_bytes: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class _Work:
    """Something that the GPU did: a kernel, a fill, or a copy in its own memory."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Life:
    """An allocation: its bytes, and when it began and ended; None where that is not in the report."""

    size_bytes: int
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """Facts that a report has about one GPU."""

    path: Path
    device: int
    work: tuple[_Work, ...]
    lives: tuple[_Life, ...]
    copies: tuple[Copies, ...]


def read_report(path: Path, device: int | None = None) -> Report:
    """Read a report of one GPU, the only one or ``device``.

    Raises TraceError naming the file, table, what was found and what is allowed.
    """
    if not path.is_file():
        raise TraceError(f"{path}: found no such file; allowed: {_WHAT}")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)) as database:
            return _report(path, database, device)
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}; allowed: {_WHAT}") from error


def _report(path: Path, database: sqlite3.Connection, device: int | None) -> Report:
    rows = {table: list(_rows(path, database, table)) for table in _COLUMNS}
    if not rows[_KERNELS]:
        raise TraceError(
            f"{path}: {_KERNELS}: found no kernel; allowed: a report of CUDA (nsys profile -t cuda)"
        )
    if not rows[_MEMORY]:
        raise TraceError(
            f"{path}: {_MEMORY}: found no allocation; allowed: a report with them "
            "(nsys profile --cuda-memory-usage=true)"
        )
    devices = sorted({row["deviceId"] for row in rows[_KERNELS]})
    if (device is None and len(devices) > 1) or (device is not None and device not in devices):
        found = "several devices" if device is None else f"--device {device}"
        raise TraceError(
            f"{path}: found {found}; allowed: --device with one of {choices_text(map(str, devices))}"
        )
    chosen = devices[0] if device is None else device
    own = {
        table: [row for row in found if row.get("deviceId", chosen) == chosen]
        for table, found in rows.items()
    }
    names = {row["id"]: row["value"] for row in own[_STRINGS]}
    work = [
        _Work(str(names.get(row["shortName"], "kernel")), row["start"], row["end"]) for row in own[_KERNELS]
    ]
    work += [_Work("memset", row["start"], row["end"]) for row in own[_FILLS]]
    inside = (row for row in own[_COPIES] if row["copyKind"] == _ON_DEVICE)
    work += [_Work("memcpy", row["start"], row["end"]) for row in inside]
    copies = tuple(_copies(own[_COPIES], kind) for kind in _DIRECTIONS)
    ordered = sorted(work, key=lambda one: (one.start_ns, one.end_ns))
    return Report(path, chosen, tuple(ordered), tuple(_lives(path, own[_MEMORY])), copies)


def _rows(path: Path, database: sqlite3.Connection, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, in the order of time; none of a table that is not there."""
    present = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    if not present:
        return
    missing = set(_COLUMNS[table]) - set(present)
    if missing:
        raise TraceError(f"{path}: {table}: found no column {choices_text(missing)}; allowed: {_WHAT}")
    optional = [_MEMORY_KIND] if _MEMORY_KIND in present and table == _MEMORY else []
    columns = [*_COLUMNS[table], *optional]
    order = "start" if "start" in columns else "id"
    names = ", ".join(f'"{name}"' for name in columns)
    for row in database.execute(f"SELECT {names} FROM {table} ORDER BY {order}"):
        found = dict(zip(columns, row, strict=True))
        for name, value in found.items():
            if name != "value" and not (isinstance(value, int) and 0 <= value < _MOST):
                raise TraceError(
                    f"{path}: {table}.{name}: found {shown(value)}; allowed: a whole number, at least 0"
                )
        if found.get("end", _MOST) < found.get("start", 0):
            raise TraceError(f"{path}: {table}: found an end before its start; allowed: {_WHAT}")
        yield found


def _copies(rows: Sequence[Mapping[str, Any]], kind: int) -> Copies:
    found = [row for row in rows if row["copyKind"] == kind]
    taken = sum(row["end"] - row["start"] for row in found)
    return Copies(_DIRECTIONS[kind], len(found), sum(row["bytes"] for row in found), taken)


def _lives(path: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Life]:
    """Yield the allocations: those that were released in the order of release, then those that were not."""
    alive: dict[int, Mapping[str, Any]] = {}
    for row in rows:
        if row.get(_MEMORY_KIND, _DEVICE_KINDS[0]) not in _DEVICE_KINDS or not row["bytes"]:
            continue
        if row["memoryOperationType"] == _ALLOCATED:
            alive[row["address"]] = row
        elif row["memoryOperationType"] == _RELEASED:
            made = alive.pop(row["address"], None)
            yield _Life(row["bytes"], None if made is None else made["start"], row["start"])
        else:
            raise TraceError(
                f"{path}: {_MEMORY}.memoryOperationType: found {row['memoryOperationType']}; "
                "allowed: 0 for an allocation, 1 for a release"
            )
    for made in alive.values():
        yield _Life(made["bytes"], made["start"], None)


def import_nsight(report: Report, *, model: str | None, batch_size: int) -> Trace:
    """Make a trace of a report: its kernels in the order of their starts, and its allocations as tensors.

    A kernel takes the time from its start, or the end of what ran before if that is later, to its end: so
    what runs at a time counts once. A tensor is written by the first kernel after its allocation and read by
    the last before its release; in between the report does not tell. Copies between host and GPU are left
    out. Raises TraceError as the trace's check does.
    """
    starts = [work.start_ns for work in report.work]
    operations = []
    busy = 0
    for work in report.work:
        taken = max(work.end_ns - max(work.start_ns, busy), 0)
        busy = max(busy, work.end_ns)
        operations.append(Operation(work.name, Phase.OTHER, duration_ns=taken))
    for life in report.lives:
        first = 0 if life.start_ns is None else bisect_left(starts, life.start_ns)
        last = (len(starts) if life.end_ns is None else bisect_left(starts, life.end_ns)) - 1
        if first > last:
            continue  # no kernel started while it was there
        storage = Storage(life.size_bytes, external=life.start_ns is None)
        if life.start_ns is not None:
            operations[first].writes[storage] = None
        operations[last].reads[storage] = None
        if storage.external:
            operations[first].reads[storage] = None
    origin = {
        "source": "report of Nsight Systems",
        "device_number": f"{report.device}",
        "time_source": "measured",
    }
    return build_trace(operations, report.path, model, batch_size, origin)
