"""Allocators of contiguous GPU memory: what they have in common, and one memory of consecutive pages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable

from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.placement import Block, FitRule, Holes
from g10sim.hardware.pools import Frames

HOLE = -(2**62)
"""Stands in layouts where an owner would."""


class Allocator(ABC):
    """Gives owners (tensors) blocks of a memory; everything is counted in pages.

    Owners asked for ``used_pages`` and have them; ``reserved_pages`` were needed at some time since
    ``restart``. With ``frames``, the pages of a GPU that jobs share, addresses belong to one job, as those of
    a process do: a block is consecutive in them, and needs as many free pages of the GPU, anywhere.
    """

    def __init__(self, capacity_pages: int, frames: Frames | None = None) -> None:
        self.capacity_pages, self.frames = capacity_pages, frames
        self.used_pages = self.reserved_pages = self._block_pages = 0
        self._blocks: dict[int, Block] = {}
        self._asked: dict[int, int] = {}

    def __contains__(self, owner: int) -> bool:
        """Return whether an owner has a block."""
        return owner in self._blocks

    @property
    def free_pages(self) -> int:
        """Pages that are in no block; of a shared GPU, those that no job has."""
        return self.capacity_pages - self._block_pages if self.frames is None else self.frames.free

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest request that would be granted now."""
        largest = self._largest_hole()
        return largest if self.frames is None else min(largest, self.frames.free)

    @property
    def blocks(self) -> dict[int, Block]:
        """Block of every owner."""
        return self._blocks.copy()

    def block(self, owner: int) -> Block:
        """Return an owner's block."""
        return self._blocks[owner]

    def layout(self) -> array[int]:
        """Return what lies in memory by address: owner or HOLE, pages, owner, pages, and so on."""
        found, at = array("q"), 0
        for owner, block in sorted(self._blocks.items(), key=lambda item: item[1].start):
            found.extend((HOLE, block.start - at, owner, block.pages))
            at = block.end
        return found

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block where ``rule`` says; False where there is no room.

        Raises InvariantError when the owner has a block, or the rule chose pages that are not free.
        """
        if owner in self._blocks:
            raise InvariantError(f"owner {owner} has a block already")
        if self.frames is not None and pages > self.frames.free:
            return False
        block = self._place(pages, rule)
        if block is None:
            return False
        self._blocks[owner], self._asked[owner] = block, pages
        self._block_pages += block.pages
        self._use(pages)
        return True

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one."""
        block = self._blocks.pop(owner, None)
        if block is not None:
            pages = self._asked.pop(owner)
            self._holes_for(pages).give_back(block)
            self._block_pages -= block.pages
            self._use(-pages)

    @abstractmethod
    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""

    def check(self) -> None:
        """Check that all jobs together fit, blocks and holes tile the memory, and no two holes touch.

        Raises InvariantError.
        """
        frames = self.frames
        if frames is not None and not self.used_pages <= frames.used <= frames.capacity_pages:
            raise InvariantError(
                f"{frames.used} of {frames.capacity_pages} pages are in use, {self.used_pages} by one job"
            )

    def _use(self, pages: int) -> None:
        self.used_pages += pages
        if self.frames is not None:
            self.frames.free -= pages
            self.frames.note_peak()

    @abstractmethod
    def _largest_hole(self) -> int:
        """Return the pages of the largest request for which there are addresses."""

    @abstractmethod
    def _place(self, pages: int, rule: FitRule) -> Block | None:
        """Take free pages for a request out of the holes; None where there is no room."""

    @abstractmethod
    def _holes_for(self, pages: int) -> Holes:
        """Return the holes that requests of a size are served from."""


def check_tiling(name: str, whole: Block, blocks: Iterable[Block], holes: Iterable[Block]) -> None:
    """Check that blocks and holes tile a memory and no two holes touch. Raises InvariantError."""
    free = set(holes)
    at, hole_before = whole.start, False
    for block in sorted([*blocks, *free]):
        is_hole = block in free
        if block.start != at or block.pages <= 0 or (is_hole and hole_before):
            raise InvariantError(f"{name} is not tiled at page {at}: found {block}")
        at, hole_before = block.end, is_hole
    if at != whole.end:
        raise InvariantError(f"{name} ends at page {at} instead of {whole.end}")


class ContiguousSpace(Allocator):
    """Blocks of one memory. ``reserved_pages`` are those that some block has covered since ``restart``."""

    def __init__(self, capacity_pages: int, frames: Frames | None = None) -> None:
        super().__init__(capacity_pages, frames)
        self.holes = Holes(capacity_pages)
        self._untouched = Holes(capacity_pages)

    def _largest_hole(self) -> int:
        return self.holes.largest_pages

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        self._untouched = self.holes.copy()
        self.reserved_pages = self.used_pages

    def check(self) -> None:
        """Check what all allocators do, and the count of free pages. Raises InvariantError."""
        super().check()
        check_tiling("contiguous memory", Block(0, self.capacity_pages), self._blocks.values(), self.holes)
        sizes = [hole.pages for hole in self.holes]
        counted = self.capacity_pages - self._block_pages, self.holes.largest_pages
        if counted != (sum(sizes), max(sizes, default=0)):
            raise InvariantError("free pages of contiguous memory are counted wrongly")

    def _place(self, pages: int, rule: FitRule) -> Block | None:
        start = rule(self.holes, pages)
        if start is None:
            return None
        block = Block(start, pages)
        self.holes.take(block)
        self.reserved_pages += self._untouched.cut(block)
        return block

    def _holes_for(self, pages: int) -> Holes:
        return self.holes
