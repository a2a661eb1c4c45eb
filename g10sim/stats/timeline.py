"""A run as a timeline for https://ui.perfetto.dev or chrome://tracing (Chrome trace event format)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from g10sim.records import KernelRecord, Location, MigrationRecord
from g10sim.trace.workload import Workload

_KERNELS, _STALLS = 0, 1


def chrome_trace(
    workload: Workload,
    clock_hz: int,
    kernels: Iterable[KernelRecord],
    migrations: Iterable[MigrationRecord],
) -> dict[str, Any]:
    """Return the timeline: one process per GPU with its kernels, stalls, and one row per direction.

    Times are microseconds, as the format asks for.
    """
    events: list[dict[str, Any]] = []
    for kernel in kernels:
        name = workload.jobs[kernel.job].trace.kernels[kernel.kernel].name
        details = {"job": kernel.job, "iteration": kernel.iteration, "kernel": kernel.kernel}
        stalls = {reason.value: cycles for reason, cycles in kernel.stalls if cycles}
        events.append(_span(name, kernel.gpu, _KERNELS, kernel.start, kernel.end, clock_hz, details))
        if stalls:
            waited = kernel.start + sum(stalls.values())
            events.append(_span("stall", kernel.gpu, _STALLS, kernel.start, waited, clock_hz, stalls))
    rows = _rows(migrations_list := list(migrations))
    for move in migrations_list:
        row = rows[move.source, move.target]
        details = {"tensor": move.tensor, "size_bytes": move.size_bytes}
        events.append(_span(move.cause, move.gpu, row, move.start, move.end, clock_hz, details))
    gpus = sorted({event["pid"] for event in events})
    return {"displayTimeUnit": "ms", "traceEvents": [*_labels(gpus, rows), *events]}


def _rows(migrations: Sequence[MigrationRecord]) -> dict[tuple[Location, Location], int]:
    directions = sorted({(move.source, move.target) for move in migrations})
    return {direction: _STALLS + 1 + position for position, direction in enumerate(directions)}


def _span(
    name: str, gpu: int, row: int, start: int, end: int, clock_hz: int, details: Mapping[str, int]
) -> dict[str, Any]:
    microseconds = 1e6 / clock_hz
    return {
        "name": name,
        "ph": "X",
        "pid": gpu,
        "tid": row,
        "ts": start * microseconds,
        "dur": (end - start) * microseconds,
        "args": dict(details),
    }


def _labels(gpus: Iterable[int], rows: Mapping[tuple[Location, Location], int]) -> list[dict[str, Any]]:
    names = {_KERNELS: "kernels", _STALLS: "stalls"}
    names |= {row: f"{source.name} to {target.name}" for (source, target), row in rows.items()}
    found = []
    for gpu in gpus:
        label = {"name": f"GPU {gpu}"}
        found.append({"name": "process_name", "ph": "M", "pid": gpu, "args": label})
        for row, name in names.items():
            found.append({"name": "thread_name", "ph": "M", "pid": gpu, "tid": row, "args": {"name": name}})
    return found
