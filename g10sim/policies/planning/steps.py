"""Step functions of time whose values change over spans: levels of memory."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from g10sim.analysis.timeline import Integers

_BLOCK = 512


class Steps:
    """A value from each of some times on, until the next of them.

    Times are kept in blocks, each with its highest value and with what was added to all of it: a change, or a
    question, takes the time of two blocks and of as many numbers as there are blocks. At first ``sizes`` are
    added, or taken away, at ``times`` of 0 or later, for good.
    """

    def __init__(self, times: Integers, sizes: Integers) -> None:
        distinct, places = np.unique(np.concatenate([[0], times]), return_inverse=True)
        changes = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(changes, places[1:], sizes)
        count = -(-len(distinct) // _BLOCK)
        self._times: list[Integers] = np.array_split(distinct, count)
        self._values: list[Integers] = [part.copy() for part in np.array_split(changes.cumsum(), count)]
        self._starts: list[int] = [int(part[0]) for part in self._times]
        self._shifts = np.zeros(count, dtype=np.int64)
        self._peaks = np.array([part.max() for part in self._values], dtype=np.int64)

    @property
    def peak(self) -> tuple[int, int]:
        """Return the highest value, and the first time that has it."""
        block = int(self._peaks.argmax())
        place = int(self._values[block].argmax())
        return int(self._peaks[block]), int(self._times[block][place])

    def arrays(self) -> tuple[Integers, Integers]:
        """Return the times and the values from then on."""
        shifted = [part + shift for part, shift in zip(self._values, self._shifts.tolist(), strict=True)]
        return np.concatenate(self._times), np.concatenate(shifted)

    def add(self, start: int, end: int, size: int) -> None:
        """Add to the values from ``start`` to ``end``; the other way round, take from those between."""
        if start > end:
            start, end, size = end, start, -size
        if start == end:
            return
        self._split(start)
        last = self._split(end)
        first = self._place(start)
        for block, part in _edges(first, last):
            self._values[block][part] += size
            self._renew(block)
        between = slice(first[0] + 1, last[0])
        self._shifts[between] += size
        self._peaks[between] += size

    def most(self, start: int, end: int) -> int:
        """Return the highest value from ``start`` to before ``end``, a later time; 0 at least."""
        first, (stop, place) = self._place(start), self._place(end - 1)
        edges = _edges(first, (stop, place + 1))
        found = [int(self._values[block][part].max()) + int(self._shifts[block]) for block, part in edges]
        return max(0, *found, int(self._peaks[first[0] + 1 : stop].max(initial=0)))

    def _place(self, time: int) -> tuple[int, int]:
        """Return block and place of the last step that does not begin after a time."""
        block = max(0, bisect_right(self._starts, time) - 1)
        return block, max(0, int(self._times[block].searchsorted(time, side="right")) - 1)

    def _split(self, time: int) -> tuple[int, int]:
        """Return block and place of the step that begins at a time, made if there is none."""
        block, place = self._place(time)
        times, values = self._times[block], self._values[block]
        if times[place] == time:
            return block, place
        self._times[block] = np.concatenate([times[: place + 1], [time], times[place + 1 :]])
        self._values[block] = np.concatenate([values[: place + 1], values[place:]])
        if len(times) >= 2 * _BLOCK:
            self._halve(block)
            return self._place(time)
        return block, place + 1

    def _halve(self, block: int) -> None:
        middle = len(self._times[block]) // 2
        for parts in (self._times, self._values):
            parts[block : block + 1] = [parts[block][:middle], parts[block][middle:]]
        self._starts.insert(block + 1, int(self._times[block + 1][0]))
        self._shifts = np.insert(self._shifts, block + 1, self._shifts[block])
        self._peaks = np.insert(self._peaks, block + 1, 0)
        self._renew(block)
        self._renew(block + 1)

    def _renew(self, block: int) -> None:
        self._peaks[block] = int(self._values[block].max()) + int(self._shifts[block])


def _edges(first: tuple[int, int], last: tuple[int, int]) -> list[tuple[int, slice]]:
    """Return the first and the last block of some steps, with their parts, by block and place of both."""
    (block, place), (stop, until) = first, last
    if block == stop:
        return [(block, slice(place, until))]
    return [(block, slice(place, None)), (stop, slice(until))]
