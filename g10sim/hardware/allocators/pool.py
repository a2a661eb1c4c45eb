"""What all pools have in common, and memory straight from the driver."""

from __future__ import annotations

from typing import Protocol

GRANULARITY_BYTES = 512
"""Sizes are rounded up to this in Nvidia's pool (CnMem) and in PyTorch's."""
ALIGNMENT_BYTES = 256
"""Addresses from the driver are multiples of this (CUDA C++ Programming Guide, device memory accesses)."""


class MemoryPool(Protocol):
    """Device memory that hands out blocks and takes them back."""

    @property
    def footprint_bytes(self) -> int:
        """Device memory that it holds now, in use or not."""
        ...

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block under a number that no other block has."""
        ...

    def free(self, block: int) -> None:
        """Take a block back."""
        ...


class DriverMemory:
    """Every block is memory of its own and is given back to the driver at once (cudaMalloc, cudaFree)."""

    def __init__(self, granularity_bytes: int = ALIGNMENT_BYTES) -> None:
        self._granularity = granularity_bytes
        self._sizes: dict[int, int] = {}
        self._footprint = 0

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all blocks, rounded up."""
        return self._footprint

    def allocate(self, block: int, size_bytes: int) -> None:
        """Take memory for a block."""
        size = -(-size_bytes // self._granularity) * self._granularity
        self._sizes[block] = size
        self._footprint += size

    def free(self, block: int) -> None:
        """Give a block's memory back."""
        self._footprint -= self._sizes.pop(block)
