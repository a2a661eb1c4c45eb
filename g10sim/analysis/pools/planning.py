"""SmartPool's plan: an offset for every allocation of an iteration (SmartMemPool and SwapPool)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from g10sim.analysis.pools.operations import Operation, OperationKind, Period
from g10sim.analysis.pools.placement import Block, Fit, load_changes, place_blocks


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
    operations: Sequence[Operation],
    values: Sequence[Hashable],
    period: Period,
    *,
    fit: Fit = "best",
    alignment_bytes: int = 1,
) -> PoolPlan:
    """Plan from the allocations and frees of a stream, their signatures and their period.

    The blocks are those of the first iteration that repeats, with lifetimes counted in operations.
    """
    stop = period.start + period.length
    births: dict[int, int] = {}
    blocks: dict[int, Block] = {}
    for index, operation in enumerate(operations[period.start :], period.start):
        if operation.kind is OperationKind.ALLOCATE and index < stop:
            births[operation.block] = index
        elif operation.kind is OperationKind.FREE and operation.block in births:
            birth = births.pop(operation.block)
            blocks[birth] = Block(birth, index, operations[birth].size_bytes)
    cut = period.start + _quietest(list(blocks.values()), period)
    lifetimes = []
    for birth, block in blocks.items():
        first = (birth - cut) % period.length
        lifetimes.append(Block(first, first + block.end - birth, block.size_bytes))
    placement = place_blocks(lifetimes, period=period.length, fit=fit, alignment_bytes=alignment_bytes)
    offsets: list[tuple[int, ...]] = [()] * period.length
    for block, places in zip(lifetimes, placement.offsets, strict=True):
        offsets[block.start] = places
    own = tuple(values[cut : cut + period.length])
    return PoolPlan(cut, own, tuple(offsets), placement.footprint_bytes, placement.laps)


def _quietest(blocks: Sequence[Block], period: Period) -> int:
    """Position before which the fewest bytes of blocks are allocated, the first of several."""
    # A block takes memory from the operation after its birth on.
    moved = [
        Block(block.start + 1 - period.start, block.end + 1 - period.start, block.size_bytes)
        for block in blocks
    ]
    loads = np.zeros(period.length + 1, dtype=np.int64)
    for time, change in load_changes(moved, period.length)[1]:
        loads[time] += change
    return int(np.cumsum(loads[:-1]).argmin())
