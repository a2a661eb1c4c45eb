"""Free blocks of contiguous memory, and the rules by which one is chosen."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from g10sim.errors import InvariantError


class Block(NamedTuple):
    """``pages`` consecutive pages from ``start``."""

    start: int
    pages: int

    @property
    def end(self) -> int:
        """First page after it."""
        return self.start + self.pages


class Holes:
    """Free blocks in order of address; no two touch.

    A second order by size gives the largest hole, and refuses what fits nowhere, at once; neighbours are
    found by bisection.
    """

    def __init__(self, pages: int) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._by_size: list[tuple[int, int]] = []
        if pages:
            self.give_back(Block(0, pages))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Block]:
        """Holes by ascending address."""
        return map(_between, self._starts, self._ends)

    def edges(self, *, descending: bool = False) -> Iterator[tuple[int, int]]:
        """Yield the first page of every hole and the one behind it, by address."""
        if descending:
            return zip(reversed(self._starts), reversed(self._ends), strict=True)
        return zip(self._starts, self._ends, strict=True)

    @property
    def largest_pages(self) -> int:
        """Pages of the largest hole; 0 where there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def smallest(self, pages: int) -> int | None:
        """Return where the smallest hole of at least that many pages starts, the lowest of equal ones."""
        place = bisect_left(self._by_size, (pages, -1))
        return self._by_size[place][1] if place < len(self._by_size) else None

    def around(self, start: int, pages: int = 1) -> Block | None:
        """Return the hole that contains a page and, with it, the ``pages`` from there on."""
        place = bisect_right(self._starts, start) - 1
        if place < 0 or self._ends[place] < start + pages:
            return None
        return _between(self._starts[place], self._ends[place])

    def cut(self, block: Block) -> int:
        """Take out whatever part of a block is free; returns its pages."""
        taken = 0
        lowest = max(0, bisect_left(self._starts, block.start) - 1)
        those = slice(lowest, bisect_left(self._starts, block.end))
        for first, last in zip(self._starts[those], self._ends[those], strict=True):
            start, end = max(block.start, first), min(block.end, last)
            if start < end:
                self.take(_between(start, end))
                taken += end - start
        return taken

    def copy(self) -> Holes:
        """Return the same holes, to be altered independently."""
        other = Holes(0)
        other._starts, other._ends = self._starts.copy(), self._ends.copy()
        other._by_size = self._by_size.copy()
        return other

    def take(self, block: Block, least_rest: int = 1) -> Block:
        """Cut a block out of the hole that contains it, or take all of that where less than a rest is left.

        Returns what was taken. Raises InvariantError where no hole contains the block.
        """
        start, pages = block
        place, end = bisect_right(self._starts, start) - 1, start + pages
        first, last = (self._starts[place], self._ends[place]) if place >= 0 else (start, start)
        if pages < 1 or last < end:
            raise InvariantError(f"pages {start} to {end - 1} are not all free")
        self._forget(place)
        if last - first - pages < least_rest:
            return _between(first, last)
        if end < last:
            self._remember(place, end, last)
        if first < start:
            self._remember(place, first, start)
        return block

    def give_back(self, block: Block) -> None:
        """Add a block and join it with the holes that it touches. Raises InvariantError on overlap."""
        start, pages = block
        starts, ends = self._starts, self._ends
        end, place = start + pages, bisect_left(starts, start)
        before = ends[place - 1] if place else -1
        after = starts[place] if place < len(starts) else end + 1
        if before > start or after < end:
            raise InvariantError(f"pages {start} to {end - 1} are free already")
        if before == start:
            place -= 1
            start = starts[place]
            self._forget(place)
        if after == end:
            end = ends[place]
            self._forget(place)
        self._remember(place, start, end)

    def _remember(self, place: int, start: int, end: int) -> None:
        self._starts.insert(place, start)
        self._ends.insert(place, end)
        insort(self._by_size, (end - start, start))

    def _forget(self, place: int) -> None:
        start = self._starts.pop(place)
        del self._by_size[bisect_left(self._by_size, (self._ends.pop(place) - start, start))]


def _between(start: int, end: int) -> Block:
    return Block(start, end - start)


FitRule = Callable[[Holes, int], int | None]
"""An allocator's decision: given the holes and a number of pages, where the block starts (None: no room)."""


def first_fit_left(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the first hole by ascending address that is large enough."""
    if pages > holes.largest_pages:
        return None
    return next((start for start, end in holes.edges() if end - start >= pages), None)


def first_fit_right(holes: Holes, pages: int) -> int | None:
    """Place a block at the end of the first hole by descending address that is large enough."""
    if pages > holes.largest_pages:
        return None
    found = (end - pages for start, end in holes.edges(descending=True) if end - start >= pages)
    return next(found, None)


def best_fit(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the smallest hole that is large enough, the lowest of equal ones.

    The rule of NVIDIA's CNMeM, the allocator of vDNN (Rhu et al., MICRO 2016, section III-B).
    """
    return holes.smallest(pages)


def worst_fit(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the largest hole, the lowest of equal ones."""
    return best_fit(holes, max(pages, holes.largest_pages))


def last_hole_right(holes: Holes, pages: int) -> int | None:
    """Place a block at the end of the hole of the highest address; no other hole is tried.

    The rule of vDNN++ (Shriram et al., IPDPS 2019; public code, ALLOC_NON_OFFLOAD_RIGHT) for what stays.
    """
    start, end = next(holes.edges(descending=True), (0, 0))
    return end - pages if end - start >= pages else None


class PlannedAddresses:
    """A rule with an address for each time that a tensor gets a block, in turn, over and over.

    Where these pages are not all free, ``fallback`` decides (None: wait until they are).
    """

    def __init__(self, starts: Sequence[int], fallback: FitRule | None) -> None:
        self._starts, self._fallback = tuple(starts), fallback
        self._next = 0

    def __call__(self, holes: Holes, pages: int) -> int | None:
        """Choose the next planned address, or what the fallback chooses."""
        chosen: int | None = self._starts[self._next]
        if holes.around(self._starts[self._next], pages) is None:
            chosen = None if self._fallback is None else self._fallback(holes, pages)
        if chosen is not None:
            self._next = (self._next + 1) % len(self._starts)
        return chosen

    def restart(self) -> None:
        """Begin with the first address again."""
        self._next = 0
