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

    A second order by size makes the largest hole, and the refusal of what fits nowhere, immediate;
    neighbours are found by bisection.
    """

    def __init__(self, pages: int) -> None:
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._by_size: list[tuple[int, int]] = []
        if pages:
            self._insert(0, Block(0, pages))

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Block]:
        """Holes by ascending address."""
        return map(Block, self._starts, self._sizes)

    def __reversed__(self) -> Iterator[Block]:
        """Holes by descending address."""
        return map(Block, reversed(self._starts), reversed(self._sizes))

    @property
    def largest_pages(self) -> int:
        """Pages of the largest hole; 0 where there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def last(self) -> Block | None:
        """Hole of the highest address."""
        return Block(self._starts[-1], self._sizes[-1]) if self._starts else None

    def smallest(self, pages: int) -> Block | None:
        """Return the smallest hole of at least so many pages, of equal ones that of the lowest address."""
        place = bisect_left(self._by_size, (pages, -1))
        if place == len(self._by_size):
            return None
        size, start = self._by_size[place]
        return Block(start, size)

    def around(self, start: int) -> Block | None:
        """Return the hole that contains a page."""
        place = bisect_right(self._starts, start) - 1
        if place < 0 or start >= self._starts[place] + self._sizes[place]:
            return None
        return Block(self._starts[place], self._sizes[place])

    def cut(self, block: Block) -> int:
        """Take out whatever part of a block is free; returns its pages."""
        place = max(0, bisect_right(self._starts, block.start) - 1)
        parts = []
        while place < len(self._starts) and self._starts[place] < block.end:
            start = max(block.start, self._starts[place])
            end = min(block.end, self._starts[place] + self._sizes[place])
            if start < end:
                parts.append(Block(start, end - start))
            place += 1
        for part in parts:
            self.take(part)
        return sum(part.pages for part in parts)

    def copy(self) -> Holes:
        """Return the same holes, to be altered independently."""
        other = Holes(0)
        other._starts, other._sizes = self._starts.copy(), self._sizes.copy()
        other._by_size = self._by_size.copy()
        return other

    def take(self, block: Block) -> None:
        """Cut a block out of the hole that contains it. Raises InvariantError where none does."""
        place = bisect_right(self._starts, block.start) - 1
        hole = Block(self._starts[place], self._sizes[place]) if place >= 0 else Block(0, 0)
        if not hole.start <= block.start < block.end <= hole.end:
            raise InvariantError(f"pages {block.start} to {block.end - 1} are not all free")
        self._delete(place)
        if block.end < hole.end:
            self._insert(place, Block(block.end, hole.end - block.end))
        if hole.start < block.start:
            self._insert(place, Block(hole.start, block.start - hole.start))

    def give_back(self, block: Block) -> None:
        """Add a block and join it with the holes that it touches. Raises InvariantError on overlap."""
        place = bisect_left(self._starts, block.start)
        before = Block(self._starts[place - 1], self._sizes[place - 1]) if place else None
        after = Block(self._starts[place], self._sizes[place]) if place < len(self._starts) else None
        overlaps = before is not None and before.end > block.start
        if overlaps or (after is not None and after.start < block.end):
            raise InvariantError(f"pages {block.start} to {block.end - 1} are free already")
        start, end = block.start, block.end
        if after is not None and after.start == end:
            self._delete(place)
            end = after.end
        if before is not None and before.end == start:
            place -= 1
            self._delete(place)
            start = before.start
        self._insert(place, Block(start, end - start))

    def _insert(self, place: int, hole: Block) -> None:
        self._starts.insert(place, hole.start)
        self._sizes.insert(place, hole.pages)
        insort(self._by_size, (hole.pages, hole.start))

    def _delete(self, place: int) -> None:
        size = (self._sizes[place], self._starts[place])
        del self._starts[place], self._sizes[place]
        del self._by_size[bisect_left(self._by_size, size)]


FitRule = Callable[[Holes, int], int | None]
"""An allocator's decision: given the holes and a number of pages, where the block starts (None: no room)."""


def first_fit_left(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the first hole by ascending address that is large enough."""
    if pages > holes.largest_pages:
        return None
    return next((hole.start for hole in holes if hole.pages >= pages), None)


def first_fit_right(holes: Holes, pages: int) -> int | None:
    """Place a block at the end of the first hole by descending address that is large enough."""
    if pages > holes.largest_pages:
        return None
    return next((hole.end - pages for hole in reversed(holes) if hole.pages >= pages), None)


def best_fit(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the smallest hole that is large enough, the lowest of equal ones.

    The rule of NVIDIA's CNMeM, the allocator of vDNN (Rhu et al., MICRO 2016, section III-B).
    """
    hole = holes.smallest(pages)
    return None if hole is None else hole.start


def worst_fit(holes: Holes, pages: int) -> int | None:
    """Place a block at the start of the largest hole, the lowest of equal ones."""
    if pages > holes.largest_pages:
        return None
    hole = holes.smallest(holes.largest_pages)
    return None if hole is None else hole.start


def last_hole_right(holes: Holes, pages: int) -> int | None:
    """Place a block at the end of the hole of the highest address; no other hole is tried.

    The rule of vDNN++ (Shriram et al., IPDPS 2019; public code, ALLOC_NON_OFFLOAD_RIGHT) for what stays.
    """
    hole = holes.last
    return None if hole is None or hole.pages < pages else hole.end - pages


class PlannedAddresses:
    """A rule with an address for each time that a tensor gets a block, in turn, over and over.

    Where these pages are not all free, ``fallback`` decides (None: wait until they are).
    """

    def __init__(self, starts: Sequence[int], fallback: FitRule | None) -> None:
        self._starts, self._fallback = tuple(starts), fallback
        self._next = 0

    def __call__(self, holes: Holes, pages: int) -> int | None:
        """Choose the next planned address, or what the fallback chooses."""
        start = self._starts[self._next]
        hole = holes.around(start)
        chosen: int | None = start
        if hole is None or hole.end < start + pages:
            chosen = None if self._fallback is None else self._fallback(holes, pages)
        if chosen is not None:
            self._next = (self._next + 1) % len(self._starts)
        return chosen

    def restart(self) -> None:
        """Begin with the first address again."""
        self._next = 0
