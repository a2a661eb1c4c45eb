"""Times at which the chosen tensors leave and come back, one channel for each direction, and their cost."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.autoswap.timeline import LoadTimeline, Swap
from g10sim.policies.interface import PlannedTier
from g10sim.policies.planning.channel import queued
from g10sim.policies.planning.occupancy import Occupancy
from g10sim.policies.planning.timeline import Absence

_ITERATIONS = 3


@dataclass(frozen=True)
class Schedule:
    """Swaps in the order of their copies out, and the load peak that they leave.

    ``overhead_cycles`` is what they are expected to lengthen an iteration by. ``summed_waits_cycles`` is the
    authors' estimate of that: the waits of all copies, each by itself.
    """

    swaps: tuple[Swap, ...]
    overhead_cycles: int
    summed_waits_cycles: int
    peak_bytes: int


def stick_to_limit(
    timeline: LoadTimeline, chosen: Iterable[Absence], limit_bytes: int, copies: PlannedTier
) -> Schedule:
    """Keep the load within the limit, whatever that costs.

    A copy out that is not done when the limit needs its memory is waited for. A copy in begins as late
    as it can to be done in time, or after the last operation whose load leaves no room for it, and is then
    late. Memory is free when an operation starts, where the authors' planners have it free one operation
    earlier: their operations take no time, a kernel does.
    """
    load = timeline.load()
    departures, waits = _depart(timeline, chosen, load, copies, limit_bytes)
    swaps = []
    channel_from: int | None = None
    for candidate, gone in departures:
        wanted = _latest_start(timeline, candidate, copies, channel_from)
        in_time = max(wanted, timeline.lap_time(gone))
        back = max(gone, timeline.lap_last_until(in_time))
        load.add(back, candidate.end, candidate.size_bytes)
        above = load.above(limit_bytes, back, candidate.end)
        if above is not None:
            load.add(back, above[1] + 1, -candidate.size_bytes)
            back = above[1] + 1
            in_time = max(in_time, timeline.lap_time(back))
        if gone < back:
            waits += in_time - wanted
            channel_from = in_time
            swaps.append(Swap(candidate, gone, back, in_time))
    cycles = _Play(timeline, swaps, load.bytes, limit_bytes, copies).iteration_cycles()
    return Schedule(_by_departure(swaps), cycles - timeline.period, waits, load.peak_bytes)


def without_overhead(timeline: LoadTimeline, chosen: Iterable[Absence], copies: PlannedTier) -> Schedule:
    """Let no operation wait, whatever load that leaves; what cannot be away at the peak is not swapped."""
    left = [c for c in chosen if _fits_alone(timeline, c, copies)]
    while True:
        load = timeline.load()
        departures, _ = _depart(timeline, left, load, copies, inf)
        swaps = []
        channel_from: int | None = None
        for candidate, gone in departures:
            in_time = _latest_start(timeline, candidate, copies, channel_from)
            back = timeline.lap_last_until(in_time)
            if not gone <= timeline.peak < back:
                continue
            load.add(back, candidate.end, candidate.size_bytes)
            channel_from = in_time
            swaps.append(Swap(candidate, gone, back, in_time))
        if len(swaps) == len(left):
            return Schedule(_by_departure(swaps), 0, 0, load.peak_bytes)
        left = [swap.candidate for swap in swaps]


def _depart(
    timeline: LoadTimeline,
    chosen: Iterable[Absence],
    load: Occupancy,
    copies: PlannedTier,
    limit_bytes: float,
) -> tuple[list[tuple[Absence, int]], int]:
    """Plan the copies out, first come first served; what is frozen is gone at once.

    Returns the candidates with the kernel from which on their memory is free, those needed last first, and
    the sum of the waits.
    """
    departures = []
    waits = 0
    order = sorted(chosen, key=lambda c: (c.start, c.end))
    leaving = [(timeline.lap_time(c.start), c.out_cycles(copies)) for c in order if not c.frozen]
    ready, lengths = np.array(leaving, dtype=np.int64).reshape(-1, 2).T
    out = iter((queued(ready, lengths) + lengths).tolist())
    for candidate in order:
        done = timeline.lap_time(candidate.start) if candidate.frozen else next(out)
        gone = min(timeline.lap_first_from(done), candidate.end)
        load.add(gone, candidate.end, -candidate.size_bytes)
        above = load.above(limit_bytes, candidate.start, gone)
        if above is not None:
            load.add(above[0], gone, -candidate.size_bytes)
            gone = above[0]
            waits += done - timeline.lap_time(gone)
        departures.append((candidate, gone))
    return sorted(departures, key=lambda entry: (-entry[0].end, -entry[0].start)), waits


def _latest_start(
    timeline: LoadTimeline, candidate: Absence, copies: PlannedTier, channel_from: int | None
) -> int:
    """Latest time for a copy in to begin, so that it is done in time and before the next one begins."""
    need = timeline.lap_time(candidate.end)
    need = need if channel_from is None else min(need, channel_from)
    return need - copies.in_cycles(candidate.size_bytes)


def _fits_alone(timeline: LoadTimeline, candidate: Absence, copies: PlannedTier) -> bool:
    out = timeline.lap_time(candidate.start) + candidate.out_cycles(copies)
    back = timeline.lap_last_until(_latest_start(timeline, candidate, copies, None))
    return timeline.lap_first_from(out) <= timeline.peak < back


def _by_departure(swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    return tuple(sorted(swaps, key=lambda swap: (swap.candidate.start, swap.candidate.end)))


class _Play:
    """Operations with the load that swaps leave, one after the other, and a channel for each direction.

    An operation waits for copies out while the load and what should have left by then exceed the limit, and
    for the copies in of what it uses. A wait moves everything after it. ``_leaving`` are the copies out under
    way: when each is done, the operation from which on its memory counts as free, and its bytes.
    """

    def __init__(
        self,
        timeline: LoadTimeline,
        swaps: Sequence[Swap],
        load_bytes: Integers,
        limit_bytes: int,
        copies: PlannedTier,
    ) -> None:
        operations = timeline.num_kernels
        self._outs: list[list[Swap]] = [[] for _ in range(operations)]
        self._ins: list[list[Swap]] = [[] for _ in range(operations)]
        for swap in _by_departure(swaps):
            self._outs[swap.candidate.start % operations].append(swap)
        for swap in sorted(swaps, key=lambda swap: swap.in_time):
            self._ins[swap.back % operations].append(swap)
        self._room: list[int] = (limit_bytes - load_bytes).tolist()
        self._durations: list[int] = timeline.durations.tolist()
        self._copies = copies
        self._leaving = deque[tuple[int, int, int]]()
        self._due, self._late = defaultdict[int, int](int), 0
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
            if swap.candidate.frozen:
                self._left[swap.candidate.tensor] = self._time
                continue
            self._out_free = max(self._time, self._out_free) + self._copies.out_cycles(size)
            self._left[swap.candidate.tensor] = self._out_free
            gone = operation + swap.gone - swap.candidate.start
            self._leaving.append((self._out_free, gone, size))
            self._due[gone] += size
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
        self._late += self._due.pop(operation, 0)
        while leaving and (leaving[0][0] <= time or self._late > self._room[place]):
            done, gone, size = leaving.popleft()
            time = max(time, done)
            if gone <= operation:
                self._late -= size
            else:
                self._due[gone] -= size
        return time
