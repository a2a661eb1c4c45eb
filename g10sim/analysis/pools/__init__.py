"""Needs of memory pools: the allocations of a training job, and the placement of their blocks."""
