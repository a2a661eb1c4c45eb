"""How much memory each pool takes for the same operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from g10sim.analysis.pools.operations import (
    Operation,
    OperationKind,
    only_allocations,
    peak_load_bytes,
    training_operations,
)
from g10sim.hardware.allocators.default_pool import DefaultPool
from g10sim.hardware.allocators.pool import MemoryPool
from g10sim.hardware.allocators.pytorch_pool import PyTorchPool
from g10sim.hardware.allocators.smart_pool import SmartPool
from g10sim.trace.model import Trace

WATCHED_ITERATIONS = 8
"""Iterations that pools are compared over: SmartPool has found and planned them by then."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool's largest footprint over a stream of operations beside the largest load, in bytes."""

    pool: str
    load_bytes: int
    footprint_bytes: int

    @property
    def ratio(self) -> float:
        """Footprint / load, at least 1 (the authors' competitive ratio)."""
        return self.footprint_bytes / self.load_bytes if self.load_bytes else 1.0

    def reduction(self, other: PoolUse) -> float:
        """Share of another pool's footprint that this one does without."""
        return 1 - self.footprint_bytes / other.footprint_bytes if other.footprint_bytes else 0.0


def largest_footprint_bytes(pool: MemoryPool, operations: Iterable[Operation]) -> int:
    """Let a pool carry out allocations and frees; returns the most memory that it held."""
    largest = pool.footprint_bytes
    for operation in operations:
        if operation.kind is OperationKind.ALLOCATE:
            pool.allocate(operation.block, operation.size_bytes)
            largest = max(largest, pool.footprint_bytes)
        elif operation.kind is OperationKind.FREE:
            pool.free(operation.block)
    return largest


def compare_pools(trace: Trace, iterations: int = WATCHED_ITERATIONS) -> tuple[PoolUse, ...]:
    """Let every pool serve the same iterations of a trace from their start; the default pool comes first."""
    operations = list(only_allocations(training_operations(trace, iterations)))
    load = peak_load_bytes(operations)
    pools: dict[str, MemoryPool] = {
        "default pool": DefaultPool(),
        "caching pool": PyTorchPool(),
        "SmartPool, best fit": SmartPool(fit="best"),
        "SmartPool, first fit": SmartPool(fit="first"),
    }
    return tuple(
        PoolUse(name, load, largest_footprint_bytes(pool, operations)) for name, pool in pools.items()
    )
