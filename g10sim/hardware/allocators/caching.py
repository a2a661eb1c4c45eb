"""A caching pool: chunks of memory that are split into blocks, joined again, and kept for later."""

from __future__ import annotations

from bisect import bisect_right, insort

from g10sim.config.allocator import CachingPoolSpec
from g10sim.errors import InvariantError
from g10sim.hardware.allocators.interface import BlockTable
from g10sim.hardware.placement import Block, FitRule, Holes


class _Class:
    """Chunks of one class of sizes, and the free blocks in them."""

    def __init__(self, least_rest: int) -> None:
        self.holes = Holes(0)
        self.chunks: list[Block] = []
        self.least_rest = least_rest

    def chunk_of(self, start: int) -> Block:
        """Return the chunk that contains a page."""
        return self.chunks[bisect_right(self.chunks, start, key=lambda chunk: chunk.start) - 1]

    def place(self, pages: int, rule: FitRule) -> Block | None:
        """Choose a free block and split it where the rest is worth keeping; None where none is large enough.

        A hole can only span touching chunks, which there are none of.
        """
        start = rule(self.holes, pages)
        if start is None:
            return None
        hole = self.holes.around(start)
        if hole is None or hole.end < start + pages:
            raise InvariantError(f"pages {start} to {start + pages - 1} are not all free")
        if hole.pages - pages < self.least_rest:
            return hole
        return Block(start, pages)

    def free_chunks(self) -> list[Block]:
        """Return the chunks that nobody uses any part of."""
        return [chunk for chunk in self.chunks if self.holes.around(chunk.start) == chunk]


class CachingPool(BlockTable):
    """Blocks come from chunks, which are taken from the GPU's memory when no free block is large enough.

    As in PyTorch's allocator, small and large requests have chunks of their own, and chunks that are
    entirely free are given back only when memory runs out. Chunks are mapped to virtual addresses: they
    need not be consecutive, and the memory between them is not lost. A block is not shared: what rounding and
    unsplit rests add is lost to its owner.
    """

    def __init__(self, capacity_pages: int, page_bytes: int, spec: CachingPoolSpec) -> None:
        def pages(size_bytes: int) -> int:
            return -(-size_bytes // page_bytes)

        super().__init__()
        self.capacity_pages = capacity_pages
        self.used_pages = 0
        self._rounding = pages(spec.rounding)
        self._small_limit = spec.small_limit // page_bytes
        self._large_limit = pages(spec.large_limit)
        self._small_chunk, self._large_chunk = pages(spec.small_chunk), pages(spec.large_chunk)
        self._chunk_rounding = pages(spec.chunk_rounding)
        self._returns = spec.returns_chunks
        self._small = _Class(pages(spec.least_small_rest))
        self._large = _Class(pages(spec.least_large_rest))
        self._next_address = 0
        self._chunk_pages = self._peak_pages = self._block_pages = 0
        self._asked: dict[int, int] = {}

    @property
    def free_pages(self) -> int:
        """Pages that are in nobody's block."""
        return self.capacity_pages - self._block_pages

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest request that would be granted now."""
        small = min(self._small.holes.largest_pages, self._small_limit)
        large = self._large.holes.largest_pages
        largest = max(small, large if large > self._small_limit else 0, self._most_in_a_new_chunk())
        return largest // self._rounding * self._rounding

    def _most_in_a_new_chunk(self) -> int:
        """Pages of the largest request for which the pool could grow."""
        room = self.capacity_pages - self._chunk_pages
        if self._returns:
            free = (*self._small.free_chunks(), *self._large.free_chunks())
            room += sum(chunk.pages for chunk in free)
        own_chunk = room // self._chunk_rounding * self._chunk_rounding
        if own_chunk >= self._large_limit:
            return own_chunk
        if room >= self._large_chunk:
            return min(self._large_limit - 1, self._large_chunk)
        return self._small_limit if room >= self._small_chunk else 0

    @property
    def reserved_pages(self) -> int:
        """Pages of the most chunks at a time since ``restart``."""
        return self._peak_pages

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block: a free one by ``rule``, or one of a new chunk; False where memory is full.

        Raises InvariantError when the owner has a block, or the rule chose pages that are not free.
        """
        self._refuse_second(owner)
        rounded = -(-pages // self._rounding) * self._rounding
        sizes = self._small if rounded <= self._small_limit else self._large
        block = sizes.place(rounded, rule)
        if block is None:
            if not self._grow(sizes, rounded):
                return False
            block = sizes.place(rounded, rule)
            if block is None:
                return False
        sizes.holes.take(block)
        self._blocks[owner], self._asked[owner] = block, pages
        self.used_pages += pages
        self._block_pages += block.pages
        return True

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one; it joins the free blocks beside it in its chunk."""
        block = self._blocks.pop(owner, None)
        if block is None:
            return
        sizes = self._small if self._in(self._small, block) else self._large
        sizes.holes.give_back(block)
        self.used_pages -= self._asked.pop(owner)
        self._block_pages -= block.pages

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        self._peak_pages = self._chunk_pages

    def check(self) -> None:
        """Check that blocks and holes tile the chunks and no two holes touch. Raises InvariantError."""
        owned = sorted(self._blocks.values())
        for sizes in (self._small, self._large):
            holes = set(sizes.holes)
            for chunk in sizes.chunks:
                _check_tiling(chunk, [block for block in (*owned, *holes) if _inside(block, chunk)], holes)
        chunks = [*self._small.chunks, *self._large.chunks]
        if (
            sum(chunk.pages for chunk in chunks) != self._chunk_pages
            or self._chunk_pages > self.capacity_pages
        ):
            raise InvariantError(f"chunks of {self._chunk_pages} pages in {self.capacity_pages}")
        if sum(block.pages for block in owned) != self._block_pages:
            raise InvariantError("blocks of a caching pool are counted wrongly")

    @staticmethod
    def _in(sizes: _Class, block: Block) -> bool:
        return bool(sizes.chunks) and _inside(block, sizes.chunk_of(block.start))

    def _grow(self, sizes: _Class, pages: int) -> bool:
        """Add a chunk with room for so many pages; False where memory is full."""
        if sizes is self._small:
            size = self._small_chunk
        elif pages < self._large_limit:
            size = self._large_chunk
        else:
            size = -(-pages // self._chunk_rounding) * self._chunk_rounding
        if self._chunk_pages + size > self.capacity_pages and self._returns:
            self._give_back_chunks()
        if self._chunk_pages + size > self.capacity_pages:
            return False
        # A page between chunks keeps free blocks of neighbours apart.
        chunk = Block(self._next_address, size)
        self._next_address = chunk.end + 1
        insort(sizes.chunks, chunk)
        sizes.holes.give_back(chunk)
        self._chunk_pages += size
        self._peak_pages = max(self._peak_pages, self._chunk_pages)
        return True

    def _give_back_chunks(self) -> None:
        for sizes in (self._small, self._large):
            for chunk in sizes.free_chunks():
                sizes.holes.take(chunk)
                sizes.chunks.remove(chunk)
                self._chunk_pages -= chunk.pages


def _inside(block: Block, chunk: Block) -> bool:
    return chunk.start <= block.start and block.end <= chunk.end


def _check_tiling(chunk: Block, parts: list[Block], holes: set[Block]) -> None:
    at, hole_before = chunk.start, False
    for block in sorted(parts):
        is_hole = block in holes
        if block.start != at or block.pages <= 0 or (is_hole and hole_before):
            raise InvariantError(f"chunk at page {chunk.start} is not tiled at page {at}: found {block}")
        at, hole_before = block.end, is_hole
    if at != chunk.end:
        raise InvariantError(f"chunk at page {chunk.start} ends at page {at} instead of {chunk.end}")
