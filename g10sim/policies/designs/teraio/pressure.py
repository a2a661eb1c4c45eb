"""Critical memory pressure: bytes beyond GPU memory as a function of time."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import reduce
from operator import add

import numpy as np

from g10sim.analysis.timeline import Integers, Numbers, prefix_sums
from g10sim.policies.planning.channel import Interval, groups

_LARGEST, _LOW_BITS = np.iinfo(np.int64).max, 20


class CriticalPressure:
    """Bytes beyond GPU memory (negative: room), the same in every iteration, in steps at any time.

    ``starts`` has the start of every kernel and the end of the last one, in cycles. Reliefs are worked out
    from the steps between the first and the last one beyond GPU memory.
    """

    def __init__(self, starts: Integers, beyond_bytes: Integers) -> None:
        self._times, self._beyond = array("q", starts.tobytes()), array("q", beyond_bytes.tobytes())
        self._period = int(starts[-1])
        self._renew()

    @property
    def highest_bytes(self) -> int:
        """The most bytes beyond GPU memory; 0 where all fits."""
        return self._highest

    def reliefs(self, starts: Integers, ends: Integers, sizes: Integers) -> Numbers:
        """Return the pressure that absences of these sizes would take away, in bytes x cycles.

        They end within the next iteration; one of no bytes takes nothing away.
        """
        found: Numbers = np.zeros_like(sizes)
        laps, rest = np.divmod(np.concatenate((starts, ends)).reshape(2, -1), self._period)
        rest = np.minimum(np.maximum(rest, self._steps[0]), self._steps[-1])
        steps = self._steps[:-1].searchsorted(rest, side="right") - 1
        rest -= self._steps.take(steps)
        for size, some in groups(sizes):
            if not size:
                continue
            step, left, lap = (values.take(some, axis=1) for values in (steps, rest, laps))
            parts: list[Numbers] = []
            for shift, taken, sums in self._taken(size):
                before, until = sums.take(step) + taken.take(step) * left + lap * sums[-1]
                parts.append(until - before if not shift else (until - before).astype(object) << shift)
            relief = reduce(add, parts)
            found = found.astype(np.promote_types(found.dtype, relief.dtype), copy=False)
            found[some] = relief
        return found

    def _taken(self, size_bytes: int) -> list[tuple[int, Integers, Integers]]:
        """Return the bytes of an absence that are critical in each of these steps, and their sums x cycles.

        Where reliefs may be too large, sums are those of the high and of the low bits, after how far they are
        shifted. Sums that are too large themselves have right differences. They are kept until pressure
        changes.
        """
        if size_bytes not in self._of_size:
            taken = np.minimum(self._above, size_bytes)
            parts = [(0, taken)]
            if size_bytes * self._period > _LARGEST:
                parts = [(0, taken & ((1 << _LOW_BITS) - 1)), (_LOW_BITS, taken >> _LOW_BITS)]
            self._of_size[size_bytes] = [
                (shift, part, prefix_sums(part * self._lengths)) for shift, part in parts
            ]
        return self._of_size[size_bytes]

    def lower(self, absence: Interval, size_bytes: int) -> None:
        """Let some bytes be absent."""
        for start, end in absence.within(self._period):
            first, last = self._step_at(start), self._step_at(end)
            np.frombuffer(self._beyond, dtype=np.int64)[first:last] -= size_bytes
        self._renew()

    def _step_at(self, time: int) -> int:
        """Return the number of the step that starts at a time, made if there is none."""
        step = bisect_left(self._times, time)
        if self._times[step] != time:
            self._times.insert(step, time)
            self._beyond.insert(step, self._beyond[step - 1])
        return step

    def _renew(self) -> None:
        times, beyond = (np.frombuffer(values, dtype=np.int64) for values in (self._times, self._beyond))
        is_critical = beyond > 0
        first, last = int(is_critical.argmax()), len(is_critical) - int(is_critical[::-1].argmax())
        self._steps: Integers = times[first : last + 1].copy()
        self._lengths: Integers = self._steps[1:] - self._steps[:-1]
        self._above: Integers = np.maximum(beyond[first:last], 0)
        self._highest = int(self._above.max(initial=0))
        self._of_size: dict[int, list[tuple[int, Integers, Integers]]] = {}
