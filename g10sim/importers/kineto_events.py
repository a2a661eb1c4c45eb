"""Reads what PyTorch's profiler (Kineto) writes: spans of operators and kernels, and memory events."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from g10sim.errors import TraceError, shown
from g10sim.grouping import grouped
from g10sim.importers.near_json import read_json

STEP = "ProfilerStep#"
"""Beginning of the name under which the profiler marks a step."""

_MOST_CHARACTERS = 80

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


def listed(found: Any, key: str, path: Path, what: str) -> list[Any]:
    """Return the list at a key of what a file holds. Raises TraceError, which calls the file ``what``."""
    if not isinstance(found, dict) or key not in found:
        raise TraceError(f"{path}: found no object with '{key}'; allowed: {what} (JSON)")
    entries = found[key]
    if not isinstance(entries, list):
        raise TraceError(f"{path}: {key}: found no list; allowed: {what}")
    return entries


NANOSECONDS_PER_MICROSECOND = 1000
_WHAT = "a profile of PyTorch"
_OPERATOR, _ANNOTATION = "cpu_op", "user_annotation"
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LAUNCHES, _LAUNCH = ("runtime", "driver"), "Launch"
_EARLIER = {"operator": _OPERATOR, "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
"""Categories of profiles before PyTorch 1.12, in small letters, and those of today."""
_MEMORY, _DIGITS = "[memory]", re.compile("[0-9]{1,20}")
_LATEST_MICROSECONDS = 10**18
DIMS, _STRIDES, _TYPES = ("Input Dims", "Input dims"), "Input Strides", "Input type"
_ITEM_BYTES = {
    **dict.fromkeys(("c10::complex<double>", "std::complex<double>"), 16),
    **dict.fromkeys(("double", "long", "int64_t", "c10::complex<float>", "std::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "int32_t", "c10::complex<c10::Half>", "c10::qint32"), 4),
    **dict.fromkeys(("c10::Half", "at::Half", "c10::BFloat16", "at::BFloat16", "short", "c10::bits16"), 2),
    **dict.fromkeys(("char", "bool", "c10::qint8", "c10::quint8", "c10::quint4x2", "c10::quint2x4"), 1),
    **dict.fromkeys(("c10::bits1x8", "c10::bits2x4", "c10::bits4x2", "c10::bits8"), 1),
}
"""Bytes of an element by the name of its C++ type, which Kineto writes, as :func:`_plain` shortens it."""
_EIGHT_BITS = "c10::Float8_", "c10::Float4_"
_WHOLE = frozenset({"long", "int64_t", "int", "int32_t", "short", "char", "bool"})
_NO_TENSOR = frozenset({"", "Scalar", "ScalarList", "GenericList", "nullptr (uninitialized)"})
_LIST = "TensorList"
_SHAPES = TypeAdapter(list[Shape | list[Shape]])
_TEXTS = TypeAdapter(list[str])

Thread = tuple[Any, Any]


class Operand(NamedTuple):
    """A tensor among an operator's arguments, as far as a profile tells.

    ``elements`` are those from the first to the last one that it reaches in its storage, ``most`` those of
    the storage if the tensor is every that many-th part of it. ``item_bytes`` is 0 in a list, without a type.
    """

    elements: int
    most: int
    item_bytes: int
    is_whole: bool


Inputs = tuple[tuple[Operand, ...], ...]
"""The tensors of each argument that has any."""


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of time: an operator, an annotation, a launch, or a kernel on the device.

    Times are nanoseconds; ``thread`` is (process, thread), of device events (device, stream). ``inputs`` are
    an operator's tensors, for each argument that has any which are not empty; ``place`` begins messages.
    ``lacks_lists``: it has lists of tensors that are not written out, as no list of more than 30 is.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: Thread
    args: Mapping[str, Any]
    inputs: Inputs = ()
    place: str = ""
    lacks_lists: bool = False

    @property
    def duration_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns

    @property
    def device(self) -> Any:
        """Device of a device event."""
        return self.args.get("device", self.thread[0])


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """An allocation (``size_bytes`` above zero) or a release (below zero) of a block of memory.

    ``total_bytes`` are allocated after it; None where the file does not tell.
    """

    time_ns: int
    thread: Thread
    address: int
    size_bytes: int
    on_device: bool
    device: int = 0
    total_bytes: int | None = None


@dataclass
class Profile:
    """A recorded profile; every list is in the order of start times, outer spans before inner ones.

    ``launches`` are by correlation. ``unknown_types`` counts tensors whose type has no known size.
    """

    path: Path
    operators: list[Span] = field(default_factory=list)
    annotations: list[Span] = field(default_factory=list)
    launches: dict[int, list[Span]] = field(default_factory=dict)
    device: list[Span] = field(default_factory=list)
    memory: list[MemoryEvent] = field(default_factory=list)
    unknown_types: dict[str, int] = field(default_factory=dict)

    def refuse_without_device(self, *, is_used: bool = False) -> None:
        """Raise TraceError if a device was used (``is_used``, or the profile says so), and nothing ran there.

        Operators then take the time in which the host hands work on.
        """
        used = is_used or any(event.on_device and event.size_bytes > 0 for event in self.memory)
        used = used or any(_LAUNCH in launch.name for found in self.launches.values() for launch in found)
        if used and not self.device:
            allowed = "a profile with its activities (ProfilerActivity.CUDA)"
            raise TraceError.at(self.path, "work for a device, and nothing that ran there", allowed)

    def launch_of(self, event: Span) -> Span | None:
        """Return the launch of a device event: of several processes' with its number, the last before it."""
        found = self.launches.get(event.args["correlation"], ())
        before = [launch for launch in found if launch.start_ns <= event.start_ns]
        return max(before or found, key=lambda launch: launch.start_ns, default=None)

    def device_times(self, owners: Sequence[Span]) -> list[list[Span]]:
        """For each owner, the device events whose launch it is the innermost owner of.

        Device events without a recorded launch have no owner.
        """
        found: list[list[Span]] = [[] for _ in owners]
        owner_of = innermost(owners)
        for event in self.device:
            owner = owner_of(self.launch_of(event))
            if owner is not None:
                found[owner].append(event)
        return found


def innermost(spans: Sequence[Span]) -> Callable[[Span | None], int | None]:
    """Return a function that tells the innermost span (by position) in which another begins.

    Of those of a thread that overlap, it is the one that began last.
    """
    by_thread = grouped((span.thread, position) for position, span in enumerate(spans))
    tables = {thread: _segments(spans, positions) for thread, positions in by_thread.items()}

    def around(other: Span | None) -> int | None:
        if other is None or other.thread not in tables:
            return None
        starts, owners = tables[other.thread]
        place = bisect_right(starts, other.start_ns) - 1
        return owners[place] if place >= 0 else None

    return around


def _segments(spans: Sequence[Span], positions: Iterable[int]) -> tuple[list[int], list[int | None]]:
    """Cut the time of a thread where the innermost span changes; a span without duration has no time.

    At the same time spans end before others begin, and of these the longest begins first.
    """
    lasting = [position for position in positions if spans[position].duration_ns > 0]
    begins = [(spans[position].start_ns, True, -spans[position].end_ns, position) for position in lasting]
    ends = [(spans[position].end_ns, False, 0, position) for position in lasting]
    starts: list[int] = []
    owners: list[int | None] = []
    around: list[int] = []
    for time_ns, is_begin, _, position in sorted([*begins, *ends]):
        if is_begin:
            around.append(position)
        else:
            around.remove(position)
        starts.append(time_ns)
        owners.append(around[-1] if around else None)
    return starts, owners


def read_profile(path: str | Path) -> Profile:
    """Read a profile as ``export_chrome_trace`` writes it, packed or plain, or a bare list of its events.

    Raises TraceError naming the file, the event, what was found and what is allowed.
    """
    path = Path(path)
    top = read_json(path, _WHAT)
    events = top if isinstance(top, list) and top else listed(top, "traceEvents", path, _WHAT)
    profile, place = Profile(path), f"{path}: event"
    for number, event in enumerate(events):
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
        category, kind = str(self.values.get("cat")).lower(), self.values.get("ph")
        category = _EARLIER.get(category, category)
        if category == _OPERATOR and str(self.values.get("name")).startswith(STEP):
            category = _ANNOTATION  # before PyTorch 1.12
        if kind == "X" and category in _DEVICE:
            args = self._args()
            args.get("correlation", "an integer", int)
            args.get("device", "a number or a text", int, str, default=0)
            args.get("bytes", "an integer", int, default=0)
            profile.device.append(self._span(args))
        elif kind == "X" and category == _OPERATOR:
            profile.operators.append(self._operator(self._args(), profile.unknown_types))
        elif kind == "X" and category == _ANNOTATION:
            profile.annotations.append(self._span(self._args()))
        elif kind == "X" and category.endswith(_LAUNCHES):
            args = self._args()
            if "correlation" in args.values:
                number = args.get("correlation", "an integer", int)
                profile.launches.setdefault(number, []).append(self._span(args))
        elif kind == "i" and self.values.get("name") == _MEMORY:
            profile.memory.append(self._memory(self._args()))

    def _span(self, args: Entry, inputs: Inputs = (), *, lacks_lists: bool = False) -> Span:
        start = self._time_ns("ts")
        end, thread = start + self._time_ns("dur"), self._thread()
        name = self.get("name", "a text", str)
        return Span(name, start, end, thread, args.values, inputs, self.place, lacks_lists)

    def _operator(self, args: Entry, unknown: dict[str, int]) -> Span:
        values = args.values
        dims: object = next((values[key] for key in DIMS if key in values), [])
        shapes = args.fitting("Input Dims", dims, _SHAPES, "a list of shapes, or of lists of them")
        types = args.fitting(_TYPES, values.get(_TYPES, []), _TEXTS, "texts")
        strides: list[Any] = args.fitting(
            _STRIDES, values.get(_STRIDES, []), _SHAPES, "a list of strides, or of lists of them"
        )
        strides += [None] * (len(shapes) - len(strides))
        found = []
        for shape, kind, stride in zip(shapes, types, strides, strict=False):
            item, is_whole = _item(kind)
            if item is None:
                if shape and kind not in _NO_TENSOR:
                    unknown[kind] = unknown.get(kind, 0) + 1
                continue
            wanted = list if kind == _LIST else int
            if any(type(part) is not wanted for part in shape):
                args.fail(f"Input Dims {shown(shape)} of type {kind}", "a shape; of a list, several")
            parts: Any = shape if kind == _LIST else [shape]
            steps: Any = stride if kind == _LIST and stride else [stride] * len(parts)
            reaches = (_reach(part, step) for part, step in zip(parts, steps, strict=False))
            if operands := tuple(Operand(*one, item, is_whole) for one in reaches if one[0]):
                found.append(operands)
        lists = [shape for shape, kind in zip(shapes, types, strict=False) if kind == _LIST]
        return self._span(args, tuple(found), lacks_lists=bool(lists) and not any(lists))

    def _memory(self, args: Entry) -> MemoryEvent:
        address, size, device = (args.get(key, "an integer", int) for key in ("Addr", "Bytes", "Device Type"))
        number = args.get("Device Id", "an integer", int, default=0)
        total = args.get("Total Allocated", "an integer", int, type(None))
        return MemoryEvent(self._time_ns("ts"), self._thread(), address, size, device != 0, number, total)

    def _time_ns(self, key: str) -> int:
        microseconds = self.get(key, "a number of microseconds", int, float, str)
        try:
            number = float(microseconds) if isinstance(microseconds, str) else microseconds
        except ValueError:
            number = float("nan")
        if not abs(number) < _LATEST_MICROSECONDS:  # not a number, too
            self.fail(f"{key} {shown(microseconds)}", "a number of microseconds")
        return round(number * NANOSECONDS_PER_MICROSECOND)

    def _thread(self) -> Thread:
        return self._number("pid"), self._number("tid")

    def _number(self, key: str) -> Any:
        """Return an id: a text of digits, as some events of older files have it, is the number."""
        found = self.get(key, "a number or a text", int, str)
        return int(found) if isinstance(found, str) and _DIGITS.fullmatch(found) else found

    def _args(self) -> Entry:
        return Entry(self.get("args", "an object", dict, default={}), self.place)


def _item(kind: str) -> tuple[int | None, bool]:
    """Return the bytes of an element of a C++ type (0 of a list, None where unknown), and if it is whole."""
    if kind == _LIST:
        return 0, False
    plain = _plain(kind)
    if plain.startswith(_EIGHT_BITS):
        return 1, False
    return _ITEM_BYTES.get(plain), plain in _WHOLE


def _plain(kind: str) -> str:
    """Return the shortest name of an integer's type (``long`` for ``unsigned __int64``), or the name itself.

    ``long`` has 8 bytes: Windows, where it has 4, names types of 8 bytes ``__int64``.
    """
    words = [word for word in kind.split() if word not in ("signed", "unsigned", "int")]
    names = {"__int64": "long", "uint8_t": "char", "int8_t": "char", "uint16_t": "short"}
    return names.get(words[0], words[0]) if words else "int" if kind else ""


def _reach(shape: Sequence[int], strides: Sequence[int] | None) -> tuple[int, int]:
    """Return the elements that a tensor reaches to, and those of the storage it may be a part of.

    Without strides, as before PyTorch 2.2, the tensor is contiguous.
    """
    if not prod(shape) or strides is None or len(strides) != len(shape):
        return prod(shape), prod(shape)
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1
    return reach, max((size * step for size, step in zip(shape, strides, strict=True)), default=reach)
