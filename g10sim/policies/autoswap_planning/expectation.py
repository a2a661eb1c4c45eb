"""What swaps will cost: the iteration played through, operation by operation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from g10sim.analysis.timeline import Integers
from g10sim.policies.autoswap_planning.link import CopyTimes
from g10sim.policies.autoswap_planning.swap import Swap
from g10sim.policies.autoswap_planning.timeline import Timeline

_ITERATIONS = 3


@dataclass(slots=True)
class _CopyOut:
    """On its way until ``done``; its memory counts as free from operation ``gone`` on, which may wait."""

    done: int
    gone: int
    size_bytes: int


class _Play:
    """Operations one after the other, with one channel for each direction."""

    def __init__(
        self,
        timeline: Timeline,
        swaps: Sequence[Swap],
        load_bytes: Integers,
        limit_bytes: int,
        copies: CopyTimes,
    ) -> None:
        operations = timeline.num_operations
        self._outs: list[list[Swap]] = [[] for _ in range(operations)]
        self._ins: list[list[Swap]] = [[] for _ in range(operations)]
        for swap in sorted(swaps, key=lambda swap: (swap.candidate.start, swap.candidate.end)):
            self._outs[swap.candidate.start % operations].append(swap)
        for swap in sorted(swaps, key=lambda swap: swap.in_time):
            self._ins[swap.back % operations].append(swap)
        self._room: list[int] = (limit_bytes - load_bytes).tolist()
        starts: list[int] = timeline.starts.tolist()
        self._durations = [end - start for start, end in pairwise(starts)]
        self._copies = copies
        self._leaving: deque[_CopyOut] = deque()
        self._out_free = self._in_free = self._time = 0
        self._left: dict[int, int] = {}
        self._arrivals: dict[int, int] = {}

    def iteration_cycles(self) -> int:
        """Duration of an iteration that has others before it."""
        operations = len(self._durations)
        begin = 0
        for iteration in range(_ITERATIONS):
            begin = self._time
            for operation in range(operations):
                self._perform(operation, iteration * operations + operation)
        return self._time - begin

    def _perform(self, place: int, operation: int) -> None:
        """Let an operation begin when there is room and what it uses is back (``place`` of an iteration)."""
        for swap in self._outs[place]:
            size = swap.candidate.size_bytes
            self._out_free = max(self._time, self._out_free) + self._copies.out_cycles(size)
            self._left[swap.candidate.tensor] = self._out_free
            gone = operation + swap.gone - swap.candidate.start
            self._leaving.append(_CopyOut(self._out_free, gone, size))
        start = self._wait_for_room(place, operation)
        for swap in self._ins[place]:
            left = self._left.get(swap.candidate.tensor, 0)
            duration = self._copies.in_cycles(swap.candidate.size_bytes)
            self._in_free = max(start, self._in_free, left) + duration
            due = operation + swap.candidate.end - swap.back
            self._arrivals[due] = max(self._arrivals.get(due, 0), self._in_free)
        self._time = max(start, self._arrivals.pop(operation, 0)) + self._durations[place]

    def _wait_for_room(self, place: int, operation: int) -> int:
        """Time at which what should be gone by now has left as far as the limit needs it."""
        time, leaving = self._time, self._leaving
        while leaving and leaving[0].done <= time:
            leaving.popleft()
        late = sum(copy.size_bytes for copy in leaving if copy.gone <= operation)
        while leaving and late > self._room[place]:
            copy = leaving.popleft()
            time = copy.done
            if copy.gone <= operation:
                late -= copy.size_bytes
        return time


def expected_overhead(
    timeline: Timeline, swaps: Sequence[Swap], load_bytes: Integers, limit_bytes: int, copies: CopyTimes
) -> int:
    """Cycles by which swaps lengthen an iteration, given the load of each operation that they leave.

    An operation waits for copies out while the load and what should have left by then exceed the limit, and
    for the copies in of what it uses. A wait moves everything after it.
    """
    play = _Play(timeline, swaps, load_bytes, limit_bytes, copies)
    return play.iteration_cycles() - timeline.cycles
