"""Free times of a channel, for many copies at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Integers

if TYPE_CHECKING:
    import numpy.typing as npt

NEVER = 2**61
"""Time of what does not happen."""

Copies: TypeAlias = tuple[Integers, Integers]
"""Starts and ends of copies. Those of which a window has no room for begin at ``NEVER``."""


class Gaps:
    """The free times of a channel, in order, in an iteration and the next one.

    The channel is busy from ``begins`` to ``stops``, in order, in every iteration of ``period`` cycles; the
    last gap never ends.
    Copies of ``lengths`` are asked for in windows from ``first`` to ``last``, which end within the next
    iteration.
    """

    def __init__(self, begins: Sequence[int], stops: Sequence[int], period: int) -> None:
        begun, stopped = np.array(begins, dtype=np.int64), np.array(stops, dtype=np.int64)
        starts = np.concatenate(([0], stopped, stopped + period))
        ends = np.concatenate((begun, begun + period, [NEVER]))
        are_free = ends > starts
        self._starts, self._ends = starts[are_free], ends[are_free]
        self._lengths = self._ends - self._starts
        self._sums = self._lengths.cumsum()

    def earliest(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return the earliest copies."""
        gaps = self._ends.searchsorted(first, side="right")
        begins = np.maximum(self._starts[gaps], first)
        for some, fits in self._by_length(lengths, begins + lengths > self._ends[gaps]):
            begins[some] = self._starts[fits[fits.searchsorted(gaps[some], side="right")]]
        stops = begins + lengths
        return np.where(stops <= last, begins, NEVER), stops

    def latest(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return the latest copies."""
        gaps = np.maximum(self._starts.searchsorted(last) - 1, 0)
        stops = np.minimum(self._ends[gaps], last)
        for some, fits in self._by_length(lengths, stops - lengths < self._starts[gaps]):
            stops[some] = np.concatenate(([-NEVER], self._ends[fits]))[fits.searchsorted(gaps[some])]
        begins = stops - lengths
        return np.where(begins >= first, begins, NEVER), stops

    def earliest_in_parts(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return from the first to the last of the earliest parts that take ``lengths`` together."""
        begins = np.maximum(self._starts[self._ends.searchsorted(first, side="right")], first)
        wanted = self._free_before(first) + lengths
        gaps = self._sums.searchsorted(wanted)
        stops = self._ends[gaps] - self._sums[gaps] + wanted
        return np.where(stops <= last, begins, NEVER), stops

    def latest_in_parts(self, first: Integers, last: Integers, lengths: Integers) -> Copies:
        """Return from the first to the last of the latest parts that take ``lengths`` together."""
        stops = np.minimum(self._ends[np.maximum(self._starts.searchsorted(last) - 1, 0)], last)
        wanted = self._free_before(last) - lengths
        gaps = self._sums.searchsorted(wanted, side="right")
        begins = self._ends[gaps] - self._sums[gaps] + wanted
        return np.where((wanted >= 0) & (begins >= first), begins, NEVER), stops

    def _by_length(
        self, lengths: Integers, are_wanted: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Integers, Integers]]:
        """Yield the numbers of the wanted copies that are as long, and the gaps that are long enough."""
        wanted = are_wanted.nonzero()[0]
        of_wanted = lengths[wanted]
        for length in set(of_wanted.tolist()):
            yield wanted[of_wanted == length], (self._lengths >= length).nonzero()[0]

    def _free_before(self, times: Integers) -> Integers:
        gaps = np.maximum(self._starts.searchsorted(times, side="right") - 1, 0)
        before: Integers = self._sums[gaps] - self._lengths[gaps]
        before += np.clip(times - self._starts[gaps], 0, self._lengths[gaps])
        return before
