"""Tensor vitality: when tensors live and when nothing uses them (G10 paper, section 4.2)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from g10sim.analysis.timeline import Integers
from g10sim.trace.model import Trace


class LiveRange(NamedTuple):
    """Kernels ``birth`` to ``death`` - 1, during which the contents of a tensor are needed."""

    tensor: int
    birth: int
    death: int


class InactivePeriod(NamedTuple):
    """Kernels between two uses of a tensor, none of which touches it: ``start`` to ``end`` - 1.

    A period that ``wraps`` belongs to a persistent tensor and crosses the border of the iteration: it lasts
    from ``start`` to the end and from the beginning to ``end`` - 1 of the next iteration, whose first use
    is kernel ``end``. With the last use in the last kernel, ``start`` is 0: all of it is after the border.
    """

    tensor: int
    start: int
    end: int
    wraps: bool = False

    def num_kernels(self, kernels_in_iteration: int) -> int:
        """Count the kernels in it."""
        return (self.end - self.start) + (kernels_in_iteration if self.start >= self.end else 0)

    def cycles(self, starts: Integers) -> int:
        """Sum of the durations of its kernels, given ``timeline.kernel_starts``."""
        length = int(starts[self.end]) - int(starts[self.start])
        return length + (int(starts[-1]) if self.start >= self.end else 0)


def live_ranges(trace: Trace) -> tuple[LiveRange, ...]:
    """Live range of every tensor, by id; that of a persistent tensor is the whole iteration.

    A tensor that no kernel touches has an empty range.
    """
    ranges = []
    for tensor, (lasts, uses) in enumerate(zip(trace.lasting, trace.uses, strict=True)):
        birth = trace.births[tensor] if uses and not lasts else 0
        death = trace.deaths[tensor] if uses or lasts else 0
        ranges.append(LiveRange(tensor, birth, death))
    return tuple(ranges)


def inactive_periods(trace: Trace) -> tuple[InactivePeriod, ...]:
    """Return what :func:`each_inactive_period` yields."""
    return tuple(each_inactive_period(trace))


def each_inactive_period(trace: Trace) -> Iterator[InactivePeriod]:
    """Yield every inactive period, by tensor and then by start, the wrapped one of a tensor last.

    Uses after the death of a tensor (results that nothing reads) neither end nor begin a period. A
    persistent tensor that no kernel touches has none: it is not part of the iteration.
    """
    facts = zip(trace.lasting, trace.uses, trace.deaths, strict=True)
    for tensor, (lasts, uses, death) in enumerate(facts):
        for use, following in pairwise(uses[: bisect_left(uses, death)]):
            if following > use + 1:
                yield InactivePeriod(tensor, use + 1, following)
        num_kernels = len(trace.kernels)
        if lasts and uses and (uses[0] > 0 or uses[-1] < num_kernels - 1):
            yield InactivePeriod(tensor, (uses[-1] + 1) % num_kernels, uses[0], wraps=True)
