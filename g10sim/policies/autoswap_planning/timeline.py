"""One iteration as the planner sees it: when operations begin and how much is allocated meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from g10sim.analysis.footprint import live_bytes
from g10sim.analysis.timeline import Integers, kernel_starts
from g10sim.policies.g10_planning.occupancy import kernel_slices
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class Timeline:
    """``starts`` (cycles) has one more entry than operations, the end; ``load_bytes`` is that of each.

    Operations are counted on over the border of the iteration, backwards too: operation -1 is the last one of
    the iteration before.
    """

    starts: Integers
    load_bytes: Integers

    @property
    def num_operations(self) -> int:
        """Operations of an iteration."""
        return len(self.load_bytes)

    @property
    def cycles(self) -> int:
        """Duration of an iteration."""
        return int(self.starts[-1])

    @cached_property
    def peak(self) -> int:
        """First operation with the highest load."""
        return int(self.load_bytes.argmax())

    @cached_property
    def peak_bytes(self) -> int:
        """Highest load."""
        return int(self.load_bytes.max(initial=0))

    def time(self, operation: int) -> int:
        """Start of an operation, in cycles after the start of this iteration."""
        lap, place = divmod(operation, self.num_operations)
        return lap * self.cycles + int(self.starts[place])

    def first_from(self, time: int) -> int:
        """First operation that does not begin before a time."""
        lap, rest = divmod(time, self.cycles)
        return lap * self.num_operations + int(np.searchsorted(self.starts, rest))

    def last_until(self, time: int) -> int:
        """Last operation that does not begin after a time."""
        lap, rest = divmod(time, self.cycles)
        return lap * self.num_operations + int(np.searchsorted(self.starts[:-1], rest, side="right")) - 1


class Load:
    """Load of each operation while swaps are planned, the same in every iteration."""

    def __init__(self, timeline: Timeline) -> None:
        self.bytes = timeline.load_bytes.copy()

    @property
    def peak_bytes(self) -> int:
        """Highest load."""
        return int(self.bytes.max(initial=0))

    def change(self, first: int, stop: int, size_bytes: int) -> None:
        """Add bytes (or take away, if negative) during operations ``first`` to ``stop`` - 1."""
        for part in self._slices(first, stop):
            self.bytes[part] += size_bytes

    def first_above(self, limit_bytes: int, first: int, stop: int) -> int | None:
        """First of the operations ``first`` to ``stop`` - 1 with more than the limit."""
        above = self._above(limit_bytes, first, stop)
        return first + int(above[0]) if len(above) else None

    def last_above(self, limit_bytes: int, first: int, stop: int) -> int | None:
        """Last of the operations ``first`` to ``stop`` - 1 with more than the limit."""
        above = self._above(limit_bytes, first, stop)
        return first + int(above[-1]) if len(above) else None

    def _above(self, limit_bytes: int, first: int, stop: int) -> Integers:
        parts = [self.bytes[part] for part in self._slices(first, stop)]
        if not parts:
            return np.zeros(0, dtype=np.int64)
        return np.flatnonzero(np.concatenate(parts) > limit_bytes)

    def _slices(self, first: int, stop: int) -> tuple[slice, ...]:
        place = first % len(self.bytes)
        return kernel_slices(place, place + stop - first, len(self.bytes))


def whole_pages(trace: Trace, page_bytes: int) -> Trace:
    """Return the trace with sizes rounded up to whole pages."""
    tensors = (
        replace(tensor, size_bytes=-(-tensor.size_bytes // page_bytes) * page_bytes)
        for tensor in trace.tensors
    )
    return replace(trace, tensors=tuple(tensors))


def timeline_of(trace: Trace, clock_hz: int) -> Timeline:
    """Return the timeline of a trace whose operations are kernels, with what is alive during each."""
    return Timeline(kernel_starts(trace, clock_hz), live_bytes(trace))
