"""Pools of device memory, and how much memory each takes for the same operations.

Memory straight from the driver, Nvidia's CnMem, PyTorch's caching allocator, and SmartPool (Zhang et al.,
Efficient Memory Management for GPU-based Deep Learning Systems, arXiv 1903.06631).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from g10sim.analysis.pools import operations as stream
from g10sim.analysis.pools.placement import Block, Fit, load_changes, place_blocks
from g10sim.config.allocator import CachingPoolSpec
from g10sim.hardware.gpu_memory.allocators.caching import CachingPool
from g10sim.hardware.gpu_memory.placement import best_fit
from g10sim.trace.model import Trace

GRANULARITY_BYTES = 512
"""Sizes are rounded up to this in Nvidia's pool (CnMem) and in PyTorch's."""
ALIGNMENT_BYTES = 256
"""Addresses from the driver are multiples of this (CUDA C++ Programming Guide, device memory accesses)."""


class DriverMemory:
    """Every block is separate memory and is given back to the driver at once (cudaMalloc, cudaFree)."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.footprint_bytes = 0
        """Device memory that it holds now, in use or not."""

    def allocate(self, block: int, size_bytes: int) -> None:
        """Take memory for a block, under a number that no other block has."""
        size = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._sizes[block] = size
        self.footprint_bytes += size

    def free(self, block: int) -> None:
        """Give a block's memory back."""
        self.footprint_bytes -= self._sizes.pop(block)


FIRST_CHUNK_BYTES = 256 * 2**20
"""Size of the pool at start in SINGA, the framework of the SmartPool and AutoSwap authors."""
_UNLIMITED_PAGES = 2**53


class PyTorchPool:
    """PyTorch's caching allocator on a GPU with room for everything: it gives chunks back only if told to."""

    def __init__(self, spec: CachingPoolSpec | None = None) -> None:
        self._pool = CachingPool(_UNLIMITED_PAGES, GRANULARITY_BYTES, spec or CachingPoolSpec())

    @property
    def footprint_bytes(self) -> int:
        """Bytes of all chunks."""
        return self._pool.chunk_pages * GRANULARITY_BYTES

    def empty_cache(self) -> None:
        """Give back the chunks of which no part is in use."""
        self._pool.give_back_chunks()

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block."""
        self._pool.allocate(block, -(-size_bytes // GRANULARITY_BYTES), best_fit)

    def free(self, block: int) -> None:
        """Take a block back."""
        self._pool.release(block)


class DefaultPool(PyTorchPool):
    """CnMem, the default of the framework that SmartPool was written for.

    A request is rounded up and takes the smallest hole that is large enough (the rest stays a hole). A freed
    block joins the holes next to it in its chunk. What fits nowhere gets a new chunk of exactly its size.
    The pool starts with one chunk of ``first_chunk_bytes``.
    """

    def __init__(self, first_chunk_bytes: int = FIRST_CHUNK_BYTES) -> None:
        one_class = {"small_limit": "0 B", "large_limit": "0 B", "chunk_rounding": "1 B"}
        super().__init__(CachingPoolSpec.model_validate({**one_class, "least_large_rest": "1 B"}))
        if first_chunk_bytes:
            self.allocate(0, first_chunk_bytes)
            self.free(0)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pool's response to the operation at each position of an iteration.

    ``cut`` is the operation of the stream at which an iteration begins, here where the fewest planned bytes
    are allocated. ``offsets[position]`` has one offset for each of ``laps`` iterations in turn, and none
    where nothing is allocated or the block is not planned: it was not freed while the stream was watched.
    ``values`` are the signatures that the stream has to go on with.
    """

    cut: int
    values: tuple[Hashable, ...]
    offsets: tuple[tuple[int, ...], ...]
    footprint_bytes: int
    laps: int

    @property
    def length(self) -> int:
        """Operations of an iteration."""
        return len(self.values)


def plan_pool(
    operations: Sequence[stream.Operation], values: Sequence[Hashable], period: stream.Period, fit: Fit
) -> PoolPlan:
    """Plan from the allocations and frees of a stream, their signatures and their period.

    The blocks are those of the first iteration that repeats, with lifetimes counted in operations.
    """
    stop = period.start + period.length
    births: dict[int, int] = {}
    blocks: list[Block] = []
    for index, operation in enumerate(operations[period.start :], period.start):
        if operation.kind is stream.OperationKind.ALLOCATE and index < stop:
            births[operation.block] = index
        elif operation.kind is stream.OperationKind.FREE and operation.block in births:
            birth = births.pop(operation.block)
            blocks.append(Block(birth, index, operations[birth].size_bytes))
    cut = period.start + _quietest(blocks, period)
    lifetimes = []
    for block in blocks:
        first = (block.start - cut) % period.length
        lifetimes.append(Block(first, first + block.end - block.start, block.size_bytes))
    placement = place_blocks(lifetimes, period=period.length, fit=fit, alignment_bytes=ALIGNMENT_BYTES)
    offsets: list[tuple[int, ...]] = [()] * period.length
    for block, places in zip(lifetimes, placement.offsets, strict=True):
        offsets[block.start] = places
    own = tuple(values[cut : cut + period.length])
    return PoolPlan(cut, own, tuple(offsets), placement.footprint_bytes, placement.laps)


def _quietest(blocks: Sequence[Block], period: stream.Period) -> int:
    """Position before which the fewest bytes of blocks are allocated, the first of several."""
    shift = 1 - period.start  # a block takes memory from the operation after its birth on
    moved = [Block(block.start + shift, block.end + shift, block.size_bytes) for block in blocks]
    loads = np.zeros(period.length + 1, dtype=np.int64)
    for time, change in load_changes(moved, period.length)[1]:
        loads[time] += change
    return int(np.cumsum(loads[:-1]).argmin())


@dataclass(slots=True, eq=False)
class _Region:
    """Memory for a plan's blocks, held while the plan is followed or any of them is in use.

    ``next`` counts the operations from the plan's cut on; ``blocks`` have offsets.
    """

    plan: PoolPlan
    next: int = 0
    blocks: dict[int, int] = field(default_factory=dict)

    def advance(self, value: Hashable) -> int | None:
        """Go to the next operation; returns its planned offset, -1 for none, None where it is another."""
        lap, position = divmod(self.next, self.plan.length)
        if self.plan.values[position] != value:
            return None
        self.next += 1
        offsets = self.plan.offsets[position]
        return offsets[lap % self.plan.laps] if offsets else -1


class SmartPool:
    """Watches until training repeats, then plans, and from the next iteration on looks addresses up.

    Until then, and for blocks that are not planned, memory comes from ``fallback``, by default the driver.
    When an operation is not the one that the plan expects, the pool leaves the plan and watches again; the
    region goes back when the last block in it is freed. An operation takes constant time, planning aside.
    """

    def __init__(
        self,
        *,
        fit: Fit = "best",
        fallback: MemoryPool | None = None,
        first_check: int = stream.FIRST_CHECK,
        least_operations: int = stream.LEAST_OPERATIONS,
    ) -> None:
        self._fit: Fit = fit
        self._fallback = DriverMemory() if fallback is None else fallback
        self._first_check, self._least = first_check, least_operations
        self._signatures = stream.Signatures()
        self._regions: list[_Region] = []
        self._watch()

    def _watch(self) -> None:
        """Forget what was seen, and wait for iterations."""
        self._operations: list[stream.Operation] = []
        self._detector = stream.IterationDetector(self._first_check, self._least)
        self._plan: PoolPlan | None = None
        self._followed: _Region | None = None
        self._drop_empty_regions()

    def _drop_empty_regions(self) -> None:
        self._regions = [region for region in self._regions if region.blocks or region is self._followed]

    @property
    def footprint_bytes(self) -> int:
        """Bytes of the region (of several, where an older one is not empty yet) and of the fallback."""
        return sum(region.plan.footprint_bytes for region in self._regions) + self._fallback.footprint_bytes

    @property
    def plan(self) -> PoolPlan | None:
        """The plan that is followed at present."""
        return self._followed.plan if self._followed is not None else None

    def offset(self, block: int) -> int | None:
        """Return a block's place in the planned region; None for one that the fallback holds."""
        return next((region.blocks[block] for region in self._regions if block in region.blocks), None)

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block, at its planned place where it has one."""
        offset = self._next(stream.Operation(stream.OperationKind.ALLOCATE, block, size_bytes))
        if self._followed is not None and offset >= 0:
            self._followed.blocks[block] = offset
        else:
            self._fallback.allocate(block, size_bytes)

    def free(self, block: int) -> None:
        """Take a block back."""
        self._next(stream.Operation(stream.OperationKind.FREE, block, 0))
        for region in self._regions:
            if region.blocks.pop(block, None) is not None:
                break
        else:
            self._fallback.free(block)
        self._drop_empty_regions()

    def _next(self, operation: stream.Operation) -> int:
        """Follow the stream by one operation; returns the planned offset, or -1."""
        value = self._signatures.next(operation)
        self._begin_to_follow()
        if self._followed is not None:
            offset = self._followed.advance(value)
            if offset is not None:
                return offset
            self._watch()
        self._operations.append(operation)
        period = self._detector.observe(value)
        if period is not None and self._plan is None:
            self._plan = plan_pool(self._operations, self._detector.values, period, self._fit)
        return -1

    def _begin_to_follow(self) -> None:
        """Follow the plan, if there is one, from the start of the next iteration on."""
        plan = self._plan
        if plan is None or (len(self._operations) - plan.cut) % plan.length:
            return
        self._plan, self._followed = None, _Region(plan)
        self._regions.append(self._followed)


MemoryPool: TypeAlias = DriverMemory | PyTorchPool | SmartPool
"""Device memory that hands out blocks and takes them back."""

WATCHED_ITERATIONS = 8
"""Iterations that pools are compared over: SmartPool has found and planned them by then."""


@dataclass(frozen=True, slots=True)
class PoolUse:
    """A pool's largest footprint over a stream of operations, and the largest load, in bytes."""

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


def largest_footprint_bytes(pool: MemoryPool, operations: Iterable[stream.Operation]) -> int:
    """Let a pool carry out allocations and frees; returns the most memory that it held."""
    largest = pool.footprint_bytes
    for operation in operations:
        if operation.kind is stream.OperationKind.ALLOCATE:
            pool.allocate(operation.block, operation.size_bytes)
            largest = max(largest, pool.footprint_bytes)
        else:
            pool.free(operation.block)
    return largest


_STEADY_ITERATIONS = 2


def caching_pool_bytes(trace: Trace) -> int:
    """Return the most memory that PyTorch's caching allocator holds for a trace, free blocks included."""
    return largest_footprint_bytes(PyTorchPool(), stream.training_operations(trace, _STEADY_ITERATIONS))


def compare_pools(trace: Trace) -> tuple[PoolUse, ...]:
    """Let every pool serve the same iterations of a trace from their start; the default pool comes first."""
    operations = list(stream.training_operations(trace, WATCHED_ITERATIONS))
    load = stream.peak_load_bytes(operations)
    pools: dict[str, MemoryPool] = {
        "default pool": DefaultPool(),
        "caching pool": PyTorchPool(),
        "SmartPool, best fit": SmartPool(fit="best"),
        "SmartPool, first fit": SmartPool(fit="first"),
    }
    return tuple(
        PoolUse(name, load, largest_footprint_bytes(pool, operations)) for name, pool in pools.items()
    )
