"""Reads what PyTorch's profiler (Kineto) writes: spans of operators and kernels, and memory events."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from g10sim.errors import TraceError
from g10sim.text import shown
from g10sim.trace.jsonlines import BROKEN_GZIP, refuse_half_characters, unpacked

STEP = "ProfilerStep#"
"""Beginning of the name under which the profiler marks a step."""

_MOST_CHARACTERS = 80
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")

Whole = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
Shape = Annotated[list[Whole], Field(max_length=64)]
"""Sizes or strides of a tensor: PyTorch has no more dimensions."""

_Found = TypeVar("_Found")


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
            self.fail(f"{key} {shown(value)}", allowed)
        return value

    def fitting(self, what: str, value: object, kind: TypeAdapter[_Found], allowed: str) -> _Found:
        """Return a value, called ``what``, of a type. Raises TraceError for another."""
        try:
            return kind.validate_python(value)
        except ValidationError:
            self.fail(f"{what} {shown(value)}", allowed)

    def fail(self, found: str, allowed: str) -> NoReturn:
        """Raise TraceError for what was found at this place."""
        raise TraceError(f"{self.place}: found {found[:_MOST_CHARACTERS]}; allowed: {allowed}")


def read_json_list(path: Path, key: str, what: str) -> tuple[dict[str, Any], list[Any]]:
    """Read a JSON file, gzip-compressed or plain; return its top object and the list at a key of it.

    Raises TraceError, which calls the file ``what``.
    """
    try:
        with unpacked(path) as file:
            text = file.read().decode("utf-8-sig")
        found = json.loads(text)
    except (OSError, *BROKEN_GZIP) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{path}: cannot be read: {reason}; allowed: {what} (JSON)") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: found no JSON ({error}); allowed: {what} (JSON)") from error
    if not isinstance(found, dict) or key not in found:
        raise TraceError(f"{path}: found no object with '{key}'; allowed: {what} (JSON)")
    if not isinstance(found[key], list):
        raise TraceError(f"{path}: {key}: found no list; allowed: {what}")
    if _HALF_CHARACTER.search(text):
        refuse_half_characters(str(path), found, TraceError)
    return found, found[key]


NANOSECONDS_PER_MICROSECOND = 1000
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_SPANS = frozenset({"cpu_op", "user_annotation"}) | _DEVICE | _LAUNCHES
_MEMORY = "[memory]"
_LATEST_MICROSECONDS = 10**18
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long int", "long", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("unsigned char", "signed char", "bool", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}
"""Bytes of an element by the name of its C++ type, which Kineto writes."""
_LIST = "TensorList"
_SHAPES = TypeAdapter(list[Shape | list[Shape]])
_TEXTS = TypeAdapter(list[str])

Thread = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time: an operator, an annotation, a launch, or a kernel on the device.

    Times are nanoseconds; ``thread`` is (process, thread), of device events (device, stream). ``inputs`` are
    bytes of an operator's tensors, for each argument that has any which are not empty.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: Thread
    args: Mapping[str, Any]
    inputs: tuple[tuple[int, ...], ...] = ()

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
        if duration < 0:
            self.fail(f"dur {self.values['dur']!r}", "at least 0")
        name, end = self.get("name", "a text", str), start + duration
        return Span(name, start, end, self._thread(), args.values, tuple(self._inputs(args)))

    def _inputs(self, args: Entry) -> Iterator[tuple[int, ...]]:
        dims, kinds = args.values.get("Input Dims", []), args.values.get("Input type", [])
        shapes = args.fitting("Input Dims", dims, _SHAPES, "a list of shapes, or of lists of them")
        types = args.fitting("Input type", kinds, _TEXTS, "texts")
        for shape, kind in zip(shapes, types, strict=False):
            if kind != _LIST and kind not in _ITEM_BYTES:
                continue
            wanted = list if kind == _LIST else int
            if any(type(part) is not wanted for part in shape):
                args.fail(f"Input Dims {shown(shape)} of type {kind}", "a shape; of a list, several")
            # Kineto gives no type for lists; those of optimizers hold float32.
            parts: Any = shape if kind == _LIST else [shape]
            item = _ITEM_BYTES["float" if kind == _LIST else kind]
            if sizes := tuple(size for part in parts if (size := prod(part) * item)):
                yield sizes

    def _memory(self, args: Entry) -> MemoryEvent:
        address, size, device = (args.get(key, "an integer", int) for key in ("Addr", "Bytes", "Device Type"))
        return MemoryEvent(self._time_ns("ts"), self._thread(), address, size, device != 0)

    def _time_ns(self, key: str) -> int:
        microseconds: float = self.get(key, "a number of microseconds", int, float)
        if not abs(microseconds) < _LATEST_MICROSECONDS:  # not a number, too
            self.fail(f"{key} {shown(microseconds)}", "a number of microseconds")
        return round(microseconds * NANOSECONDS_PER_MICROSECOND)

    def _thread(self) -> Thread:
        allowed = "a number or a text"
        return self.get("pid", allowed, int, str), self.get("tid", allowed, int, str)

    def _args(self) -> Entry:
        return Entry(self.get("args", "an object", dict, default={}), self.place)
