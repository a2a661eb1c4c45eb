"""Free blocks of contiguous memory, and the rules by which one is chosen."""

from __future__ import annotations

from bisect import bisect_left, insort
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
        self._holes: list[Block] = []
        self._by_size: list[tuple[int, int]] = []
        if pages:
            self.give_back(Block(0, pages))

    def __len__(self) -> int:
        return len(self._holes)

    def __iter__(self) -> Iterator[Block]:
        """Holes by ascending address."""
        return iter(self._holes)

    def __reversed__(self) -> Iterator[Block]:
        """Holes by descending address."""
        return reversed(self._holes)

    @property
    def largest_pages(self) -> int:
        """Pages of the largest hole; 0 where there is none."""
        return self._by_size[-1][0] if self._by_size else 0

    def smallest(self, pages: int) -> Block | None:
        """Return the smallest hole of at least that many pages, of equal ones that of the lowest address."""
        place = bisect_left(self._by_size, (pages, -1))
        if place == len(self._by_size):
            return None
        size, start = self._by_size[place]
        return Block(start, size)

    def around(self, start: int, pages: int = 1) -> Block | None:
        """Return the hole that contains a page and, with it, the ``pages`` from there on."""
        place = self._from(start + 1) - 1
        if place < 0 or self._holes[place].end < start + pages:
            return None
        return self._holes[place]

    def cut(self, block: Block) -> int:
        """Take out whatever part of a block is free; returns its pages."""
        taken = 0
        for hole in self._holes[max(0, self._from(block.start) - 1) : self._from(block.end)]:
            start, end = max(block.start, hole.start), min(block.end, hole.end)
            if start < end:
                self.take(Block(start, end - start))
                taken += end - start
        return taken

    def copy(self) -> Holes:
        """Return the same holes, to be altered independently."""
        other = Holes(0)
        other._holes, other._by_size = self._holes.copy(), self._by_size.copy()
        return other

    def take(self, block: Block, least_rest: int = 1) -> Block:
        """Cut a block out of the hole that contains it, or take all of that where less than a rest is left.

        Returns what was taken. Raises InvariantError where no hole contains the block.
        """
        start, pages = block
        place, end = self._from(start + 1) - 1, start + pages
        first, size = self._holes[place] if place >= 0 else (start, 0)
        if pages < 1 or first + size < end:
            raise InvariantError(f"pages {start} to {end - 1} are not all free")
        self._forget(first, size)
        if size - pages < least_rest:
            return self._holes.pop(place)
        rests = Block(first, start - first), Block(end, first + size - end)
        self._holes[place : place + 1] = left = [rest for rest in rests if rest.pages]
        for rest in left:
            insort(self._by_size, (rest.pages, rest.start))
        return block

    def give_back(self, block: Block) -> None:
        """Add a block and join it with the holes that it touches. Raises InvariantError on overlap."""
        start, pages = block
        end, holes = start + pages, self._holes
        place = behind = self._from(start)
        before = holes[place - 1] if place else Block(start, 0)
        after = holes[place] if place < len(holes) else Block(end + 1, 0)
        if sum(before) > start or after.start < end:
            raise InvariantError(f"pages {start} to {end - 1} are free already")
        if before.pages and sum(before) == start:
            self._forget(*before)
            start, place = before.start, place - 1
        if after.start == end:
            self._forget(*after)
            end, behind = sum(after), behind + 1
        holes[place:behind] = [Block(start, end - start)]
        insort(self._by_size, (end - start, start))

    def _from(self, page: int) -> int:
        """Return the position of the first hole that begins at a page or after it."""
        return bisect_left(self._holes, (page,))

    def _forget(self, start: int, pages: int) -> None:
        """Take a hole out of the order by size."""
        del self._by_size[bisect_left(self._by_size, (pages, start))]


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
    return best_fit(holes, max(pages, holes.largest_pages))


def last_hole_right(holes: Holes, pages: int) -> int | None:
    """Place a block at the end of the hole of the highest address; no other hole is tried.

    The rule of vDNN++ (Shriram et al., IPDPS 2019; public code, ALLOC_NON_OFFLOAD_RIGHT) for what stays.
    """
    hole = next(reversed(holes), None)
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
        chosen: int | None = self._starts[self._next]
        if holes.around(self._starts[self._next], pages) is None:
            chosen = None if self._fallback is None else self._fallback(holes, pages)
        if chosen is not None:
            self._next = (self._next + 1) % len(self._starts)
        return chosen

    def restart(self) -> None:
        """Begin with the first address again."""
        self._next = 0
