"""Weights that lie below the GPU: when each comes, and when its memory is free again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from g10sim.trace.model import Trace


@dataclass(frozen=True, slots=True)
class Window:
    """A stay of a weight on the GPU: from kernel ``fetched``, for the uses from ``first`` to ``last``."""

    tensor: int
    fetched: int
    first: int
    last: int


def windows(
    trace: Trace, weights: Collection[int], ahead: int, most_live: int, reuse: int
) -> tuple[Window, ...]:
    """Return the stays of weights on the GPU, in the order of their first uses.

    A weight stays between two uses if less than ``reuse`` bytes of weights are used between them. It is
    fetched as soon as it is one of the next ``ahead`` bytes, and all that are there then are no more than
    ``most_live``.
    """
    sizes = (sum(trace.tensors[t].size_bytes for t in one.tensors if t in weights) for one in trace.kernels)
    used = [0, *accumulate(sizes)]

    def are_apart(before: int, after: int) -> bool:
        return used[after] - used[before + 1] >= reuse

    near = ((tensor, near_uses(trace.uses[tensor], are_apart)) for tensor in weights)
    stays = sorted((first, tensor, last) for tensor, spans in near for first, last in spans)
    sums = [*accumulate(trace.tensors[tensor].size_bytes for _, tensor, _ in stays)]
    found, leaving = list[Window](), list[tuple[int, int]]()
    for (first, tensor, last), fetched_bytes in zip(stays, sums, strict=True):
        size = trace.tensors[tensor].size_bytes
        earliest, *_ = stays[bisect_left(sums, fetched_bytes - ahead)]
        fetched = _with_room(leaving, earliest, first, most_live - size)
        found.append(Window(tensor, fetched, first, last))
        insort(leaving, (last, size))
    return tuple(found)


def _with_room(leaving: list[tuple[int, int]], earliest: int, first: int, most: int) -> int:
    """Return the first kernel from ``earliest`` on at which no more than ``most`` bytes are there.

    ``leaving`` are the kernels with which weights leave, and their sizes; those that have left are taken out.
    """
    del leaving[: bisect_left(leaving, (earliest, 0))]
    there, start = sum(size for _, size in leaving), earliest
    for last, size in leaving:
        if there <= most or start >= first:
            break
        there, start = there - size, last + 1
    return min(start, first)


def near_uses(uses: Sequence[int], are_apart: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    """Return the first and the last of uses of which none is apart from the one before it."""
    spans = list[tuple[int, int]]()
    for use in uses:
        if spans and not are_apart(spans[-1][1], use):
            spans[-1] = spans[-1][0], use
        else:
            spans.append((use, use))
    return spans
