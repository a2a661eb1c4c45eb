"""Allocators of device memory as frameworks use them: from operations to a footprint."""
