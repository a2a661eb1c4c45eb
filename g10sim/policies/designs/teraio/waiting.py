"""TERAIO's plan in the time of kernels that wait for copies: this project's."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.teraio.planner import Planner
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import Planned
from g10sim.policies.planning.absence import absences
from g10sim.policies.planning.gaps import Copies, Gaps


class WaitingPlanner(Planner):
    """Plans an iteration whose kernels take at least as long as what must be copied for them.

    Copies run in parts between others: where links are always busy, whole ones leave gaps too short for any.
    How long kernels wait is an estimate, so that copies are asked for when a kernel begins, in order.
    """

    def _durations(self, alone: Integers) -> Integers:
        out, back = self._copied_bytes()
        out_rate, in_rate = self._rates()
        waits = np.ceil(np.maximum(out / out_rate, back / in_rate)).astype(np.int64)
        return np.maximum(alone, waits)

    def _copied_bytes(self) -> tuple[Integers, Integers]:
        """Return the bytes that leave and return for each kernel, if tensors come when a kernel needs them.

        Those leave whose next use is farthest away (Belady, IBM Systems Journal 1966). It is that of a second
        iteration.
        """
        count = len(self._trace.kernels)
        starting, returning = defaultdict[int, list[tuple[int, int]]](list), defaultdict[int, int](int)
        for absence in absences(self._trace, self._sizes):
            starting[absence.start].append((absence.end - absence.start, absence.size_bytes))
        out, back = np.zeros((2, count), dtype=np.int64)
        idle, beyond = list[tuple[int, int]](), self._beyond.tolist()
        absent = 0
        for now in range(2 * count):
            kernel = now % count
            back[kernel] = returning.pop(now, 0)
            absent -= int(back[kernel])
            for length, size in starting[kernel]:
                heappush(idle, (-now - length, size))
            before = absent
            while absent < beyond[kernel] and idle and -idle[0][0] > now:
                use, size = heappop(idle)
                returning[-use] += size
                absent += size
            out[kernel] = absent - before
        return out, back

    def _earliest(self, gaps: Gaps, first: Integers, last: Integers, lengths: Integers) -> Copies:
        return gaps.earliest_in_parts(first, last, lengths)

    def _latest(self, gaps: Gaps, first: Integers, last: Integers, lengths: Integers) -> Copies:
        return gaps.latest_in_parts(first, last, lengths)

    def _planned(self, time: int, move: Evict | Fetch) -> Planned:
        return Planned(self._timeline.lap_last_until(time % self._timeline.period), move)
