"""Times for which a tensor may be absent from the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from g10sim.analysis.vitality import inactive_periods
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace


@dataclass(frozen=True)
class Absence:
    """A tensor is not used during kernels ``start`` to ``end`` - 1.

    Kernels are counted on over the border of the iteration; ``wraps`` marks an absence that crosses it.
    """

    tensor: int
    size_bytes: int
    start: int
    end: int
    wraps: bool

    def cycles(self, timeline: Timeline) -> int:
        """Return how long it lasts."""
        return timeline.lap_time(self.end) - timeline.times[self.start]


def absences(trace: Trace, sizes: Sequence[int]) -> tuple[Absence, ...]:
    """Return the inactive periods of all tensors, which take so many bytes each."""
    kernels, found = len(trace.kernels), []
    for period in inactive_periods(trace):
        crosses = period.start >= period.end
        end = period.end + (kernels if crosses else 0)
        found.append(Absence(period.tensor, sizes[period.tensor], period.start, end, crosses))
    return tuple(found)
