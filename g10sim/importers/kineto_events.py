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

STEP = "ProfilerStep#"
"""Beginning of the name under which the profiler marks a step."""

_GZIP_MAGIC = b"\x1f\x8b"
_MOST_CHARACTERS = 80


class Entry:
    """One object of a file that PyTorch recorded; ``place`` begins every message about it."""

    __slots__ = ("place", "values")

    def __init__(self, values: object, place: str) -> None:
        self.place = place
        if not isinstance(values, dict):
            self.fail(type(values).__name__, "an object")
        self.values: dict[str, Any] = values

    def get(self, key: str, allowed: str, *kinds: type, default: object = None) -> Any:
        """Return the value of a key, of exactly one of these types. Raises TraceError for another."""
        value = self.values.get(key, default)
        if type(value) not in kinds:
            self.fail(f"{key} {value!r}", allowed)
        return value

    def fail(self, found: str, allowed: str) -> NoReturn:
        """Raise TraceError for what was found at this place."""
        raise TraceError(f"{self.place}: found {found[:_MOST_CHARACTERS]}; allowed: {allowed}")


def read_json_list(path: Path, key: str, what: str) -> tuple[dict[str, Any], list[Any]]:
    """Read a JSON file, gzip-compressed or plain; return its top object and the list at a key of it.

    Raises TraceError, which calls the file ``what``.
    """
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
    if not isinstance(found[key], list):
        raise TraceError(f"{path}: {key}: found no list; allowed: {what}")
    return found, found[key]


NANOSECONDS_PER_MICROSECOND = 1000
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_SPANS = frozenset({"cpu_op", "user_annotation"}) | _DEVICE | _LAUNCHES
_MEMORY = "[memory]"

Thread = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time: an operator, an annotation, a launch, or a kernel on the device.

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

        Device events without a recorded launch have no owner.
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
    profile, place = Profile(path), f"{path}: event"
    for number, event in enumerate(read_json_list(path, "traceEvents", "a profile of PyTorch")[1]):
        _Event(event, f"{place} {number}").add_to(profile)
    for spans in (profile.operators, profile.annotations, profile.device):
        spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
    profile.memory.sort(key=lambda event: event.time_ns)
    return profile


class _Event(Entry):
    """One event of a profile."""

    __slots__ = ()

    def add_to(self, profile: Profile) -> None:
        """Add what the event says; events of other kinds are passed over."""
        category, kind = str(self.values.get("cat")), self.values.get("ph")
        if kind == "X" and category in _SPANS:
            args = self._args()
            span = self._span(args)
            if category in _DEVICE:
                args.get("correlation", "an integer", int)
                profile.device.append(span)
            elif category == "cpu_op":
                profile.operators.append(span)
            elif category not in _LAUNCHES:
                profile.annotations.append(span)
            elif "correlation" in span.args:
                profile.launches[args.get("correlation", "an integer", int)] = span
        elif kind == "i" and self.values.get("name") == _MEMORY:
            profile.memory.append(self._memory(self._args()))

    def _span(self, args: Entry) -> Span:
        start, duration = self._time_ns("ts"), self._time_ns("dur")
        if self.values["dur"] < 0:
            self.fail(f"dur {self.values['dur']!r}", "at least 0")
        return Span(self.get("name", "a text", str), start, start + duration, self._thread(), args.values)

    def _memory(self, args: Entry) -> MemoryEvent:
        address, size, device = (args.get(key, "an integer", int) for key in ("Addr", "Bytes", "Device Type"))
        return MemoryEvent(self._time_ns("ts"), self._thread(), address, size, device != 0)

    def _time_ns(self, key: str) -> int:
        microseconds: float = self.get(key, "a number of microseconds", int, float)
        return round(microseconds * NANOSECONDS_PER_MICROSECOND)

    def _thread(self) -> Thread:
        allowed = "a number or a text"
        return self.get("pid", allowed, int, str), self.get("tid", allowed, int, str)

    def _args(self) -> Entry:
        return Entry(self.get("args", "an object", dict, default={}), self.place)
