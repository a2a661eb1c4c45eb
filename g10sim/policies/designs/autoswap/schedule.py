"""Times at which the chosen tensors leave and come back, one channel for each direction, and their cost."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from math import inf
from operator import attrgetter

import numpy as np

from g10sim.grouping import grouped
from g10sim.policies.designs.autoswap.timeline import LoadTimeline, Swap
from g10sim.policies.interface import PlannedTier
from g10sim.policies.planning.channel import NEVER, queued
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
    channels = _Channels(timeline, copies, limit_bytes)
    swaps, waits = channels.scheduled(chosen)
    overhead = channels.iteration_cycles(swaps) - timeline.period
    return Schedule(_by_departure(swaps), overhead, waits, channels.load.peak_bytes)


def without_overhead(timeline: LoadTimeline, chosen: Iterable[Absence], copies: PlannedTier) -> Schedule:
    """Let no operation wait, whatever load that leaves; what cannot be away at the peak is not swapped."""
    left = list(filter(_Channels(timeline, copies).fit_alone, chosen))
    while True:
        channels = _Channels(timeline, copies)
        swaps, _ = channels.scheduled(left, peak=timeline.peak)
        late = channels.leaving_late(swaps)
        if len(swaps) == len(left) and not late:
            return Schedule(_by_departure(swaps), 0, 0, channels.load.peak_bytes)
        kept = (swap.candidate for swap in swaps)
        left = [replace(one, frozen=one.frozen and one.tensor not in late) for one in kept]


class _Channels:
    """Copies on a channel for each direction, and the ``load`` that they leave, within a limit if any."""

    def __init__(self, timeline: LoadTimeline, copies: PlannedTier, limit_bytes: float = inf) -> None:
        self._timeline, self._copies, self._limit_bytes = timeline, copies, limit_bytes
        self.load = timeline.load()

    def scheduled(self, chosen: Iterable[Absence], peak: int | None = None) -> tuple[list[Swap], int]:
        """Return the swaps of what can be away, at the ``peak`` if one is given, and the sum of the waits."""
        timeline, load = self._timeline, self.load
        departures, waits = self._depart(chosen)
        swaps, channel_from = list[Swap](), NEVER
        for candidate, gone in departures:
            wanted = self._latest_start(candidate, channel_from)
            in_time = max(wanted, timeline.lap_time(gone))
            back = max(gone, timeline.lap_last_until(in_time))
            back = load.within_from(self._limit_bytes - candidate.size_bytes, back, candidate.end)
            load.add(back, candidate.end, candidate.size_bytes)
            in_time = max(in_time, timeline.lap_time(back))
            is_away = gone < back if peak is None else in_time == wanted and gone <= peak < back
            if is_away:
                waits += in_time - wanted
                channel_from = in_time
                swaps.append(Swap(candidate, gone, back, in_time))
        return swaps, waits

    def _depart(self, chosen: Iterable[Absence]) -> tuple[list[tuple[Absence, int]], int]:
        """Plan the copies out, first come first served; what is frozen is gone at once.

        Returns the candidates with the kernel from which on their memory is free, those needed last first,
        and the sum of the waits.
        """
        timeline, load = self._timeline, self.load
        departures, waits = list[tuple[Absence, int]](), 0
        order = sorted(chosen, key=lambda c: (c.start, c.end))
        leaving = [(timeline.lap_time(c.start), c.out_cycles(self._copies)) for c in order if not c.frozen]
        ready, lengths = np.array(leaving, dtype=np.int64).reshape(-1, 2).T
        out = iter((queued(ready, lengths) + lengths).tolist())
        for candidate in order:
            done = timeline.lap_time(candidate.start) if candidate.frozen else next(out)
            gone = min(timeline.lap_first_from(done), candidate.end)
            above = load.above(self._limit_bytes, candidate.start, gone)
            if above is not None:
                gone = above[0]
                waits += done - timeline.lap_time(gone)
            load.add(gone, candidate.end, -candidate.size_bytes)
            departures.append((candidate, gone))
        return sorted(departures, key=lambda entry: (-entry[0].end, -entry[0].start)), waits

    def _latest_start(self, candidate: Absence, channel_from: int = NEVER) -> int:
        """Latest time for a copy in to begin, so that it is done in time and before the next one begins."""
        need = min(self._timeline.lap_time(candidate.end), channel_from)
        return need - self._copies.in_cycles(candidate.size_bytes)

    def fit_alone(self, candidate: Absence) -> bool:
        """Return True if copies that nothing delays leave a tensor away at the peak."""
        timeline = self._timeline
        out = timeline.lap_time(candidate.start) + candidate.out_cycles(self._copies)
        back = timeline.lap_last_until(self._latest_start(candidate))
        return timeline.lap_first_from(out) <= timeline.peak < back

    def leaving_late(self, swaps: Iterable[Swap]) -> set[int]:
        """Return the frozen tensors whose first copy out, behind others, ends after they are asked back.

        No copy is kept of these, so that they are copied each time.
        """
        order, time, length = _by_departure(swaps), self._timeline.lap_time, self._copies.out_cycles
        rows = [(time(s.candidate.start), length(s.candidate.size_bytes), time(s.back)) for s in order]
        ready, lengths, asked = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        is_late = queued(ready, lengths) + lengths > asked
        return {swap.candidate.tensor for swap in compress(order, is_late) if swap.candidate.frozen}

    def iteration_cycles(self, swaps: Sequence[Swap]) -> int:
        """Return the duration of an iteration that has others before it, with the load that swaps leave.

        Operations run one after the other, and there is a channel for each direction. An operation waits for
        copies out while the load and what should have left by then exceed the limit, and for the copies in of
        what it uses. A wait moves everything after it. ``leaving`` are the copies out under way: when each is
        done, the operation from which on its memory counts as free, and its bytes.
        """
        operations, copies = self._timeline.num_kernels, self._copies
        outs = grouped((swap.candidate.start % operations, swap) for swap in _by_departure(swaps))
        ins = grouped((swap.back % operations, swap) for swap in sorted(swaps, key=attrgetter("in_time")))
        room: list[int] = (self._limit_bytes - self.load.bytes).tolist()
        durations: list[int] = self._timeline.durations.tolist()
        leaving, due, late = deque[tuple[int, int, int]](), defaultdict[int, int](int), 0
        left, arrivals = dict[int, int](), defaultdict[int, int](int)
        out_free = in_free = time = begin = 0
        for operation in range(_ITERATIONS * operations):
            place = operation % operations
            begin = time if place == 0 else begin
            for swap in outs.get(place, ()):
                size = swap.candidate.size_bytes
                if swap.candidate.frozen:
                    left[swap.candidate.tensor] = time
                    continue
                out_free = max(time, out_free) + copies.out_cycles(size)
                left[swap.candidate.tensor] = out_free
                gone = operation + swap.gone - swap.candidate.start
                leaving.append((out_free, gone, size))
                due[gone] += size
            late += due.pop(operation, 0)
            while leaving and (leaving[0][0] <= time or late > room[place]):
                done, gone, size = leaving.popleft()
                time = max(time, done)
                if gone <= operation:
                    late -= size
                else:
                    due[gone] -= size
            for swap in ins.get(place, ()):
                ready = max(time, in_free, left.get(swap.candidate.tensor, 0))
                in_free = ready + copies.in_cycles(swap.candidate.size_bytes)
                needed = operation + swap.candidate.end - swap.back
                arrivals[needed] = max(arrivals[needed], in_free)
            time = max(time, arrivals.pop(operation, 0)) + durations[place]
        return time - begin


def _by_departure(swaps: Iterable[Swap]) -> tuple[Swap, ...]:
    return tuple(sorted(swaps, key=lambda swap: (swap.candidate.start, swap.candidate.end)))
