"""Drafts of plans: moves before they are put in order, and the estimate behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from g10sim.analysis.timeline import Integers
from g10sim.policies.interface import MigrationPlan, Planned, PlannedMachine, PlannedTier
from g10sim.policies.interface.moves import Evict, Fetch, Free, TensorMove
from g10sim.policies.interface.parameters import parameter
from g10sim.policies.planning.limit import Limited, TimeLimit
from g10sim.policies.planning.occupancy import ExcessOccupancy
from g10sim.policies.planning.timeline import Absence, Timeline
from g10sim.trace.model import Tensor, Trace

Ranking: TypeAlias = Literal["benefit", "benefit_per_cost"]


class PlannerOptions(Limited):
    """Parameters of the planner that users may choose."""

    safety_margin: float = parameter(default=2.5, ge=1, le=1000, published="2.5, published simulator")
    """Transfer times that an inactive period must last."""
    memory_target: float = parameter(default=0.99, ge=0.01, le=1, published="0.99, published simulator")
    """Share of GPU memory that the estimated occupancy may reach."""
    eager_prefetch: bool = parameter(default=True, published="true, G10 paper, section 4.4")
    """Prefetch earlier than the latest safe time where memory is free."""
    ranking: Ranking = parameter(
        default="benefit", published="benefit, published simulator; benefit_per_cost, G10 paper, section 4.3"
    )
    """Order of inactive periods: first that with the most relief (bytes x time of memory pressure), or with
    the most relief for the time that its transfers take."""


class PlanningParameters(PlannerOptions):
    """All parameters of the planner, with those that follow from a design or from ``compat``."""

    planner: Literal["live", "published"] = parameter(default="live")
    """``live``, or ``published``: the planner of the published simulator with its peculiarities."""
    published_order: bool = parameter(default=True)
    """Of periods that are equally good the published simulator's first, which takes a sort of all periods for
    each eviction; otherwise the one with the most bytes x time (``published``)."""
    pacing_rounds: int = parameter(default=1, ge=1, le=100)
    """Most rounds of planning with the stalls that the round before expects (``live``)."""

    tensor_hints: bool = parameter(default=True)
    """Allocate tensors before their birth and free them at their death; some machines do both by
    themselves."""
    memory_factor: float = parameter(default=1.0, ge=0.01, le=1000)
    """Multiplies the target, and with the live planner GPU memory too."""
    demand_evictions: bool = parameter(default=False)
    """Add evictions without prefetch where the first estimate is highest
    (last step of the direct-storage designs)."""


@dataclass(frozen=True)
class PlannedEviction(Absence):
    """A tensor leaves the GPU for a tier while it is not used.

    Issued at kernel ``start``, out by the end of kernel ``out_by``, wanted back at kernel ``end``; its
    prefetch is issued at kernel ``prefetch`` (None: it is fetched on demand).
    """

    tier: PlannedTier
    out_by: int
    prefetch: int | None


class Draft:
    """A plan in the making, with the estimated occupancy of the GPU.

    ``allocations`` and ``frees`` are (kernel, tensor). ``pressed_kernel`` has the highest estimate before any
    eviction. The timeline counts the expected stalls. Above ``target_bytes`` memory is under pressure.
    Planning ends early when its ``time`` is over.
    """

    def __init__(
        self,
        occupancy: Integers,
        timeline: Timeline,
        machine: PlannedMachine,
        target_bytes: float,
        time: TimeLimit,
    ) -> None:
        self.machine, self.timeline, self.target_bytes = machine, timeline, target_bytes
        self.pressed_kernel = int(occupancy.argmax()) if len(occupancy) else 0
        self.occupancy, self.time = ExcessOccupancy(occupancy, timeline.durations, target_bytes), time
        self.evictions: list[PlannedEviction] = []
        self.allocations, self.frees = list[tuple[int, int]](), list[tuple[int, int]]()

    def plan(self, trace: Trace, *, tensor_hints: bool = True) -> MigrationPlan:
        """Put the moves in issue order, with allocations and frees where there are to be ``tensor_hints``.

        Within a kernel tensors are freed first, then evicted, then prefetched and allocated in order of need.
        """
        moves: list[tuple[int, int, int, TensorMove]] = []
        if tensor_hints:
            moves += [(kernel, 0, 0, Free(tensor)) for kernel, tensor in self.frees]
            births = trace.births
            moves += [(kernel, 2, births[tensor], Fetch(tensor)) for kernel, tensor in self.allocations]
        for eviction in self.evictions:
            tensor, prefetch = eviction.tensor, eviction.prefetch
            moves.append((eviction.start, 1, eviction.out_by, Evict(tensor, eviction.tier.name)))
            if prefetch is not None:
                kernel = prefetch % len(trace.kernels)
                moves.append((kernel, 2, kernel + eviction.end - prefetch, Fetch(tensor)))
        moves.sort(key=lambda entry: (*entry[:3], entry[3].tensor))
        return MigrationPlan(tuple(Planned(kernel, move) for kernel, *_, move in moves), "g10, live planner")

    def evict(self, absence: Absence, tier: PlannedTier, out_by: int, prefetch: int) -> None:
        """Plan an eviction to a tier with its prefetch."""
        self.occupancy.add(out_by + 1, prefetch, -absence.size_bytes)
        self._note(absence, tier, out_by, prefetch)

    def evict_on_demand(self, absences: Iterable[Absence], limit_bytes: float) -> list[Absence]:
        """Plan evictions to the SSD without a prefetch until the pressed kernel needs less than a limit.

        Those absences that have no eviction yet are taken, in their order, and returned.
        """
        evicted, found = {(eviction.tensor, eviction.start) for eviction in self.evictions}, list[Absence]()
        for absence in absences:
            if self.occupancy.bytes[self.pressed_kernel] < limit_bytes:
                break
            if (absence.tensor, absence.start) not in evicted:
                self.occupancy.add(absence.start, absence.end, -absence.size_bytes)
                self._note(absence, self.machine.ssd, absence.start, None)
                found.append(absence)
        return found

    def moved_earlier(self, kernel: int, earliest: int, size_bytes: int, free_bytes: int) -> int:
        """Return the first of the kernels up to one from which on so much of the target is free.

        A tensor of some size takes up memory from then on.
        """
        moved = min(kernel, self.occupancy.within_from(self.target_bytes - free_bytes, earliest, kernel))
        self.occupancy.add(moved, kernel, size_bytes)
        return moved

    def _note(self, absence: Absence, tier: PlannedTier, out_by: int, prefetch: int | None) -> None:
        self.evictions.append(PlannedEviction(**vars(absence), tier=tier, out_by=out_by, prefetch=prefetch))


def allocation_kernel(tensor: Tensor, birth: int, timeline: Timeline, machine: PlannedMachine) -> int:
    """Kernel at which to ask for space so that it is there at birth; 0 where the iteration is too young.

    Kernel running at (birth - bytes / allocation rate), as in the published simulator.
    """
    time = float(timeline.times[birth]) - tensor.size_bytes / machine.allocation_rate
    return 0 if time < 0 else min(birth, timeline.kernel_at(int(time)))
