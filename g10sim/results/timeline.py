"""A run as a timeline for https://ui.perfetto.dev or chrome://tracing.

The format is the JSON array of events of phases X, i, C, s, f and M ("Trace Event Format", Google, 2016), as
far as timelines need it: slices, instants, counters and flows on named tracks. Viewers show one row per
thread of a process; our processes and threads are only that, rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import g10sim
from g10sim import records as recorded
from g10sim.config.system import SystemSpec
from g10sim.places import direction, place
from g10sim.results.blame import link_traffic
from g10sim.results.columns import fault_pages, memory_levels
from g10sim.trace.model import Device, Kernel
from g10sim.trace.workload import Workload
from g10sim.units import duration_to_cycles

_SHARED = "memory system"
_ON_CPU = "kernels on the CPU"
_COLLECTIVES = "collectives"
_GIB = 2**30
_NANOSECONDS = 10**9
_OF_ARRIVALS = (
    recorded.StallReason.FIRST_TOUCH,
    recorded.StallReason.LATE_PREFETCH,
    recorded.StallReason.EVICTION,
    recorded.StallReason.LINK_CONTENTION,
)
"""Reasons, alongside page faults, for which kernels wait for pages that arrive."""
_SHORTEST_STRETCH_PICOSECONDS = 50_000_000
_Row: TypeAlias = tuple[str, str]
"""A process, and the name of one of its rows."""
_OfKernel: TypeAlias = recorded.KernelRecord | recorded.BesideRecord | recorded.AccessRecord


def chrome_trace(
    workload: Workload, system: SystemSpec, records: recorded.RunRecords, key: str = ""
) -> dict[str, Any]:
    """Return the timeline of a run recorded with ``timeline``, in the Chrome trace event format.

    Each GPU has rows for iterations, kernels, what their time went to, kernels on the CPU, page faults, and
    one per direction of transfers; counters show GPU, host and SSD memory in use and the utilization of every
    link. The stalls of a kernel are shown before its computing, one reason after the other, as long as the
    cycles they own. A flow leads from each stall of a kernel on data to the transfer that ended it.
    ``key`` is that of the cell of a run.
    """
    return _Timeline(workload, system, records).document({"cell_key": key} if key else {})


@dataclass(frozen=True)
class _Stall:
    """A kernel's stall on data: its row, start and cycles of each part, and the end of all its stalls."""

    kernel: recorded.KernelRecord
    row: _Row
    parts: list[tuple[int, int]]
    end: int


class _Timeline:
    def __init__(self, workload: Workload, system: SystemSpec, records: recorded.RunRecords) -> None:
        self._workload, self._system, self._records = workload, system, records
        self._events = TraceEvents(system.gpu.clock)
        gpus = [job.gpu for job in workload.jobs]
        self._crowded = {gpu for gpu in gpus if gpus.count(gpu) > 1}
        # Designs that copy whole tensors miss pages as well, but nothing faults.
        self._stalls: list[_Stall] = []
        self._arrivals: dict[tuple[int, int], list[tuple[recorded.MigrationRecord, _Row]]] = {}
        self._with_faults = any(iteration.page_faults for iteration in records.iterations)

    def document(self, more: Mapping[str, Any]) -> dict[str, Any]:
        records = self._records
        for number, job in enumerate(self._workload.jobs):
            rows = ["iterations", "kernels", "compute and stalls"]
            rows += [_ON_CPU] if job.trace.cpu_kernels else []
            rows += [_COLLECTIVES] if job.trace.collectives else []
            rows += ["page faults"] if self._with_faults else []
            self._events.declare(self._row(row, number, job.gpu) for row in rows)
        self._iterations(records.iterations)
        self._kernels(records.kernels)
        self._beside(_ON_CPU, records.cpu_kernels)
        self._beside(_COLLECTIVES, records.collectives)
        self._migrations(records.migrations)
        self._flows()
        self._accesses(records.accesses)
        self._memory(records.memory)
        self._links(records.traffic)
        models = ", ".join(job.trace.model for job in self._workload.jobs)
        about = {"g10sim": g10sim.__version__, "models": models, "clock_hz": self._system.gpu.clock}
        return self._events.document({**about, **more})

    def _row(self, name: str, job: int, gpu: int) -> _Row:
        """Return a row of a job; where a GPU has one job only, its number says nothing."""
        return _gpu(gpu), f"{name}, job {job}" if gpu in self._crowded else name

    def _kernel(self, record: _OfKernel) -> Kernel:
        return self._workload.jobs[record.job].trace.kernels[record.kernel]

    def _slice(
        self, record: _OfKernel | recorded.IterationRecord, row: str, name: str, **details: Any
    ) -> None:
        """Add what lasted as long as a record says, to a row of its job."""
        self._events.slice(self._row(row, record.job, record.gpu), name, record.start, record.end, **details)

    def _iterations(self, iterations: Iterable[recorded.IterationRecord]) -> None:
        for record in iterations:
            cycles = {"cycles": record.end - record.start, "ideal_cycles": record.ideal_cycles}
            self._slice(record, "iterations", f"iteration {record.iteration}", **cycles)

    def _kernels(self, kernels: Iterable[recorded.KernelRecord]) -> None:
        for record in kernels:
            kernel = self._kernel(record)
            if kernel.device is not Device.GPU and record.start == record.end:
                continue
            named = {"kernel": record.kernel, "iteration": record.iteration}
            cycles = {"cycles": record.end - record.start, "compute_cycles": record.compute_cycles}
            cycles["overlap_cycles"] = record.overlap_cycles
            micro_batch = {"micro_batch": kernel.micro_batch} if kernel.micro_batch else {}
            self._slice(record, "kernels", kernel.name, **named, **cycles, **micro_batch)
            self._owners(record)
            self._faults(record)

    def _beside(self, row: str, records: Iterable[recorded.BesideRecord]) -> None:
        """Add what runs alongside the kernels of the GPU."""
        for record in records:
            named = {"kernel": record.kernel, "iteration": record.iteration}
            cycles = {"cycles": record.end - record.start, "waited_cycles": record.start - record.launch}
            self._slice(record, row, self._kernel(record).name, **named, **cycles)

    def _owners(self, record: recorded.KernelRecord) -> None:
        """Add what the time of a kernel went to."""
        row = self._row("compute and stalls", record.job, record.gpu)
        time = record.start
        on_data: list[tuple[int, int]] = []
        for reason, cycles in record.stalls:
            if cycles and (reason.tier or reason in _OF_ARRIVALS):
                on_data.append((time, cycles))
            if cycles:
                name = f"stall: {reason.look.label}"
                self._events.slice(row, name, time, time + cycles, cycles=cycles)
                time += cycles
        if on_data:
            self._stalls.append(_Stall(record, row, on_data, time))
        cycles = record.compute_cycles
        self._events.slice(row, "compute", time, time + cycles, cycles=cycles)

    def _faults(self, record: recorded.KernelRecord) -> None:
        words = fault_pages(record.fault_pages)
        pages = {place(word).label: record.fault_pages[column] for column, word in words.items()}
        pages["first_touch"] = record.first_touch_pages
        if self._with_faults and any(pages.values()):
            row, name = self._row("page faults", record.job, record.gpu), f"{sum(pages.values())} page faults"
            told = {"kernel": record.kernel, **{f"{source}_pages": count for source, count in pages.items()}}
            self._events.instant(row, name, record.start, **told)

    def _migrations(self, migrations: Iterable[recorded.MigrationRecord]) -> None:
        """Add transfers: where some of one direction overlap, the direction gets further rows."""
        busy_until: dict[tuple[int, str], list[int]] = {}
        for move in sorted(migrations, key=lambda move: (move.gpu, _direction(move), move.start, move.end)):
            way = _direction(move)
            lanes = busy_until.setdefault((move.gpu, way), [])
            lane = next((lane for lane, until in enumerate(lanes) if until <= move.start), len(lanes))
            lanes[lane : lane + 1] = [move.end]
            row = _gpu(move.gpu), way if lane == 0 else f"{way} ({lane + 1})"
            if move.target is recorded.Location.GPU:
                self._arrivals.setdefault((move.job, move.tensor), []).append((move, row))
            name = self._workload.jobs[move.job].trace.tensors[move.tensor].name
            told = {"tensor": move.tensor, "job": move.job, "cause": move.cause.words}
            self._events.slice(row, name, move.start, move.end, **told, size_bytes=move.size_bytes)

    def _flows(self) -> None:
        """Lead from a kernel's stall to the last transfer that it waited for.

        The arrow begins at the longest part of the stall that is shown before that transfer ends.
        """
        for stall in self._stalls:
            record = stall.kernel
            awaited = [
                (move, row)
                for tensor in self._kernel(record).touched
                for move, row in self._arrivals.get((record.job, tensor), ())
                if record.start < move.end <= stall.end
            ]
            if not awaited:
                continue
            last, row = max(awaited, key=lambda arrival: arrival[0].end)
            begun = [part for part in stall.parts if part[0] < last.end]
            start, _ = max(begun, key=lambda part: part[1], default=(record.start, 0))
            self._events.flow("waits for", (stall.row, start), (row, max(start, last.start)))

    def _accesses(self, accesses: Iterable[recorded.AccessRecord]) -> None:
        """Add what kernels used where it lies."""
        for access in accesses:
            row, name = f"in place, {place(access.tier.name.lower()).label}", self._kernel(access).name
            moved = {"read_bytes": access.read_bytes, "written_bytes": access.written_bytes}
            self._slice(access, row, name, kernel=access.kernel, **moved)

    def _memory(self, levels: Iterable[recorded.MemoryRecord]) -> None:
        before: dict[str, int] = {}
        for level in levels:
            counters = [(_gpu(level.gpu), "GPU memory in use", level.gpu_bytes)]
            counters += [
                (_SHARED, f"{place(word).words.removeprefix('the ')} in use", level.tier_bytes[column])
                for column, word in memory_levels(level.tier_bytes).items()
            ]
            for process, name, used in counters:
                if before.get(process + name) != used:
                    before[process + name] = used
                    self._events.counter(process, name, level.time, used / _GIB, "GiB")

    def _links(self, traffic: Iterable[recorded.TrafficRecord]) -> None:
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


def _direction(move: recorded.MigrationRecord) -> str:
    return direction(move.source.name, move.target.name).label


class TraceEvents:
    """Collects events. Times are cycles of a clock; in the file microseconds, rounded to nanoseconds.

    Rounding is of points in time, so that slices which meet in cycles meet in the file, and their
    durations add up.
    """

    def __init__(self, clock_hz: int) -> None:
        self._clock_hz = clock_hz
        self._events: list[dict[str, Any]] = []
        self._rows: dict[_Row, tuple[int, int]] = {}
        self._processes: dict[str, int] = {}
        self._flows = 0

    def slice(self, row: _Row, name: str, start: int, end: int, **details: Any) -> None:
        """Add something that lasts; slices of one row must not overlap, except one inside another."""
        duration = (self._nanoseconds(end) - self._nanoseconds(start)) / 1000
        self._add("X", name, self._row(row), start, dur=duration, args=details)

    def instant(self, row: _Row, name: str, time: int, **details: Any) -> None:
        """Add a point in time to a row."""
        self._add("i", name, self._row(row), time, s="t", args=details)

    def counter(self, process: str, name: str, time: int, value: float, unit: str) -> None:
        """Set a quantity from a point in time on."""
        self._add("C", name, (self._process(process), 0), time, args={unit: value})

    def flow(self, name: str, source: tuple[_Row, int], target: tuple[_Row, int]) -> None:
        """Add an arrow between two slices, each given by its row and a time in it."""
        self._flows += 1
        for phase, (row, time), more in (("s", source, {}), ("f", target, {"bp": "e"})):
            self._add(phase, name, self._row(row), time, cat="flow", id=self._flows, **more)

    def _add(self, phase: str, name: str, row: tuple[int, int], time: int, **more: Any) -> None:
        place = {"ph": phase, "pid": row[0], "tid": row[1], "ts": self._nanoseconds(time) / 1000}
        self._events.append({"name": name, **place, **more})

    def document(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole file, rows and processes in the order in which they were first used."""
        return {
            "displayTimeUnit": "ms",
            "otherData": {name: str(value) for name, value in about.items()},
            "traceEvents": [*self._labels(), *self._events],
        }

    def declare(self, rows: Iterable[_Row]) -> None:
        """Fix the order of rows before they are used."""
        for row in rows:
            self._row(row)

    def _labels(self) -> Iterator[dict[str, Any]]:
        for process, pid in self._processes.items():
            yield from _label("process", process, pid, pid, 0)
        for (_, row), (pid, tid) in self._rows.items():
            yield from _label("thread", row, tid, pid, tid)

    def _process(self, process: str) -> int:
        # Number 0 is the operating system's idle process, which viewers leave out.
        return self._processes.setdefault(process, len(self._processes) + 1)

    def _row(self, row: _Row) -> tuple[int, int]:
        return self._rows.setdefault(row, (self._process(row[0]), len(self._rows) + 1))

    def _nanoseconds(self, cycles: int) -> int:
        return (2 * cycles * _NANOSECONDS + self._clock_hz) // (2 * self._clock_hz)


def _label(kind: str, name: str, place: int, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    """Yield the events that give a process or a thread its name, and its place among the others."""
    for key, value in (("name", name), ("sort_index", place)):
        yield {"name": f"{kind}_{key}", "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}
