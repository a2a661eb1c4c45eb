"""Weights that lie below the GPU: when each comes, and when its memory is free again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from g10sim.policies.planning.grouping import grouped
from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes of weights: fetched ahead, live at a time, and between two uses of one that stays meanwhile."""

    ahead: int
    live: int
    reuse: int


@dataclass(frozen=True, slots=True)
class Window:
    """A stay of a weight on the GPU: from kernel ``fetched``, for the uses from ``first`` to ``last``."""

    tensor: int
    fetched: int
    first: int
    last: int


def windows(trace: Trace, weights: Collection[int], limits: Limits) -> tuple[Window, ...]:
    """Return the stays of weights on the GPU, in the order of their first uses.

    A weight stays between two uses if less than ``limits.reuse`` bytes of weights are used between them.
    It is fetched as soon as it is one of the next ``limits.ahead`` bytes, and all that are there then are no
    more than ``limits.live``.
    """
    found, fetched_bytes = list[Window](), 0
    starts, sums, live = list[int](), list[int](), _Live()
    for first, tensor, last in sorted(_stays(trace, weights, limits.reuse)):
        size = trace.tensors[tensor].size_bytes
        place = bisect_left(sums, fetched_bytes + size - limits.ahead)
        earliest = starts[place] if place < len(starts) else first
        fetched = live.start(earliest, first, limits.live - size)
        found.append(Window(tensor, fetched, first, last))
        live.add(last, size)
        fetched_bytes += size
        starts.append(first)
        sums.append(fetched_bytes)
    return tuple(found)


class _Live:
    """Weights that were placed so far, by the kernels with which they leave."""

    def __init__(self) -> None:
        self._leaving: list[tuple[int, int]] = []

    def add(self, last: int, size: int) -> None:
        insort(self._leaving, (last, size))

    def start(self, earliest: int, first: int, most: int) -> int:
        """Return the first kernel from ``earliest`` on at which no more than ``most`` bytes are there."""
        del self._leaving[: bisect_left(self._leaving, (earliest, 0))]
        there, start = sum(size for _, size in self._leaving), earliest
        for last, size in self._leaving:
            if there <= most or start >= first:
                break
            there, start = there - size, last + 1
        return min(start, first)


def _stays(trace: Trace, weights: Collection[int], reuse: int) -> Iterator[tuple[int, int, int]]:
    """Yield first use, weight and last use of every group of uses that are near to each other."""
    used = [0]
    for kernel in trace.kernels:
        mine = (trace.tensors[t].size_bytes for t in kernel.tensors if t in weights)
        used.append(used[-1] + sum(mine))
    for tensor in weights:
        uses: Sequence[int] = trace.uses[tensor]
        first = last = uses[0] if uses else -1
        for use in uses[1:]:
            if used[use] - used[last + 1] >= reuse:
                yield first, tensor, last
                first = use
            last = use
        if uses:
            yield first, tensor, last


def by_kernel(stays: Iterable[Window], which: str) -> dict[int, list[int]]:
    """Return the tensors that are ``fetched`` at each kernel, or whose stay is over with it (``last``)."""
    return grouped((getattr(window, which), window.tensor) for window in stays)
