"""Reads what PyTorch's profiler (Kineto) writes: spans of operators and kernels, and memory events."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from g10sim.errors import TraceError

NANOSECONDS_PER_MICROSECOND = 1000
_GZIP_MAGIC = b"\x1f\x8b"
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_SPANS = frozenset({"cpu_op", "user_annotation"}) | _DEVICE | _LAUNCHES
_MEMORY = "[memory]"

Thread = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts: an operator, an annotation, a launch, or a kernel on the device.

    Times are nanoseconds; ``thread`` is (process, thread), of device events (device, stream).
    """

    name: str
    start_ns: int
    end_ns: int
    thread: Thread
    args: Mapping[str, Any]

    @property
    def duration_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns

    def contains(self, other: Span) -> bool:
        """Tell whether another span lies within, on the same thread."""
        return self.thread == other.thread and self.start_ns <= other.start_ns and other.end_ns <= self.end_ns


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation (``size_bytes`` above zero) or a release (below zero) of a block of memory."""

    time_ns: int
    thread: Thread
    address: int
    size_bytes: int
    on_device: bool


@dataclass
class Profile:
    """A recorded profile; every list is in the order of start times, outer spans before inner ones."""

    path: Path
    operators: list[Span] = field(default_factory=list)
    annotations: list[Span] = field(default_factory=list)
    launches: dict[int, Span] = field(default_factory=dict)
    device: list[Span] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)

    def device_times(self, owners: Sequence[Span]) -> list[list[Span]]:
        """For each owner, the device events whose launch it is the innermost owner of.

        Device events without a recorded launch belong to nobody.
        """
        found: list[list[Span]] = [[] for _ in owners]
        owner_at = innermost(owners)
        for event in self.device:
            launch = self.launches.get(event.args["correlation"])
            owner = None if launch is None else owner_at(launch.thread, launch.start_ns)
            if owner is not None:
                found[owner].append(event)
        return found


def innermost(spans: Sequence[Span]) -> Callable[[Thread, int], int | None]:
    """Return a function that tells the innermost span (by position) at a time on a thread.

    Spans of a thread lie inside each other or apart.
    """
    by_thread: defaultdict[Thread, list[int]] = defaultdict(list)
    for position, span in enumerate(spans):
        by_thread[span.thread].append(position)
    tables = {thread: _segments(spans, positions) for thread, positions in by_thread.items()}

    def at(thread: Thread, time_ns: int) -> int | None:
        if thread not in tables:
            return None
        starts, owners = tables[thread]
        place = bisect_right(starts, time_ns) - 1
        return owners[place] if place >= 0 else None

    return at


def _segments(spans: Sequence[Span], positions: Iterable[int]) -> tuple[list[int], list[int | None]]:
    """Cut the time of a thread where the innermost span changes."""
    starts: list[int] = []
    owners: list[int | None] = []
    stack: list[int] = []

    def cut(time_ns: int) -> None:
        starts.append(time_ns)
        owners.append(stack[-1] if stack else None)

    def close(until_ns: int | None) -> None:
        while stack and (until_ns is None or spans[stack[-1]].end_ns <= until_ns):
            end = spans[stack.pop()].end_ns
            cut(end)

    for position in sorted(positions, key=lambda p: (spans[p].start_ns, -spans[p].end_ns)):
        close(spans[position].start_ns)
        stack.append(position)
        cut(spans[position].start_ns)
    close(None)
    return starts, owners


def read_profile(path: str | Path) -> Profile:
    """Read a profile, gzip-compressed or plain, as ``export_chrome_trace`` writes it.

    Raises TraceError naming the file, the event, what was found and what is allowed.
    """
    path = Path(path)
    events = read_json_object(path, "traceEvents", "a profile of PyTorch")["traceEvents"]
    if not isinstance(events, list):
        raise TraceError(f"{path}: traceEvents: found no list; allowed: a profile of PyTorch")
    profile = Profile(path)
    for number, event in enumerate(events):
        _Reader(path, number, event).into(profile)
    for spans in (profile.operators, profile.annotations, profile.device):
        spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    profile.memory.sort(key=lambda event: event.time_ns)
    return profile


def read_json_object(path: Path, key: str, what: str) -> dict[str, Any]:
    """Read a JSON file, gzip-compressed or plain, whose top is an object with a key. Raises TraceError."""
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        found = json.loads(data)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be read: {reason}; allowed: {what} (JSON)") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: found no JSON ({error}); allowed: {what} (JSON)") from error
    if not isinstance(found, dict) or key not in found:
        raise TraceError(f"{path}: found no object with '{key}'; allowed: {what} (JSON)")
    return found


class _Reader:
    """Reads one event of a profile; events of other kinds are passed over."""

    def __init__(self, path: Path, number: int, event: object) -> None:
        self._path = path
        self._number = number
        if not isinstance(event, dict):
            self._fail(f"{type(event).__name__}", "an object")
        self._event: dict[str, Any] = event

    def into(self, profile: Profile) -> None:
        category, kind = self._event.get("cat"), self._event.get("ph")
        if kind == "X" and category in _SPANS:
            span = self._span()
            if category in _DEVICE:
                self._integer(span.args, "correlation")
                profile.device.append(span)
            elif category in _LAUNCHES:
                if "correlation" in span.args:
                    profile.launches[self._integer(span.args, "correlation")] = span
            elif category == "cpu_op":
                profile.operators.append(span)
            else:
                profile.annotations.append(span)
        elif kind == "i" and self._event.get("name") == _MEMORY:
            profile.memory.append(self._memory())

    def _fail(self, found: str, allowed: str) -> NoReturn:
        raise TraceError(f"{self._path}: event {self._number}: found {found}; allowed: {allowed}")

    def _integer(self, values: Mapping[str, Any], key: str) -> int:
        value = values.get(key)
        if type(value) is not int:
            self._fail(f"{key} {value!r}", "an integer")
        return value

    def _time_ns(self, key: str) -> int:
        value = self._event.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._fail(f"{key} {value!r}", "a number of microseconds")
        if key == "dur" and value < 0:
            self._fail(f"{key} {value!r}", "at least 0")
        return round(value * NANOSECONDS_PER_MICROSECOND)

    def _args(self) -> dict[str, Any]:
        args = self._event.get("args", {})
        if not isinstance(args, dict):
            self._fail("args that are no object", "an object")
        return args

    def _thread(self) -> Thread:
        thread = (self._event.get("pid"), self._event.get("tid"))
        if not all(isinstance(part, (int, str)) for part in thread):
            self._fail(f"process and thread {thread!r}", "numbers or texts")
        return thread

    def _span(self) -> Span:
        start, duration = self._time_ns("ts"), self._time_ns("dur")
        name = self._event.get("name")
        if not isinstance(name, str):
            self._fail(f"name {name!r}", "a text")
        return Span(name, start, start + duration, self._thread(), self._args())

    def _memory(self) -> MemoryEvent:
        args = self._args()
        address, size = self._integer(args, "Addr"), self._integer(args, "Bytes")
        on_device = self._integer(args, "Device Type") != 0
        return MemoryEvent(self._time_ns("ts"), self._thread(), address, size, on_device)
