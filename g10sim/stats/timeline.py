"""A run as a timeline for https://ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import g10sim
from g10sim.config.system import SystemSpec
from g10sim.records import (
    IterationRecord,
    KernelRecord,
    Location,
    MemoryRecord,
    MigrationRecord,
    TrafficRecord,
)
from g10sim.stats.trace_events import TraceEvents
from g10sim.stats.utilization import link_traffic
from g10sim.trace.workload import Workload
from g10sim.units import duration_to_cycles

_PLACES = {Location.GPU: "GPU", Location.HOST: "host", Location.FLASH: "SSD"}
_NEW, _DROPPED = "new pages", "dropped pages"
_SHARED = "memory system"
_GIB = 2**30
_SHORTEST_STRETCH_PICOSECONDS = 50_000_000


class Recorded(Protocol):
    """What a timeline is made of, as a run emits it."""

    @property
    def iterations(self) -> Iterable[IterationRecord]: ...  # noqa: D102
    @property
    def kernels(self) -> Iterable[KernelRecord]: ...  # noqa: D102
    @property
    def migrations(self) -> Iterable[MigrationRecord]: ...  # noqa: D102
    @property
    def memory(self) -> Iterable[MemoryRecord]: ...  # noqa: D102
    @property
    def traffic(self) -> Iterable[TrafficRecord]: ...  # noqa: D102


def chrome_trace(workload: Workload, system: SystemSpec, records: Recorded) -> dict[str, Any]:
    """Return the timeline of a run recorded with ``timeline``, in the Chrome trace event format.

    Each GPU has rows for iterations, kernels, what their time went to, page faults, and one per direction of
    transfers; counters show GPU, host and SSD memory in use and the utilization of every link. The stalls
    of a kernel are shown before its computing, one reason after the other, as long as the cycles they own.
    """
    return _Timeline(workload, system, records).document()


class _Timeline:
    def __init__(self, workload: Workload, system: SystemSpec, records: Recorded) -> None:
        self._workload, self._system, self._records = workload, system, records
        self._events = TraceEvents(system.gpu.clock)
        self._page_bytes = system.gpu.page_size
        gpus = [job.gpu for job in workload.jobs]
        self._crowded = {gpu for gpu in gpus if gpus.count(gpu) > 1}
        # Designs that copy whole tensors miss pages as well, but nothing faults.
        self._with_faults = any(iteration.page_faults for iteration in records.iterations)

    def document(self) -> dict[str, Any]:
        records = self._records
        for number, job in enumerate(self._workload.jobs):
            rows = ["iterations", "kernels", "compute and stalls"]
            rows += ["page faults"] if self._with_faults else []
            self._events.declare(_gpu(job.gpu), *(self._row(row, number, job.gpu) for row in rows))
        self._iterations(records.iterations)
        self._kernels(records.kernels)
        self._migrations(records.migrations)
        self._memory(records.memory)
        self._links(records.traffic)
        return self._events.document(
            {
                "g10sim": g10sim.__version__,
                "models": ", ".join(job.trace.model for job in self._workload.jobs),
                "clock_hz": self._system.gpu.clock,
            }
        )

    def _row(self, name: str, job: int, gpu: int) -> str:
        """Name a row of a job; where a GPU has one job only, its number says nothing."""
        return f"{name}, job {job}" if gpu in self._crowded else name

    def _iterations(self, iterations: Iterable[IterationRecord]) -> None:
        for record in iterations:
            self._events.slice(
                _gpu(record.gpu),
                self._row("iterations", record.job, record.gpu),
                f"iteration {record.iteration}",
                record.start,
                record.end,
                cycles=record.end - record.start,
                ideal_cycles=record.ideal_cycles,
            )

    def _kernels(self, kernels: Iterable[KernelRecord]) -> None:
        for record in kernels:
            name = self._workload.jobs[record.job].trace.kernels[record.kernel].name
            self._events.slice(
                _gpu(record.gpu),
                self._row("kernels", record.job, record.gpu),
                name,
                record.start,
                record.end,
                kernel=record.kernel,
                iteration=record.iteration,
                cycles=record.end - record.start,
                compute_cycles=record.compute_cycles,
                overlap_cycles=record.overlap_cycles,
            )
            self._owners(record)
            self._faults(record)

    def _owners(self, record: KernelRecord) -> None:
        """Add what the time of a kernel went to."""
        row = self._row("compute and stalls", record.job, record.gpu)
        time = record.start
        for reason, cycles in record.stalls:
            if cycles:
                name = f"stall: {reason.value}"
                self._events.slice(_gpu(record.gpu), row, name, time, time + cycles, cycles=cycles)
                time += cycles
        cycles = record.compute_cycles
        self._events.slice(_gpu(record.gpu), row, "compute", time, time + cycles, cycles=cycles)

    def _faults(self, record: KernelRecord) -> None:
        pages = {
            "host": record.host_fault_pages,
            "SSD": record.flash_fault_pages,
            "first_touch": record.first_touch_pages,
        }
        if self._with_faults and any(pages.values()):
            self._events.instant(
                _gpu(record.gpu),
                self._row("page faults", record.job, record.gpu),
                f"{sum(pages.values())} page faults",
                record.start,
                kernel=record.kernel,
                **{f"{place}_pages": count for place, count in pages.items()},
            )

    def _migrations(self, migrations: Iterable[MigrationRecord]) -> None:
        """Add transfers: where some of one direction overlap, the direction gets further rows."""
        busy_until: dict[tuple[int, str], list[int]] = {}
        for move in sorted(migrations, key=lambda move: (move.gpu, _direction(move), move.start, move.end)):
            row = _direction(move)
            lanes = busy_until.setdefault((move.gpu, row), [])
            lane = next((lane for lane, until in enumerate(lanes) if until <= move.start), len(lanes))
            lanes[lane : lane + 1] = [move.end]
            self._events.slice(
                _gpu(move.gpu),
                row if lane == 0 else f"{row} ({lane + 1})",
                self._workload.jobs[move.job].trace.tensors[move.tensor].name,
                move.start,
                move.end,
                tensor=move.tensor,
                job=move.job,
                cause=move.cause.value,
                size_bytes=move.size_bytes,
            )

    def _memory(self, levels: Iterable[MemoryRecord]) -> None:
        before: dict[str, int] = {}
        for level in levels:
            for process, name, used in (
                (_gpu(level.gpu), "GPU memory in use", level.gpu_bytes),
                (_SHARED, "host memory in use", level.host_bytes),
                (_SHARED, "SSD in use", level.flash_bytes),
            ):
                if before.get(process + name) != used:
                    before[process + name] = used
                    self._events.counter(process, name, level.time, used / _GIB, "GiB")

    def _links(self, traffic: Iterable[TrafficRecord]) -> None:
        clock = self._system.gpu.clock
        shortest = duration_to_cycles(_SHORTEST_STRETCH_PICOSECONDS, clock)
        for link, stretches in link_traffic(self._system, traffic, shortest):
            before, name = -1.0, f"utilization of {link.name}"
            for stretch in stretches:
                possible = link.capacity * (stretch.end - stretch.start) / clock
                share = min(100.0, round(100 * stretch.size_bytes / possible, 2)) if possible else 0.0
                if share != before:
                    before = share
                    self._events.counter(_SHARED, name, stretch.start, share, "%")
            self._events.counter(_SHARED, name, stretches[-1].end, 0.0, "%")


def _gpu(number: int) -> str:
    return f"GPU {number}"


def _direction(move: MigrationRecord) -> str:
    if move.source is Location.NONE:
        return _NEW
    if move.target is Location.NONE:
        return _DROPPED
    return f"{_PLACES[move.source]} to {_PLACES[move.target]}"
