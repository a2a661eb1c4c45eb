"""What is planned for one job: swaps, absences across iterations, recomputations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from g10sim.policies.swap_planning.access import AccessSequence
from g10sim.policies.swap_planning.intervals import Channel, Interval


@dataclass(frozen=True, slots=True)
class Swap:
    """A tensor is copied out during ``out`` and in during ``back``, before kernel ``use`` needs it.

    Where it ``wraps``, ``back`` is in the iteration after that in which ``out`` begins.
    """

    tensor: int
    out: Interval
    back: Interval
    use: int
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A tensor is dropped when kernel ``drop`` starts and computed again before kernel ``use``.

    Meanwhile ``extra_bytes`` of other results of its producer are there as well.
    """

    tensor: int
    drop: int
    use: int
    extra_bytes: int


@dataclass
class JobSchedule:
    """A job's accesses, the channels that it may use, and what has been planned for it so far."""

    accesses: AccessSequence
    out: Channel
    back: Channel
    swaps: list[Swap] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)
    swapped: set[int] = field(default_factory=set)
    kept_away: set[int] = field(default_factory=set)
    """Tensors that are away across the border of the iteration."""

    def keep(self, swaps: Iterable[Swap]) -> None:
        """Add swaps to the plan; their channels have been taken."""
        self.swaps.extend(swaps)

    def moved(self) -> set[int]:
        """Return the tensors that leave the GPU in any way."""
        return {swap.tensor for swap in self.swaps} | {entry.tensor for entry in self.recomputed}
