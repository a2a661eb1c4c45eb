"""Times for which a tensor may be absent from the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from g10sim.analysis.vitality import inactive_periods
from g10sim.policies.interface.machine import PlannedTier
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace


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


def absences(trace: Trace, sizes: Sequence[int]) -> tuple[Absence, ...]:
    """Return the inactive periods of all tensors, which have these sizes."""
    kernels, found = len(trace.kernels), []
    for period in inactive_periods(trace):
        crosses = period.start >= period.end
        end = period.end + (kernels if crosses else 0)
        frozen = period.tensor in trace.frozen
        size = sizes[period.tensor]
        found.append(Absence(period.tensor, size, period.start, end, wraps=crosses, frozen=frozen))
    return tuple(found)
