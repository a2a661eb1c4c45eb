"""One memory of consecutive pages: a block for each owner, and the holes between them."""

from __future__ import annotations

from g10sim.errors import InvariantError
from g10sim.hardware.allocators.interface import BlockTable
from g10sim.hardware.placement import Block, FitRule, Holes


class ContiguousSpace(BlockTable):
    """Which owner has which block of a memory. Freed blocks join the holes that they touch at once."""

    def __init__(self, capacity_pages: int) -> None:
        super().__init__()
        self.capacity_pages = capacity_pages
        self.holes = Holes(capacity_pages)
        self.free_pages = capacity_pages
        self._untouched = Holes(capacity_pages)
        self._touched_pages = 0

    @property
    def used_pages(self) -> int:
        """Pages that have an owner."""
        return self.capacity_pages - self.free_pages

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest block that could be allocated."""
        return self.holes.largest_pages

    @property
    def reserved_pages(self) -> int:
        """Pages that some block has covered since ``restart``."""
        return self._touched_pages

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block where ``rule`` says; False where no hole is large enough.

        Raises InvariantError when the owner has a block, or the rule chose pages that are not free.
        """
        self._refuse_second(owner)
        start = rule(self.holes, pages)
        if start is None:
            return False
        block = Block(start, pages)
        self.holes.take(block)
        self._blocks[owner] = block
        self.free_pages -= pages
        self._touched_pages += self._untouched.cut(block)
        return True

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one."""
        block = self._blocks.pop(owner, None)
        if block is not None:
            self.holes.give_back(block)
            self.free_pages += block.pages

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        self._untouched = self.holes.copy()
        self._touched_pages = self.used_pages

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
