"""Load of an iteration, and the tensors that could be absent while it is highest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from g10sim.analysis.footprint import live_bytes
from g10sim.analysis.timeline import Integers, kernel_durations
from g10sim.policies.interface.machine import page_sizes
from g10sim.policies.planning.occupancy import Occupancy, bytes_of_spans
from g10sim.policies.planning.timeline import Absence, Timeline, absences, spans_of
from g10sim.trace.model import Trace
from g10sim.trace.repetition import each


class LoadTimeline(Timeline):
    """A timeline with the load: the bytes that are allocated during each kernel."""

    def __init__(self, durations: Sequence[int] | Integers, load_bytes: Integers) -> None:
        super().__init__(durations)
        self.load_bytes = load_bytes

    @cached_property
    def peak(self) -> int:
        """First kernel with the highest load."""
        return int(self.load_bytes.argmax())

    @property
    def peak_bytes(self) -> int:
        """Highest load."""
        return int(self.load_bytes.max(initial=0))

    def load(self) -> Occupancy:
        """Return the load, to be changed while swaps are planned."""
        return Occupancy(self.load_bytes.copy())


def whole_pages(trace: Trace, page_bytes: int) -> Trace:
    """Return the trace with sizes rounded up to whole pages."""
    tensors = (
        tensor if tensor.size_bytes == size else replace(tensor, size_bytes=size)
        for tensor, size in zip(trace.tensors, page_sizes(trace, page_bytes), strict=True)
    )
    return replace(trace, tensors=tuple(tensors))


def timeline_of(trace: Trace, clock_hz: int) -> LoadTimeline:
    """Return the timeline of a trace, with what is alive during each kernel."""
    return LoadTimeline(kernel_durations(trace, clock_hz), live_bytes(trace))


@dataclass(frozen=True, slots=True)
class Swap:
    """A planned absence: its memory is free in operations ``gone`` to ``back`` - 1.

    The copy out begins at the start of operation ``candidate.start`` or as soon as those before it are done,
    the copy in with operation ``back``; among copies that begin with the same one, ``in_time`` says which
    is first.
    """

    candidate: Absence
    gone: int
    back: int
    in_time: int


def find_candidates(trace: Trace, peak: int, least_bytes: int) -> tuple[Absence, ...]:
    """Return what could be absent during the kernel of the highest load, by tensor.

    That is every tensor of at least ``least_bytes`` with uses before and after it (those of a persistent
    tensor go on over the border of the iteration), but none in it.
    """
    found = []
    for absence in absences(trace, each(trace.tensors, attrgetter("size_bytes"))):
        lap = len(trace.kernels) if peak < absence.end - len(trace.kernels) else 0
        start, end = absence.start - lap, absence.end - lap
        if absence.size_bytes >= least_bytes and start <= peak < end:
            found.append(replace(absence, start=start, end=end) if lap else absence)
    return tuple(found)


def select(
    timeline: LoadTimeline, candidates: Sequence[Absence], order: Iterable[int], limit_bytes: int
) -> tuple[Absence, ...]:
    """Take candidates in order until the peak of what is left is within the limit; all, if it never is."""
    chosen = [candidates[number] for number in order]

    def is_enough(count: int) -> bool:
        return least_peak_bytes(timeline, chosen[:count]) <= limit_bytes

    return tuple(chosen[: bisect_left(range(len(chosen)), True, key=is_enough)])


def least_peak_bytes(timeline: LoadTimeline, candidates: Sequence[Absence]) -> int:
    """Highest load with every candidate away, were copies free: no limit below can be kept."""
    starts, ends, sizes = spans_of(candidates)
    left = timeline.load_bytes - bytes_of_spans(starts, ends, sizes, timeline.num_kernels)
    return int(left.max(initial=0))
