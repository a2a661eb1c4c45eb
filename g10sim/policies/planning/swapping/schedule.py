"""The schedule of one job: swaps, absences across iterations, recomputations."""

from __future__ import annotations

from dataclasses import dataclass, field

from g10sim.policies.interface.moves import Drop, Fetch
from g10sim.policies.interface.plan import Planned
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.swapping.access import AccessSequence


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

    def take(self, tensor: int, out: Interval, window: Interval, length: int, use: int) -> Swap | None:
        """Take the channels for a copy out and the latest copy in within a window; None: there is no room.

        The copy in takes ``length`` cycles and is there for kernel ``use``. The swap wraps unless that kernel
        starts after the copy out does.
        """
        period = self.accesses.period
        back = self.back.latest(window, length, period)
        if back is None:
            return None
        self.out.take(out, period)
        self.back.take(back, period)
        return Swap(tensor, out, back, use, wraps=self.accesses.times[use] <= out.start)

    def give_back(self, swap: Swap) -> None:
        """Free the channels of a swap."""
        self.out.give_back(swap.out, self.accesses.period)
        self.back.give_back(swap.back, self.accesses.period)

    def memory_moves(self) -> list[Planned]:
        """Return moves that drop what is recomputed, and give tensors their memory when they are made."""
        trace = self.accesses.trace
        found = [Planned(entry.drop, Drop(entry.tensor)) for entry in self.recomputed]
        found += [
            Planned(kernel.id, Fetch(tensor))
            for kernel in trace.kernels
            for tensor in kernel.tensors
            if not trace.tensors[tensor].persistent and trace.births[tensor] == kernel.id
        ]
        return found

    def moved(self) -> set[int]:
        """Return the tensors that leave the GPU in any way."""
        return {swap.tensor for swap in self.swaps} | {entry.tensor for entry in self.recomputed}
