"""Load of an iteration, and the tensors that could be absent while it is highest."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from g10sim.analysis.footprint import live_bytes
from g10sim.analysis.timeline import Integers, kernel_durations
from g10sim.policies.planning.machine import PlannedTier, page_sizes
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace


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
    sizes = zip(trace.tensors, page_sizes(trace, page_bytes), strict=True)
    return replace(trace, tensors=tuple(replace(tensor, size_bytes=size) for tensor, size in sizes))


def timeline_of(trace: Trace, clock_hz: int) -> LoadTimeline:
    """Return the timeline of a trace, with what is alive during each kernel."""
    return LoadTimeline(kernel_durations(trace, clock_hz), live_bytes(trace))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tensor that nobody uses in operations ``start`` to ``end`` - 1, among them the load peak.

    Operations are counted on over the border of the iteration: ``start`` may be negative, ``end`` may lie
    in the next iteration. What is ``frozen`` leaves without being copied, as its tier has it still.
    """

    tensor: int
    size_bytes: int
    start: int
    end: int
    frozen: bool = False

    def out_cycles(self, copies: PlannedTier) -> int:
        """Return the cycles that its copy off the GPU takes."""
        return 0 if self.frozen else copies.out_cycles(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Swap:
    """A planned absence: its memory is free in operations ``gone`` to ``back`` - 1.

    The copy out begins at the start of operation ``candidate.start`` or as soon as those before it are done,
    the copy in with operation ``back``; among copies that begin with the same one, ``in_time`` says which
    is first.
    """

    candidate: Candidate
    gone: int
    back: int
    in_time: int


def find_candidates(trace: Trace, peak: int, least_bytes: int) -> tuple[Candidate, ...]:
    """Return what could be absent during the kernel of the highest load, by tensor.

    That is every tensor of at least ``least_bytes`` with uses before and after it (those of a persistent
    tensor go on over the border of the iteration), but none in it.
    """
    found = []
    for tensor, uses, death in zip(trace.tensors, trace.uses, trace.deaths, strict=True):
        live_uses = uses[: bisect_left(uses, death)]
        if tensor.size_bytes < least_bytes or not live_uses:
            continue
        absence = _absence(live_uses, peak, len(trace.kernels) if tensor.persistent else None)
        if absence is not None:
            found.append(Candidate(tensor.id, tensor.size_bytes, *absence, tensor.id in trace.frozen))
    return tuple(found)


def _absence(uses: tuple[int, ...], peak: int, period: int | None) -> tuple[int, int] | None:
    """Return the first kernel after the last use before the peak, and the first use after it."""
    if period is not None:
        uses = (uses[-1] - period, *uses, uses[0] + period)
    place = bisect_left(uses, peak)
    if not 0 < place < len(uses) or uses[place] == peak:
        return None
    return uses[place - 1] + 1, uses[place]


def select(
    timeline: LoadTimeline, candidates: Sequence[Candidate], order: Iterable[int], limit_bytes: int
) -> tuple[Candidate, ...]:
    """Take candidates in order until the peak of what is left is within the limit; all, if it never is."""
    load = timeline.load()
    chosen: list[Candidate] = []
    for number in order:
        if load.peak_bytes <= limit_bytes:
            break
        candidate = candidates[number]
        load.add(candidate.start, candidate.end, -candidate.size_bytes)
        chosen.append(candidate)
    return tuple(chosen)


def least_peak_bytes(timeline: LoadTimeline, candidates: Iterable[Candidate]) -> int:
    """Highest load with every candidate away, were copies free: no limit below can be kept."""
    load = timeline.load()
    for candidate in candidates:
        load.add(candidate.start, candidate.end, -candidate.size_bytes)
    return load.peak_bytes
