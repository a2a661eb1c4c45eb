"""Reports of NVIDIA Nsight Systems, exported to SQLite: kernels, copies and allocations of one GPU.

A report tells when kernels ran and when memory was allocated and released, but not which kernel uses which
allocation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from g10sim.display import rounded_bytes, rounded_seconds
from g10sim.errors import TraceError, choices_text
from g10sim.importers import nsight_tables
from g10sim.importers.account import Account, Reason, accounted
from g10sim.importers.kineto_events import Span, Thread
from g10sim.importers.kineto_work import Draft, idle_between, take_times
from g10sim.importers.operations import Operation, Storage, build_trace
from g10sim.trace.model import Phase, Trace

_HOST_KINDS = (0, 1)
"""Of ENUM_CUDA_MEM_KIND: pageable and pinned memory; the others, unknown ones too, are not the host's."""
_ALLOCATED, _RELEASED = 0, 1
_TO_DEVICE, _TO_HOST, _IN_HOST = 1, 2, 9
"""Of ENUM_CUDA_MEMCPY_OPER: host to device, device to host, host to host."""
_DIRECTIONS = {_TO_DEVICE: "host to GPU", _TO_HOST: "GPU to host"}
_MIGRATIONS = {11: "host to GPU", 12: "GPU to host", 13: "GPU to GPU"}
"""Of ENUM_CUDA_MEMCPY_OPER: pages of managed memory that the driver moved (UVM)."""
_MIGRATED = "migrations of managed memory"
_PROCESSES = "other processes"
_PROCESS_SHIFT, _MOST_PROCESSES = 24, 2**24
"""A globalPid has the process id in these bits ("Common SQLite Examples" of the same documentation)."""
_NANOSECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies in one direction: how many, their bytes, and the nanoseconds of all."""

    direction: str
    count: int
    size_bytes: int
    duration_ns: int


class _Place(NamedTuple):
    """Place where something ran, the thread of its span: device and process (None: not recorded)."""

    device: int
    process: int | None

    def has(self, other: Thread) -> bool:
        """Return whether another place is this one, as far as it is recorded."""
        device, process = other
        return device == self.device and (None in (process, self.process) or self == other)


@dataclass(frozen=True, slots=True)
class _Life:
    """An allocation: its bytes, and when it began and ended; None where that is not in the report."""

    size_bytes: int
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """Facts that a report has about one process and GPU.

    ``work`` becomes kernels, in the order of starts: kernels, fills, copies, and whole graphs (``graphs``),
    whose kernels are not recorded. ``migrations`` are what the driver moved, ``others`` what ran elsewhere.
    """

    path: Path
    device: int
    process: int | None
    work: tuple[Span, ...]
    graphs: tuple[Span, ...]
    lives: tuple[_Life, ...]
    copies: tuple[Copies, ...]
    migrations: tuple[Span, ...]
    migrated: tuple[Copies, ...]
    others: tuple[Span, ...]


def read_report(path: Path, device: int | None = None, process: int | None = None) -> Report:
    """Read a report of one GPU in one process, the only ones or those given.

    Raises TraceError naming the file, table, what was found and what is allowed.
    """
    with nsight_tables.open_report(path) as tables:
        return _report(path, tables, device, process)


def _report(path: Path, tables: nsight_tables.Tables, device: int | None, process: int | None) -> Report:
    launched = list(tables.rows(nsight_tables.KERNELS))
    known = {row["shortName"] for row in launched}
    names = {row["id"]: str(row["value"]) for row in tables.rows(nsight_tables.STRINGS) if row["id"] in known}
    kernels = [_work(row, names.get(row["shortName"], "kernel")) for row in launched]
    launches = tables.rows(nsight_tables.GRAPHS)
    graphs = [_work(row, f"graph {row.get(nsight_tables.GRAPH) or ''}".strip()) for row in launches]
    if not kernels and not graphs:
        allowed = "a report of CUDA (nsys profile -t cuda)"
        raise TraceError.at(f"{path}: {nsight_tables.KERNELS}", "no kernel", allowed)
    place = _place(path, {_Place(*one.thread) for one in (*kernels, *graphs)}, device, process)
    memory = [row for row in tables.rows(nsight_tables.MEMORY) if place.has(_place_of(row))]
    lives = [one for one in _lives(path, memory) if one.size_bytes]
    if not lives:
        found = "no allocation of the GPU's memory by this process"
        allowed = "a report with them (nsys profile --cuda-memory-usage=true)"
        raise TraceError.at(f"{path}: {nsight_tables.MEMORY}", found, allowed)
    copied = list(tables.rows(nsight_tables.COPIES))
    fills = [_work(row, "memset") for row in tables.rows(nsight_tables.FILLS)]
    moved = [
        _work(row, f"memcpy {_DIRECTIONS.get(row['copyKind'], '')}".strip())
        for row in copied
        if row["copyKind"] not in (*_MIGRATIONS, _IN_HOST)
    ]
    every = sorted((*kernels, *graphs, *fills, *moved), key=lambda one: (one.start_ns, one.end_ns))
    own_copies = [row for row in copied if place.has(_place_of(row))]
    return Report(
        path,
        place.device,
        place.process,
        tuple(one for one in every if place.has(one.thread)),
        tuple(one for one in graphs if place.has(one.thread)),
        tuple(lives),
        tuple(_copies(own_copies, kind, name) for kind, name in _DIRECTIONS.items()),
        tuple(_work(row, _MIGRATED) for row in own_copies if row["copyKind"] in _MIGRATIONS),
        tuple(_copies(own_copies, kind, name) for kind, name in _MIGRATIONS.items()),
        tuple(one for one in every if not place.has(one.thread)),
    )


def _place_of(row: Mapping[str, Any]) -> _Place:
    found = row.get(nsight_tables.PROCESS)
    if found is not None and found >= _MOST_PROCESSES:
        found = found >> _PROCESS_SHIFT & _MOST_PROCESSES - 1
    return _Place(row["deviceId"], found)


def _work(row: Mapping[str, Any], name: str) -> Span:
    return Span(name, row["start"], row["end"], _place_of(row), {})


def _place(path: Path, found: set[_Place], device: int | None, process: int | None) -> _Place:
    """Return the only place, or the one given. Raises TraceError where there are several, or none such."""
    # What has no process belongs to the others of its device, unless nothing has one.
    left = {one for one in found if one.process is not None} or found
    options = (("process", "processes", process), ("device", "devices", device))
    for value, _, given in options:
        if given is not None:
            _check_there(path, f"--{value} {given}", value, left, any_of=(given,))
            left = {one for one in left if getattr(one, value) == given}
    for value, plural, _ in options:
        _check_there(path, f"several {plural}", value, left)
    (place,) = left
    return place


def _check_there(path: Path, what: str, value: str, places: set[_Place], any_of: Sequence[int] = ()) -> None:
    """Raise TraceError unless places have one value in common, or one of those asked for."""
    there = sorted({found for place in places if (found := getattr(place, value)) is not None})
    if (any_of and not set(any_of).intersection(there)) or (not any_of and len(there) > 1):
        allowed = choices_text(map(str, there)) or "none, which this report does not record"
        raise TraceError(f"{path}: found {what}; allowed: --{value} with one of {allowed}")


def _copies(rows: Sequence[Mapping[str, Any]], kind: int, name: str) -> Copies:
    found = [row for row in rows if row["copyKind"] == kind]
    taken = sum(row["end"] - row["start"] for row in found)
    return Copies(name, len(found), sum(row["bytes"] for row in found), taken)


def _lives(path: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[_Life]:
    """Yield the allocations: those that were released in the order of release, then those that were not."""
    alive: dict[int, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["start"]):
        if row.get(nsight_tables.MEMORY_KIND) in _HOST_KINDS:
            continue
        if row["memoryOperationType"] == _ALLOCATED:
            before = alive.pop(row["address"], None)
            if before is not None:  # its release is not in the report
                yield _Life(before["bytes"], before["start"], row["start"])
            alive[row["address"]] = row
        elif row["memoryOperationType"] == _RELEASED:
            made = alive.pop(row["address"], None)
            yield _Life((made or row)["bytes"], None if made is None else made["start"], row["start"])
        else:
            column = f"{path}: {nsight_tables.MEMORY}.memoryOperationType"
            allowed = "0 for an allocation, 1 for a release"
            raise TraceError.at(column, row["memoryOperationType"], allowed)
    for made in alive.values():
        yield _Life(made["bytes"], made["start"], None)


def import_nsight(
    report: Report, *, model: str | None, batch_size: int, keep_gaps: bool = False, partial: bool = False
) -> Trace:
    """Make a trace of a report: its kernels in the order of their starts, and its allocations as tensors.

    A kernel takes the time from its start, or the end of what ran before if that is later, to its end: so
    what runs at a time counts once. So do fills and copies, and a graph whose kernels are not recorded. A
    tensor is written by the first kernel after its allocation and read by the last before its release; in
    between the report does not tell. ``keep_gaps`` makes kernels without tensors of the time in which the GPU
    waited. Raises TraceError as the trace's check does, and where much of the time is left out.
    """
    starts = [work.start_ns for work in report.work]
    drafts, account = _timed(report.work)
    kernels = [draft.operation for draft in drafts]
    for life in report.lives:
        first = 0 if life.start_ns is None else bisect_left(starts, life.start_ns)
        last = (len(starts) if life.end_ns is None else bisect_left(starts, life.end_ns)) - 1
        if first > last:
            continue  # no kernel started while it was there
        storage = Storage(life.size_bytes, external=life.start_ns is None)
        (kernels[first].reads if storage.external else kernels[first].writes)[storage] = None
        kernels[last].reads[storage] = None
    origin = {"source": "report of Nsight Systems", "device_number": f"{report.device}"}
    origin |= {} if report.process is None else {"process": f"{report.process}"}
    operations = idle_between(drafts, account, keep_gaps=keep_gaps)
    trace = build_trace(operations, report.path, model, batch_size, origin)
    _account_for_others(report, account, keep_gaps=keep_gaps)
    return accounted(trace, account, report.path, partial=partial)


def _timed(work: Iterable[Span]) -> tuple[list[Draft], Account]:
    """Return a kernel for each piece of work, and the account of their times."""
    drafts = [Draft(one, [], Operation(one.name, Phase.OTHER), [one]) for one in work]
    account = Account()
    take_times(drafts, account, are_rounded=False)
    return drafts, account


def _account_for_others(report: Report, account: Account, *, keep_gaps: bool) -> None:
    """Put time that the trace lacks into the account; a report says nothing about memory that it lacks."""
    imported = account.imported_ns
    _, whole = _timed((*report.work, *report.migrations))
    account.leave_out(_MIGRATED, whole.imported_ns - imported)
    if not keep_gaps:
        account.aside.pop(Reason.GAPS, None)
        account.put_aside(Reason.GAPS, whole.aside.get(Reason.GAPS, 0))
    elsewhere = sum(one.duration_ns for one in report.others if one.device != report.device)
    account.put_aside(Reason.DEVICES, elsewhere)
    account.put_aside(_PROCESSES, sum(one.duration_ns for one in report.others) - elsewhere)
    if report.graphs:
        share = _timed(report.graphs)[1].imported_ns / imported if imported else 0
        account.notes.append(
            f"found {len(report.graphs)} CUDA graphs without their kernels ({share:.1%} of the time): each "
            "is one kernel; nsys profile --cuda-graph-trace=node records those inside"
        )
    for one in report.migrated:
        if one.count:
            account.notes.append(
                f"found {one.count} {_MIGRATED}, {one.direction}: {rounded_bytes(one.size_bytes)}, "
                f"{rounded_seconds(one.duration_ns * _NANOSECONDS)}; policies decide about them again"
            )
