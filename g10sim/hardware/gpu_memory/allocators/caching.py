"""A caching pool: chunks of memory that are split into blocks, joined again, and kept for later."""

from __future__ import annotations

from array import array
from collections import deque

from g10sim.config.allocator import CachingPoolSpec
from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.allocators.space import HOLE, Allocator, check_tiling
from g10sim.hardware.gpu_memory.placement import Block, FitRule, Holes


class _Class:
    """Chunks of one class of sizes, by address, and the free blocks in them."""

    def __init__(self, least_rest: int) -> None:
        self.holes = Holes(0)
        self.chunks: list[Block] = []
        self.least_rest = least_rest

    def place(self, pages: int, rule: FitRule) -> Block | None:
        """Take a free block, split if the rest is worth keeping; None if no block is large enough.

        No hole spans two chunks, because no two chunks touch.
        """
        start = rule(self.holes, pages)
        return None if start is None else self.holes.take(Block(start, pages), self.least_rest)

    def free_chunks(self) -> list[Block]:
        """Return the chunks of which no part is in use."""
        return [chunk for chunk in self.chunks if self.holes.around(chunk.start) == chunk]


class CachingPool(Allocator):
    """Blocks come from chunks, which are taken from the GPU's memory when no free block is large enough.

    As in PyTorch's allocator, small and large requests have separate chunks, and chunks that are
    entirely free are given back only when memory runs out. Chunks are mapped to virtual addresses: they
    need not be consecutive, and the memory between them is not lost. A block is not shared: what rounding and
    unsplit rests add is lost to its owner. ``chunk_pages`` are those of the chunks that it has,
    ``reserved_pages`` those of the most chunks at a time.
    """

    def __init__(self, capacity_pages: int, page_bytes: int, spec: CachingPoolSpec) -> None:
        def pages(size_bytes: int) -> int:
            return -(-size_bytes // page_bytes)

        super().__init__(capacity_pages)
        self._rounding = pages(spec.rounding)
        self._small_limit = spec.small_limit // page_bytes
        self._large_limit = pages(spec.large_limit)
        self._small_chunk, self._large_chunk = pages(spec.small_chunk), pages(spec.large_chunk)
        self._chunk_rounding = pages(spec.chunk_rounding)
        self._returns = spec.returns_chunks
        self._small = _Class(pages(spec.least_small_rest))
        self._large = _Class(pages(spec.least_large_rest))
        self._classes = (self._small, self._large)
        self._next_address = 0
        self.chunk_pages = 0

    @property
    def chunks(self) -> list[Block]:
        """Chunks that the pool has, of all classes of sizes."""
        return [chunk for sizes in self._classes for chunk in sizes.chunks]

    def layout(self) -> array[int]:
        """Return what lies in chunks by address: owner or HOLE, pages, owner, pages, and so on.

        New chunks have new addresses, higher than all before them: only the order of chunks counts. Before
        each stands its class of sizes, without pages.
        """
        found, blocks = array("q"), deque(self.blocks.items())
        for chunk in sorted(self.chunks):
            found.extend((HOLE + 1 + (chunk in self._small.chunks), 0))
            at = chunk.start
            while blocks and blocks[0][1].start < chunk.end:
                owner, block = blocks.popleft()
                found.extend((HOLE, block.start - at, owner, block.pages))
                at = block.end
            found.extend((HOLE, chunk.end - at))
        return found

    def _largest_hole(self) -> int:
        small = min(self._small.holes.largest_pages, self._small_limit)
        large = self._large.holes.largest_pages
        largest = max(small, large if large > self._small_limit else 0, self._most_in_a_new_chunk())
        return largest // self._rounding * self._rounding

    def _most_in_a_new_chunk(self) -> int:
        """Pages of the largest request for which the pool could grow."""
        room = self.capacity_pages - self.chunk_pages
        if self._returns:
            room += sum(chunk.pages for sizes in self._classes for chunk in sizes.free_chunks())
        own_chunk = room // self._chunk_rounding * self._chunk_rounding
        if own_chunk >= self._large_limit:
            return own_chunk
        if room >= self._large_chunk:
            return min(self._large_limit - 1, self._large_chunk)
        return self._small_limit if room >= self._small_chunk else 0

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        self.reserved_pages = self.chunk_pages

    def check(self) -> None:
        """Check that blocks and holes tile the chunks, which are counted. Raises InvariantError."""
        super().check()
        for sizes in self._classes:
            for chunk in sizes.chunks:
                blocks = (block for block in self._blocks.values() if _inside(block, chunk))
                holes = (hole for hole in sizes.holes if _inside(hole, chunk))
                check_tiling(f"chunk at page {chunk.start}", chunk, blocks, holes)
        chunk_pages = sum(chunk.pages for sizes in self._classes for chunk in sizes.chunks)
        if chunk_pages != self.chunk_pages or chunk_pages > self.capacity_pages:
            raise InvariantError(f"chunks of {self.chunk_pages} pages in {self.capacity_pages}")
        if sum(block.pages for block in self._blocks.values()) != self._block_pages:
            raise InvariantError("blocks of a caching pool are counted wrongly")

    def _rounded(self, pages: int) -> int:
        return -(-pages // self._rounding) * self._rounding

    def _class_for(self, rounded: int) -> _Class:
        return self._small if rounded <= self._small_limit else self._large

    def _holes_for(self, pages: int) -> Holes:
        return self._class_for(self._rounded(pages)).holes

    def _place(self, pages: int, rule: FitRule) -> Block | None:
        """Take a free block by ``rule``, or one of a new chunk; None where memory is full."""
        rounded = self._rounded(pages)
        sizes = self._class_for(rounded)
        block = sizes.place(rounded, rule)
        if block is None and self._grow(sizes, rounded):
            return sizes.place(rounded, rule)
        return block

    def _grow(self, sizes: _Class, pages: int) -> bool:
        """Add a chunk with room for some pages; False where memory is full."""
        if sizes is self._small:
            size = self._small_chunk
        elif pages < self._large_limit:
            size = self._large_chunk
        else:
            size = -(-pages // self._chunk_rounding) * self._chunk_rounding
        if self.chunk_pages + size > self.capacity_pages and self._returns:
            self.give_back_chunks()
        if self.chunk_pages + size > self.capacity_pages:
            return False
        # A page between chunks keeps free blocks of neighbours apart.
        chunk = Block(self._next_address, size)
        self._next_address = chunk.end + 1
        sizes.chunks.append(chunk)
        sizes.holes.give_back(chunk)
        self.chunk_pages += size
        self.reserved_pages = max(self.reserved_pages, self.chunk_pages)
        return True

    def give_back_chunks(self) -> None:
        """Give back the chunks of which no part is in use, as ``torch.cuda.empty_cache`` does."""
        for sizes in self._classes:
            for chunk in sizes.free_chunks():
                sizes.holes.take(chunk)
                sizes.chunks.remove(chunk)
                self.chunk_pages -= chunk.pages


def _inside(block: Block, chunk: Block) -> bool:
    return chunk.start <= block.start and block.end <= chunk.end
