"""PyTorch's caching allocator, the default pool of today, on a GPU with room for everything."""

from __future__ import annotations

from g10sim.config.allocator import CachingPoolSpec
from g10sim.hardware.allocators.caching import CachingPool
from g10sim.hardware.allocators.pool import GRANULARITY_BYTES
from g10sim.hardware.placement import best_fit

_UNLIMITED_PAGES = 2**53


class PyTorchPool:
    """Chunks for small and for large requests, none of which is given back while memory lasts."""

    def __init__(self, spec: CachingPoolSpec | None = None) -> None:
        self._pool = CachingPool(_UNLIMITED_PAGES, GRANULARITY_BYTES, spec or CachingPoolSpec())

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all chunks."""
        return self._pool.reserved_pages * GRANULARITY_BYTES

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block."""
        self._pool.allocate(block, -(-size_bytes // GRANULARITY_BYTES), best_fit)

    def free(self, block: int) -> None:
        """Take a block back."""
        self._pool.release(block)
