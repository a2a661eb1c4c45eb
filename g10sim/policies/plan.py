"""A migration plan: what to move where before which kernel. Data, made before time starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from g10sim.records import Location


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One hint, issued when ``kernel`` is about to start.

    ``target`` GPU prefetches what lies elsewhere and allocates what does not exist yet; HOST and FLASH
    evict; NONE frees at once, or, with ``recompute``, drops a tensor that will be read again: the kernels
    that made it run once more before its next reader. ``kernel`` equal to the number of kernels means: at
    the start of the next iteration, before its own moves. Prefetches and evictions may be issued
    ``delay_cycles`` later: unless a kernel that uses the tensor has started by then.
    """

    kernel: int
    tensor: int
    target: Location
    recompute: bool = False
    delay_cycles: int = 0


@dataclass(frozen=True)
class MigrationPlan:
    """Moves in issue order (kernels ascending; within a kernel in this order)."""

    moves: tuple[PlannedMove, ...]
    planner: str = ""

    @classmethod
    def ordered(cls, moves: Iterable[PlannedMove], planner: str = "") -> MigrationPlan:
        """Build a plan from moves in any order of kernels; the order within a kernel is kept."""
        return cls(tuple(sorted(moves, key=lambda move: move.kernel)), planner)
