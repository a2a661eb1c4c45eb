"""Placement in GPU memory: pages anywhere, or blocks from an allocator."""
