"""The Chrome trace event format, as far as timelines need it: slices, instants and counters on named tracks.

Source: "Trace Event Format" (Google, 2016), the JSON array of events of phases X, i, C and M. Viewers show
one row per thread of a process; our processes and threads are only that, rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NANOSECONDS = 10**9


class TraceEvents:
    """Collects events. Times are cycles of a clock; in the file microseconds, rounded to nanoseconds.

    Rounding is of points in time, so that slices which meet in cycles meet in the file, and their
    durations add up.
    """

    def __init__(self, clock_hz: int) -> None:
        self._clock_hz = clock_hz
        self._events: list[dict[str, Any]] = []
        self._rows: dict[tuple[str, str], tuple[int, int]] = {}
        self._processes: dict[str, int] = {}

    def slice(self, process: str, row: str, name: str, start: int, end: int, **details: Any) -> None:
        """Add something that lasts; slices of one row must not overlap, except one inside another."""
        since = self._nanoseconds(start)
        pid, tid = self._row(process, row)
        duration = (self._nanoseconds(end) - since) / 1000
        place = {"ph": "X", "pid": pid, "tid": tid, "ts": since / 1000, "dur": duration}
        self._events.append({"name": name, **place, "args": details})

    def instant(self, process: str, row: str, name: str, time: int, **details: Any) -> None:
        """Add a point in time to a row."""
        pid, tid = self._row(process, row)
        place = {"ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": self._nanoseconds(time) / 1000}
        self._events.append({"name": name, **place, "args": details})

    def counter(self, process: str, name: str, time: int, value: float, unit: str) -> None:
        """Set a quantity from a point in time on."""
        pid = self._process(process)
        place = {"ph": "C", "pid": pid, "tid": 0, "ts": self._nanoseconds(time) / 1000}
        self._events.append({"name": name, **place, "args": {unit: value}})

    def document(self, about: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole file, rows and processes in the order in which they were first used."""
        return {
            "displayTimeUnit": "ms",
            "otherData": {name: str(value) for name, value in about.items()},
            "traceEvents": [*self._labels(), *self._events],
        }

    def declare(self, process: str, *rows: str) -> None:
        """Fix the order of rows before they are used."""
        for row in rows:
            self._row(process, row)

    def _labels(self) -> list[dict[str, Any]]:
        found = []
        for process, pid in self._processes.items():
            found.append(_label("process_name", pid, 0, {"name": process}))
            found.append(_label("process_sort_index", pid, 0, {"sort_index": pid}))
        for (_, row), (pid, tid) in self._rows.items():
            found.append(_label("thread_name", pid, tid, {"name": row}))
            found.append(_label("thread_sort_index", pid, tid, {"sort_index": tid}))
        return found

    def _process(self, process: str) -> int:
        # Number 0 is the operating system's idle process, which viewers leave out.
        return self._processes.setdefault(process, len(self._processes) + 1)

    def _row(self, process: str, row: str) -> tuple[int, int]:
        pid = self._process(process)
        return self._rows.setdefault((process, row), (pid, len(self._rows) + 1))

    def _nanoseconds(self, cycles: int) -> int:
        return (2 * cycles * _NANOSECONDS + self._clock_hz) // (2 * self._clock_hz)


def _label(name: str, pid: int, tid: int, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": dict(value)}
