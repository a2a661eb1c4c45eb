"""From scheduled swaps to a migration plan."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.policies.autoswap_planning.swap import Swap
from g10sim.policies.plan import PlannedMove
from g10sim.records import Location


def moves_of(swaps: Sequence[Swap], num_kernels: int, place: Location) -> tuple[PlannedMove, ...]:
    """Return the moves of an iteration in issue order: of one kernel, those out first.

    A swap that begins before the iteration is issued late in the one before. What has left, or is leaving,
    at its start is also sent away there: that changes nothing but in the first iteration, which nothing
    comes before.
    """
    out = [(swap.candidate.start % num_kernels, swap.candidate.tensor) for swap in swaps]
    issued = set(out)
    first = [
        (0, swap.candidate.tensor)
        for swap in swaps
        if _is_on_its_way_at_start(swap, num_kernels) and (0, swap.candidate.tensor) not in issued
    ]
    back = sorted((swap.back % num_kernels, swap.in_time, swap.candidate.tensor) for swap in swaps)
    entries = [(kernel, 0, PlannedMove(kernel, tensor, place)) for kernel, tensor in (*first, *out)]
    entries += [(kernel, 1, PlannedMove(kernel, tensor, Location.GPU)) for kernel, _, tensor in back]
    return tuple(move for *_, move in sorted(entries, key=lambda entry: entry[:2]))


def _is_on_its_way_at_start(swap: Swap, num_kernels: int) -> bool:
    return any(swap.candidate.start <= border < swap.back for border in (0, num_kernels))
