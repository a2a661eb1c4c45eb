"""Parameters of allocators of contiguous GPU memory."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from g10sim.config.quantities import Bytes, PositiveBytes, Spec, default_size, required
from g10sim.units import format_bytes


class CachingPoolSpec(Spec):
    """A caching allocator: grows by chunks, splits free blocks and joins them again, keeps what is freed.

    Defaults are those of PyTorch (c10/cuda/CUDACachingAllocator.h and .cpp: kMinBlockSize, kSmallSize,
    kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge). Every size is rounded up to whole pages.
    """

    rounding: PositiveBytes = default_size("512 B")
    """requests are rounded up to multiples"""
    small_limit: Bytes = default_size("1 MiB")
    """requests up to here come from small chunks"""
    small_chunk: PositiveBytes = default_size("2 MiB")
    """chunk by which the pool of small blocks grows"""
    large_limit: Bytes = default_size("10 MiB")
    """requests below this share large chunks"""
    large_chunk: PositiveBytes = default_size("20 MiB")
    """chunk by which the pool of large blocks grows"""
    chunk_rounding: PositiveBytes = default_size("2 MiB")
    """requests from large_limit on get a chunk, so rounded"""
    least_small_rest: PositiveBytes = default_size("512 B")
    """smallest rest for which a small block is split"""
    least_large_rest: PositiveBytes = default_size("1 MiB")
    """smallest rest for which a large block is split"""
    returns_chunks: bool = Field(default=True, strict=True)
    """whether free chunks are given back when memory runs out"""

    @required
    def _chunks_hold_what_they_are_for(self) -> Iterator[str]:
        for chunk, limit in (("small_chunk", "small_limit"), ("large_chunk", "large_limit")):
            size, least = getattr(self, chunk), getattr(self, limit)
            if size < least:
                allowed = f"at least {limit}, {format_bytes(least)}"
                yield f"{chunk}: found {format_bytes(size)}; allowed: {allowed}"
