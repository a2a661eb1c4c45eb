"""Access sequences: which tensors a job uses when, if no kernel ever waits."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.channel import Interval
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

    def accesses(self, tensor: int) -> list[Interval]:
        """Return when kernels use a tensor."""
        return [self.interval(kernel) for kernel in self.uses[tensor]]

    def first_use_from(self, tensor: int, time: int) -> int | None:
        """Return the place among a tensor's uses of the first that starts at a time or later."""
        uses = self.uses[tensor]
        place = bisect_left(uses, time, key=self.times.__getitem__)
        return place if place < len(uses) else None

    def last_input_access(self, time: int, *, including: bool) -> int:
        """Return when the last kernel with inputs starts, before a time or at it; 0 without any."""
        starts = self._input_starts
        place = int(starts.searchsorted(time, side="right" if including else "left"))
        return int(starts[place - 1]) if place else 0

    def out_cycles(self, tensor: int, cycles: int) -> int:
        """Return how long a copy out keeps the link, in cycles; a frozen tensor leaves without one."""
        return 1 if tensor in self.trace.frozen else cycles

    @cached_property
    def _input_starts(self) -> Integers:
        return np.array([self.starts[k.id] for k in self.trace.kernels if k.inputs], dtype=np.int64)


def transfer_cycles(accesses: AccessSequence, tensor: int, bytes_per_cycle: float) -> int:
    """Return the cycles of one copy: size over bandwidth, without a latency, rounded up."""
    return max(1, -int(-accesses.sizes[tensor] // bytes_per_cycle))
