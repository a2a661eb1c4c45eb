"""One job that swaps: which tensors it uses when, and what is planned for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from g10sim.policies.interface import Drop, Fetch, MigrationPlan, Planned
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.timeline import Timeline
from g10sim.trace.model import Trace


class AccessSequence(Timeline):
    """The accesses of one job's tensors, in cycles from the start of an iteration.

    ``durations`` are those that are expected of the kernels, one after another. ``sizes`` are bytes.
    """

    def __init__(self, trace: Trace, durations: Sequence[int], sizes: Sequence[int]) -> None:
        super().__init__(durations)
        self.trace, self.sizes = trace, tuple(sizes)

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the kernels that use it while its contents are needed, ascending."""
        trace = self.trace
        return tuple(
            uses[: bisect_left(uses, death)] for uses, death in zip(trace.uses, trace.deaths, strict=True)
        )

    def last_input_access(self, time: int) -> int:
        """Return when the last kernel with inputs starts, before a time or at it; 0 without any."""
        place = bisect_right(self._input_starts, time)
        return self._input_starts[place - 1] if place else 0

    def copy_cycles(self, tensor: int, bytes_per_cycle: float) -> int:
        """Return the cycles of one copy: size over bandwidth, without a latency, rounded up."""
        return max(1, -int(-self.sizes[tensor] // bytes_per_cycle))

    def out_cycles(self, tensor: int, cycles: int) -> int:
        """Return how long a copy out keeps the link, in cycles; a frozen tensor leaves without one."""
        return 1 if tensor in self.trace.frozen else cycles

    @cached_property
    def _input_starts(self) -> list[int]:
        return [self.times[kernel.id] for kernel in self.trace.kernels if kernel.inputs]


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

    def take(self, tensor: int, window: Interval, length: int, use: int) -> Swap | None:
        """Take the channels for the earliest copy out within a window, and for the latest copy in after it.

        Copies take ``length`` cycles, those of frozen tensors out next to none. That in is there for kernel
        ``use``: the swap wraps unless this starts after the copy out does. None: there is no room.
        """
        period, start = self.accesses.period, self.accesses.times[use]
        out = self.out.earliest(window, self.accesses.out_cycles(tensor, length), period)
        if out is None:
            return None
        wraps = start <= out.start
        left = max(0, out.end - period) if wraps else out.end
        back = self.back.latest(Interval(left, start), length, period)
        if back is None:
            return None
        self.out.take(out, period)
        self.back.take(back, period)
        return Swap(tensor, out, back, use, wraps)

    def give_back(self, swap: Swap) -> None:
        """Free the channels of a swap."""
        self.out.give_back(swap.out, self.accesses.period)
        self.back.give_back(swap.back, self.accesses.period)

    def plan(self, copies: Iterable[Planned], planner: str) -> MigrationPlan:
        """Return copies, and moves that drop what is recomputed and give tensors memory as they are made."""
        trace = self.accesses.trace
        found = [Planned(entry.drop, Drop(entry.tensor)) for entry in self.recomputed]
        found += [
            Planned(kernel.id, Fetch(tensor))
            for kernel in trace.kernels
            for tensor in kernel.tensors
            if not trace.lasting[tensor] and trace.births[tensor] == kernel.id
        ]
        found += copies
        return MigrationPlan(tuple(sorted(found, key=attrgetter("kernel", "delay_cycles"))), planner)

    def moved(self) -> set[int]:
        """Return the tensors that leave the GPU in any way."""
        return {swap.tensor for swap in self.swaps} | {entry.tensor for entry in self.recomputed}
