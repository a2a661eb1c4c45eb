"""Order in which the published simulator's sorts leave what is equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from g10sim.analysis.timeline import Floats

# Ranges up to this length are left to the insertion sort that comes last.
_SMALL = 16


def introsorted(items: Sequence[int], *keys: Sequence[float] | Floats) -> list[int]:
    """Return items by ascending keys; equal ones in the order of the C++ library's unstable sort.

    Each of ``keys`` has a value for every item, by its number; the first of them counts most.

    Introspective sort (Musser, Software: Practice and Experience 1997) as in libstdc++'s ``std::sort``: a
    range is parted at the median of its second, middle and last item until at most 16 are left, or goes
    through a heap when it has been parted too often; insertion, which is stable, finishes.
    """
    columns = [np.asarray(values) for values in keys]
    order = np.lexsort(columns[::-1])
    steps = [np.diff(values[order]) != 0 for values in columns]
    ranks = np.zeros(len(order), dtype=np.int64)
    ranks[order[1:]] = np.logical_or.reduce(steps).cumsum()
    counts = np.bincount(ranks)
    # Number of keys below each rank that several items have: where there are none, any sort will do.
    shared = [0, *np.cumsum(counts > 1).tolist()]
    # An item goes with its rank in one number, so that ranks are compared by bounds.
    base = len(order)
    codes = (ranks[list(items)] * base + np.array(items, dtype=np.int64)).tolist()
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
    return [code % base for code in sorted(codes, key=base.__rfloordiv__)]


def _part_equal(codes: list[int], first: int, last: int) -> int:
    """Part a range of equal items, which swaps all but the pivot."""
    middle = first + (last - first) // 2
    codes[first], codes[middle] = codes[middle], codes[first]
    codes[first + 1 : last] = codes[last - 1 : first : -1]
    return first + 1 + (last - first - 1) // 2


def _part(codes: list[int], first: int, last: int, base: int) -> int:
    """Part a range at its pivot, which goes to the front; return where the upper part begins."""
    middle = _median(codes, first + 1, first + (last - first) // 2, last - 1, base)
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


def _median(codes: list[int], first: int, second: int, third: int, base: int) -> int:
    """Return which of three places has the median; of equals the one that the library takes."""
    one, two, three = codes[first] // base, codes[second] // base, codes[third] // base
    if one < two:
        if two < three:
            return second
        return third if one < three else first
    if one < three:
        return first
    return third if two < three else second


def _by_heap(codes: list[int], base: int) -> list[int]:
    """Sort by a heap whose top is the largest item."""
    size = len(codes)
    for top in range((size - 2) // 2, -1, -1):
        _sift(codes, top, size, codes[top], base)
    for end in range(size - 1, 0, -1):
        code, codes[end] = codes[end], codes[0]
        _sift(codes, 0, end, code, base)
    return codes


def _sift(codes: list[int], top: int, size: int, code: int, base: int) -> None:
    """Fill the hole at ``top`` of a heap: larger children move up to a leaf, and the code up from there."""
    hole, child = top, 2 * top + 2
    while child < size:
        if codes[child] // base < codes[child - 1] // base:
            child -= 1
        codes[hole], hole = codes[child], child
        child = 2 * hole + 2
    if child == size:
        codes[hole], hole = codes[child - 1], child - 1
    while hole > top and codes[(hole - 1) // 2] // base < code // base:
        parent = (hole - 1) // 2
        codes[hole], hole = codes[parent], parent
    codes[hole] = code
