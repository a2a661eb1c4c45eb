"""An iteration in which no kernel waits: which kernel runs when, and for how long tensors are not needed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.analysis.vitality import inactive_periods
from g10sim.policies.interface import Move, Planned, PlannedTier
from g10sim.policies.planning.channel import Interval
from g10sim.trace.model import Trace


class Timeline:
    """Kernel ``k`` runs from ``starts[k]`` to ``starts[k + 1]``, in cycles.

    Methods with ``lap`` in their names count kernels and cycles on over the border of the iteration, in both
    directions: kernel -1 is the last one of the iteration before.
    """

    def __init__(self, durations: Sequence[int] | Integers) -> None:
        self.durations: Integers = np.asarray(durations, dtype=np.int64)
        self.starts: Integers = np.concatenate([[0], np.cumsum(self.durations)])
        self.times: list[int] = self.starts.tolist()  # faster than an array where times are looked up singly

    @property
    def num_kernels(self) -> int:
        """Kernels of an iteration."""
        return len(self.durations)

    @property
    def period(self) -> int:
        """Cycles of an iteration."""
        return self.times[-1]

    def interval(self, kernel: int) -> Interval:
        """Return when a kernel runs."""
        return Interval(self.times[kernel], self.times[kernel + 1])

    def kernel_at(self, time: float) -> int:
        """Return the kernel that runs at a time, the first or last one outside the iteration."""
        return min(max(0, bisect_right(self.times, time) - 1), self.num_kernels - 1)

    def boundary_before(self, kernel: int) -> int:
        """Return the last kernel that starts at an earlier cycle than this one."""
        return max(0, bisect_left(self.times, self.times[kernel]) - 1)

    def boundary_after(self, kernel: int) -> int:
        """Return the first kernel that starts at a later cycle than this one, or the last kernel."""
        return min(self.num_kernels - 1, bisect_right(self.times, self.times[kernel]))

    def lap_time(self, kernel: int) -> int:
        """Return the start of a kernel, in cycles after the start of this iteration."""
        lap, place = divmod(kernel, self.num_kernels)
        return lap * self.period + self.times[place]

    def lap_times(self, kernels: Integers) -> Integers:
        """Return the starts of kernels like ``lap_time``."""
        laps, places = np.divmod(kernels, self.num_kernels)
        found: Integers = laps * self.period + self.starts[places]
        return found

    def lap_first_from(self, time: int) -> int:
        """Return the first kernel that does not begin before a time."""
        lap, rest = divmod(time, self.period)
        return lap * self.num_kernels + bisect_left(self.times, rest)

    def lap_last_until(self, time: int) -> int:
        """Return the last kernel that does not begin after a time."""
        lap, rest = divmod(time, self.period)
        return lap * self.num_kernels + bisect_right(self.times, rest, hi=self.num_kernels) - 1

    def planned(self, time: int, move: Move) -> Planned:
        """Return a move at a time, in cycles: by the kernel that runs then, and how long after its start."""
        time %= self.period
        kernel = self.kernel_at(time)
        return Planned(kernel, move, time - self.times[kernel])


@dataclass(frozen=True)
class Absence:
    """A tensor is not used during kernels ``start`` to ``end`` - 1.

    Kernels are counted on over the border of the iteration; ``wraps`` marks an absence that crosses it.
    ``start`` may be negative. What is ``frozen`` leaves without being copied, as its tier has it still.
    """

    tensor: int
    size_bytes: int
    start: int
    end: int
    wraps: bool = field(default=False, kw_only=True)
    frozen: bool = field(default=False, kw_only=True)

    @property
    def out_bytes(self) -> int:
        """Bytes that are copied when it begins."""
        return 0 if self.frozen else self.size_bytes

    def cycles(self, timeline: Timeline) -> int:
        """Return how long it lasts."""
        return timeline.lap_time(self.end) - timeline.lap_time(self.start)

    def out_cycles(self, tier: PlannedTier) -> int:
        """Return the cycles that its copy off the GPU takes."""
        return 0 if self.frozen else tier.out_cycles(self.size_bytes)


def spans_of(absences: Iterable[Absence]) -> Integers:
    """Return three rows: where absences start and end, and their bytes."""
    rows = [(absence.start, absence.end, absence.size_bytes) for absence in absences]
    return np.array(rows, dtype=np.int64).reshape(-1, 3).T


def absences(trace: Trace, sizes: Sequence[int]) -> tuple[Absence, ...]:
    """Return the inactive periods of all tensors, which have these sizes."""
    kernels, found = len(trace.kernels), []
    for period in inactive_periods(trace):
        tensor, start, wraps = period.tensor, period.start, period.start >= period.end
        end, frozen = period.end + (kernels if wraps else 0), tensor in trace.frozen
        found.append(Absence(tensor, sizes[tensor], start, end, wraps=wraps, frozen=frozen))
    return tuple(found)
