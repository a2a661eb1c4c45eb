"""Chooses what to import of a profile: one process, one device, one step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g10sim.errors import TraceError, choices_text
from g10sim.importers.kineto_events import STEP, MemoryEvent, Profile, Span

_SLIVER = 0.1
"""The last step is a sliver, begun by the last ``prof.step()``, where it has less than this share of the
largest other step: of its time in a profile, of its operators in an execution trace."""
_EVER = 2**63
_SEVERAL = {"process": "processes", "device": "devices"}


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a profile that is imported, and the whole of it.

    ``device`` events are those of the chosen process and device in the step, in the order of time;
    ``other_devices_ns`` and ``outside_ns`` are the times of those that are not.
    """

    profile: Profile
    process: Any
    operators: list[Span]
    annotations: list[Span]
    device: list[Span]
    memory: list[MemoryEvent]
    start_ns: int
    end_ns: int
    step: str
    other_devices_ns: int
    outside_ns: int


def chosen_step(found: Sequence[tuple[str, float]], wanted: int | None, place: str) -> tuple[int, str]:
    """Return the position of a step among (name, size), and words on it and the others.

    Without a wanted number it is the last whole one. Raises TraceError for a number that is not there.
    """
    numbers = [name.removeprefix(STEP) for name, _ in found]
    position, words = len(found) - 1, ""
    largest = max((size for _, size in found[:-1]), default=0)
    if wanted is not None:
        if str(wanted) not in numbers:
            raise TraceError.at(place, f"--step {wanted}", choices_text(numbers) or "none: no steps")
        position = numbers.index(str(wanted))
    elif position and found[-1][1] < _SLIVER * largest:
        position, words = position - 1, f" ({numbers[-1]} is what came after the last whole step)"
    return position, f"{numbers[position]} of {', '.join(numbers)}{words}"


def words_on_all(steps: Sequence[object]) -> str:
    """Return words on the whole of a file in which none of its steps has operators."""
    return "all: no step has operators" if steps else "all of the file: no step is marked"


def scope_of(profile: Profile, process: str | None, device: str | None, step: int | None) -> Scope:
    """Choose process, device and step of a profile. Raises TraceError where a choice is missing or wrong."""
    owners = [launch and launch.thread[0] for launch in map(profile.launch_of, profile.device)]
    events = list(zip(profile.device, owners, strict=True))
    if process is None and device is not None:
        using = {owner for event, owner in events if str(event.device) == device and owner is not None}
        process = str(using.pop()) if len(using) == 1 else None
    working = [span.thread[0] for span in profile.operators] or [one for one in owners if one is not None]
    pid = only(profile.path, "process", working, process)
    of_process = [event for event, owner in events if owner in (pid, None)]
    number = only(profile.path, "device", [event.device for event in of_process], device)
    own = [event for event in of_process if event.device == number]
    start, end, words = _window(profile, pid, step)
    operators = [span for span in profile.operators if span.thread[0] == pid and start <= span.start_ns < end]
    inside = _of_step(profile, own, start, end)
    for span in [*operators, *inside]:
        if span.end_ns < span.start_ns:
            microseconds = span.duration_ns / 1000
            raise TraceError(f"{span.place}: found dur {microseconds:g}; allowed: at least 0")
    annotations = [span for span in profile.annotations if span.thread[0] == pid]
    memory = [event for event in profile.memory if event.thread[0] == pid and event.time_ns <= end]
    memory = _of_device(memory, number)
    others, outside = _total(profile.device) - _total(own), _total(own) - _total(inside)
    return Scope(profile, pid, operators, annotations, inside, memory, start, end, words, others, outside)


def only(path: Path, what: str, found: Iterable[Any], wanted: str | None) -> Any:
    """Return the only process or device, or the one that is wanted by its text, as cuda:1 or 1 for cuda:1.

    Raises TraceError.
    """
    values = list(dict.fromkeys(found))
    chosen = [one for one in values if wanted in (None, str(one), str(one).rpartition(":")[2])]
    if len(chosen) == 1 or not values:
        return chosen[0] if chosen else None
    many = f"work of {len(values)} {_SEVERAL[what]}" if wanted is None else f"--{what} {wanted}"
    allowed = choices_text(map(str, values))
    raise TraceError(f"{path}: found {many}; allowed: --{what} with one of {allowed}")


def _window(profile: Profile, pid: Any, wanted: int | None) -> tuple[int, int, str]:
    """Return start and end of the step in nanoseconds, and words on it."""
    steps = [span for span in profile.annotations if span.name.startswith(STEP) and span.thread[0] == pid]
    starts = [span.start_ns for span in profile.operators if span.thread[0] == pid]
    busy = [one for one in steps if bisect_left(starts, one.start_ns) < bisect_left(starts, one.end_ns)]
    if wanted is None and not busy:
        return -_EVER, _EVER, words_on_all(steps)
    offered = steps if wanted is not None else busy
    sizes = [(span.name, float(span.duration_ns)) for span in offered]
    position, words = chosen_step(sizes, wanted, str(profile.path))
    if len(offered) < len(steps):
        kept = set(map(id, offered))
        empty = [span.name.removeprefix(STEP) for span in steps if id(span) not in kept]
        words += f" ({', '.join(empty)} without operators)"
    return offered[position].start_ns, offered[position].end_ns, words


def _of_step(profile: Profile, events: Sequence[Span], start_ns: int, end_ns: int) -> list[Span]:
    """Return the device events that were launched in the step.

    One without a recorded launch was launched before the recording if it began before the first that has one.
    """
    launches = [(event, profile.launch_of(event)) for event in events]
    inside = [event for event, launch in launches if launch and start_ns <= launch.start_ns < end_ns]
    first = min((event.start_ns for event in inside), default=start_ns)
    inside += [event for event, launch in launches if launch is None and first <= event.start_ns < end_ns]
    return sorted(inside, key=lambda event: (event.start_ns, event.end_ns))


def _of_device(memory: Sequence[MemoryEvent], number: Any) -> list[MemoryEvent]:
    """Return the memory events of a device; of the host where nothing ran on a device.

    HIP numbers the devices of kernels and memory apart: the only one with memory is that of the kernels.
    """
    if number is None:
        return [event for event in memory if not event.on_device]
    found = [event for event in memory if event.on_device]
    numbers = {event.device for event in found}
    return found if len(numbers) == 1 else [event for event in found if event.device == number]


def _total(events: Iterable[Span]) -> int:
    return sum(max(event.duration_ns, 0) for event in events)
