"""SmartPool: one region of memory in which every allocation of an iteration has its planned place.

Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems (arXiv 1903.06631).
"""

from __future__ import annotations

from collections.abc import Hashable

from g10sim.analysis.pools.detection import FIRST_CHECK, LEAST_OPERATIONS, Signatures, find_period
from g10sim.analysis.pools.operations import Operation, OperationKind
from g10sim.analysis.pools.placement import Fit
from g10sim.analysis.pools.planning import PoolPlan, plan_pool
from g10sim.hardware.allocators.pool import ALIGNMENT_BYTES, DriverMemory, MemoryPool


class _Region:
    """Memory for a plan's blocks, held while the plan is followed or any of them is in use.

    ``next`` counts the operations from the plan's cut on.
    """

    __slots__ = ("blocks", "next", "plan")

    def __init__(self, plan: PoolPlan) -> None:
        self.plan = plan
        self.next = 0
        self.blocks: dict[int, int] = {}

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
        first_check: int = FIRST_CHECK,
        least_operations: int = LEAST_OPERATIONS,
        granularity_bytes: int = ALIGNMENT_BYTES,
    ) -> None:
        self._fit: Fit = fit
        self._fallback = DriverMemory(granularity_bytes) if fallback is None else fallback
        self._first_check, self._least = max(2, first_check), least_operations
        self._granularity = granularity_bytes
        self._signatures = Signatures()
        self._regions: list[_Region] = []
        self._watch()

    def _watch(self) -> None:
        """Forget what was seen, and wait for iterations."""
        self._operations: list[Operation] = []
        self._values: list[Hashable] = []
        self._next_check = self._first_check
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
        """Where a block lies in the planned region; None for one that the fallback holds."""
        return next((region.blocks[block] for region in self._regions if block in region.blocks), None)

    def allocate(self, block: int, size_bytes: int) -> None:
        """Hand out a block, at its planned place where it has one."""
        offset = self._next(Operation(OperationKind.ALLOCATE, block, size_bytes))
        if self._followed is not None and offset >= 0:
            self._followed.blocks[block] = offset
        else:
            self._fallback.allocate(block, size_bytes)

    def free(self, block: int) -> None:
        """Take a block back."""
        self._next(Operation(OperationKind.FREE, block, 0))
        for region in self._regions:
            if region.blocks.pop(block, None) is not None:
                break
        else:
            self._fallback.free(block)
        self._drop_empty_regions()

    def _next(self, operation: Operation) -> int:
        """Follow the stream by one operation; returns the planned offset, or -1."""
        value = self._signatures.next(operation)
        self._begin_to_follow()
        if self._followed is not None:
            offset = self._followed.advance(value)
            if offset is not None:
                return offset
            self._watch()
        self._operations.append(operation)
        self._values.append(value)
        if self._plan is None and len(self._values) >= self._next_check:
            self._next_check *= 2
            self._plan = self._look()
        return -1

    def _begin_to_follow(self) -> None:
        """Follow the plan, if there is one, from the next border of an iteration on."""
        plan = self._plan
        if plan is None or (len(self._values) - plan.cut) % plan.length:
            return
        self._plan, self._followed = None, _Region(plan)
        self._regions.append(self._followed)

    def _look(self) -> PoolPlan | None:
        """Look for iterations, and plan when there are any."""
        period = find_period(self._values, self._least)
        if period is None:
            return None
        return plan_pool(
            self._operations,
            self._values,
            period,
            fit=self._fit,
            alignment_bytes=self._granularity,
        )
