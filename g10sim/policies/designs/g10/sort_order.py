"""Order in which the published simulator's sorts leave what is equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop

import numpy as np

from g10sim.analysis.timeline import Floats

# Ranges up to this length are left to the insertion sort that comes last.
_SMALL = 16


def introsorted(
    items: Sequence[int], keys: Sequence[float] | Floats, ties: Sequence[float] | Floats | float = 0
) -> list[int]:
    """Return items by ascending keys; equal ones in the order of the C++ library's unstable sort.

    ``keys`` have a finite value for every item, by its number. So may ``ties``, which count where keys are
    equal.

    Introspective sort (Musser, Software: Practice and Experience 1997) as in libstdc++'s ``std::sort``: a
    range is parted at the median of its second, middle and last item until at most 16 are left, or goes
    through a heap when it has been parted too often; insertion, which is stable, finishes.
    """
    values = np.asarray(keys) + 1j * np.asarray(ties)  # which are ordered by their real parts first
    _, ranks, counts = np.unique(values, return_inverse=True, return_counts=True)
    # Number of keys below each rank that several items have: where there are none, any sort will do.
    shared = [0, *np.cumsum(counts > 1).tolist()]
    # An item goes with its rank in one number, so that ranks are compared by bounds.
    base = len(ranks)
    numbers = np.array(items, dtype=np.int64)
    codes = (ranks[numbers] * base + numbers).tolist()
    ranges = [(0, len(codes), 2 * (len(codes).bit_length() - 1), 0, len(counts) - 1)]
    while ranges:
        first, last, partings, lowest, highest = ranges.pop()
        while last - first > _SMALL and shared[lowest] < shared[highest + 1]:
            if partings == 0:
                codes[first:last] = _by_heap(codes[first:last], base)
                break
            partings -= 1
            equal = lowest == highest
            cut = _part_equal(codes, first, last) if equal else _part(codes, first, last, base)
            pivot = codes[first] // base
            ranges.append((cut, last, partings, pivot, highest))
            last, highest = cut, pivot
    parted = np.array(codes, dtype=np.int64)
    found: list[int] = (parted[np.argsort(parted // base, kind="stable")] % base).tolist()
    return found


def _part_equal(codes: list[int], first: int, last: int) -> int:
    """Part a range of equal items, which swaps all but the pivot."""
    middle = first + (last - first) // 2
    codes[first], codes[middle] = codes[middle], codes[first]
    codes[first + 1 : last] = codes[last - 1 : first : -1]
    return first + 1 + (last - first - 1) // 2


def _part(codes: list[int], first: int, last: int, base: int) -> int:
    """Part a range at its pivot, which goes to the front; return where the upper part begins."""
    # Of equal items of the three the library takes the later for the lesser one.
    places = last - 1, first + (last - first) // 2, first + 1
    middle = sorted(places, key=lambda place: codes[place] // base)[1]
    pivot = codes[middle]
    codes[first], codes[middle] = pivot, codes[first]
    least = pivot - pivot % base
    above = least + base
    low, high = first + 1, last - 1
    while True:
        while codes[low] < least:
            low += 1
        while codes[high] >= above:
            high -= 1
        if low >= high:
            return low
        codes[low], codes[high] = codes[high], codes[low]
        low += 1
        high -= 1


@dataclass(slots=True)
class _Largest:
    """An item of a heap, as ``heapq`` keeps it, whose top has the highest rank."""

    rank: int
    code: int

    def __lt__(self, other: _Largest) -> bool:
        return self.rank > other.rank


def _by_heap(codes: list[int], base: int) -> list[int]:
    """Sort by a heap: ``heapq`` moves items, equal ones too, as the library does."""
    heap = [_Largest(code // base, code) for code in codes]
    heapify(heap)
    return [heappop(heap).code for _ in codes][::-1]
