"""Contiguous memory: one block of pages for each owner, and the holes between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
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


class ContiguousSpace:
    """Which owner has which block of a memory."""

    def __init__(self, capacity_pages: int) -> None:
        self.capacity_pages = capacity_pages
        self.holes = Holes(capacity_pages)
        self.free_pages = capacity_pages
        self._blocks: dict[int, Block] = {}

    def __contains__(self, owner: int) -> bool:
        return owner in self._blocks

    @property
    def used_pages(self) -> int:
        """Pages that have an owner."""
        return self.capacity_pages - self.free_pages

    @property
    def blocks(self) -> dict[int, Block]:
        """Block of every owner, by address."""
        return dict(sorted(self._blocks.items(), key=lambda item: item[1].start))

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block where ``rule`` says; False where no hole is large enough.

        Raises InvariantError when the owner has a block, or the rule chose pages that are not free.
        """
        if owner in self._blocks:
            raise InvariantError(f"owner {owner} has a block already")
        start = rule(self.holes, pages)
        if start is None:
            return False
        block = Block(start, pages)
        self.holes.take(block)
        self._blocks[owner] = block
        self.free_pages -= pages
        return True

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one."""
        block = self._blocks.pop(owner, None)
        if block is not None:
            self.holes.give_back(block)
            self.free_pages += block.pages

    def check(self) -> None:
        """Check that blocks and holes tile the memory and no two holes touch. Raises InvariantError."""
        holes = list(self.holes)
        free = set(holes)
        at, hole_before = 0, False
        for block in sorted([*holes, *self._blocks.values()]):
            is_hole = block in free
            if block.start != at or block.pages <= 0 or (is_hole and hole_before):
                raise InvariantError(f"contiguous memory is not tiled at page {at}: found {block}")
            at, hole_before = block.end, is_hole
        if at != self.capacity_pages or self.free_pages != sum(hole.pages for hole in holes):
            raise InvariantError(f"contiguous memory ends at page {at} of {self.capacity_pages}")
        if self.holes.largest_pages != max((hole.pages for hole in holes), default=0):
            raise InvariantError("the largest hole of contiguous memory is not known")
