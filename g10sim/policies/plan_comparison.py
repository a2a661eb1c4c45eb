"""What differs between two migration plans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from g10sim.policies.plan import MigrationPlan, PlannedMove
from g10sim.records import Location


@dataclass(frozen=True, slots=True)
class ShiftedMove:
    """The same move of a tensor, issued at another kernel in the second plan."""

    tensor: int
    target: Location
    first_kernel: int
    second_kernel: int


@dataclass(frozen=True)
class PlanComparison:
    """Moves of two plans: in both at the same kernel, in both at another one, in one only.

    ``same_order`` tells whether the moves in both come in the same order, kernel by kernel.
    """

    same: tuple[PlannedMove, ...]
    shifted: tuple[ShiftedMove, ...]
    only_first: tuple[PlannedMove, ...]
    only_second: tuple[PlannedMove, ...]
    same_order: bool


def compare_plans(first: MigrationPlan, second: MigrationPlan) -> PlanComparison:
    """Match the moves of two plans: equal ones, then those of the same tensor and target in order.

    Everything is listed in ascending order of kernels.
    """
    common = Counter(first.moves) & Counter(second.moves)
    same, rest_first = _split(first.moves, common)
    same_second, rest_second = _split(second.moves, common)
    waiting: defaultdict[tuple[int, Location], list[PlannedMove]] = defaultdict(list)
    for move in reversed(rest_second):
        waiting[move.tensor, move.target].append(move)
    shifted, only_first = [], []
    for move in rest_first:
        candidates = waiting[move.tensor, move.target]
        if candidates:
            other = candidates.pop()
            shifted.append(ShiftedMove(move.tensor, move.target, move.kernel, other.kernel))
        else:
            only_first.append(move)
    left = Counter(move for moves in waiting.values() for move in moves)
    only_second, _ = _split(rest_second, left)
    return PlanComparison(
        tuple(same), tuple(shifted), tuple(only_first), tuple(only_second), same == same_second
    )


def _split(
    moves: Iterable[PlannedMove], wanted: Counter[PlannedMove]
) -> tuple[list[PlannedMove], list[PlannedMove]]:
    remaining = Counter(wanted)
    taken, left = [], []
    for move in moves:
        if remaining[move]:
            remaining[move] -= 1
            taken.append(move)
        else:
            left.append(move)
    return taken, left
