"""Nvidia's pool CnMem, the default of the framework that SmartPool was written for."""

from __future__ import annotations

from g10sim.hardware.allocators.pool import GRANULARITY_BYTES
from g10sim.hardware.placement import Block, Holes, best_fit

FIRST_CHUNK_BYTES = 256 * 2**20
"""Size of the pool at start in SINGA, the framework of the SmartPool and AutoSwap authors."""


class DefaultPool:
    """Chunks of device memory that are cut up and never given back.

    A request is rounded up and takes the smallest hole that is large enough (the rest stays a hole). A freed
    block joins the holes beside it in its chunk. What fits nowhere gets a new chunk of exactly its size.
    The pool starts with one chunk of ``first_chunk_bytes``.
    """

    def __init__(
        self, first_chunk_bytes: int = FIRST_CHUNK_BYTES, granularity_bytes: int = GRANULARITY_BYTES
    ) -> None:
        self._granularity = granularity_bytes
        self._holes = Holes(0)
        self._blocks: dict[int, Block] = {}
        self._next_address = 0
        self._footprint = 0
        if first_chunk_bytes:
            self._holes.give_back(self._new_chunk(self._units(first_chunk_bytes)))

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all chunks."""
        return self._footprint * self._granularity

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block."""
        units = self._units(size_bytes)
        start = best_fit(self._holes, units)
        if start is None:
            self._blocks[block] = self._new_chunk(units)
            return
        self._blocks[block] = Block(start, units)
        self._holes.take(self._blocks[block])

    def free(self, block: int) -> None:
        """Take a block back."""
        self._holes.give_back(self._blocks.pop(block))

    def _units(self, size_bytes: int) -> int:
        return -(-size_bytes // self._granularity)

    def _new_chunk(self, units: int) -> Block:
        """Take a chunk at an address that touches no other chunk, so that their holes never join."""
        chunk = Block(self._next_address, units)
        self._next_address += units + 1
        self._footprint += units
        return chunk
