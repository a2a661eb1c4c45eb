"""Fetching back what left the GPU against the plan.

Where the GPU fills up in spite of the plan, the memory manager makes room with tensors that the plan
never meant to leave, so no prefetch of the plan brings them back. Their return is asked for here, far
enough ahead to go behind the plan's own prefetches in the queue, and only into memory that nothing on
its way will take.
"""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.policies.base import PolicyView
from g10sim.policies.g10_planning.draft import Draft
from g10sim.policies.moves import Fetch

# Share of GPU memory left to tensors that are about to be born.
_RESERVED = 0.1


class Recovery:
    """Knows for one job which tensors the plan wants on the GPU at each kernel."""

    def __init__(self, draft: Draft, kernels: Sequence[Sequence[int]], capacity_bytes: int) -> None:
        """``kernels`` are the tensors that each kernel needs."""
        self._uses = _with_distances(kernels)
        self._capacity_bytes = capacity_bytes
        self._away: dict[int, list[tuple[int, int]]] = {}
        for eviction in draft.evictions:
            back = eviction.end if eviction.prefetch is None else eviction.prefetch
            self._away.setdefault(eviction.tensor, []).append((eviction.start, back))

    def prefetches(self, view: PolicyView, look_ahead: int) -> list[Fetch]:
        """Return prefetches of strays that the next ``look_ahead`` kernels need, in order of need."""
        room = view.free_bytes - _RESERVED * self._capacity_bytes
        found: list[Fetch] = []
        now = view.kernel
        for ahead in range(1, look_ahead + 1):
            if room <= 0:
                break
            kernel = now + ahead
            for tensor, distance in self._uses[kernel % len(self._uses)]:
                if distance < ahead or view.is_whole(tensor):
                    continue
                room -= view.in_transfer_bytes(tensor)
                stray = view.away_bytes(tensor)
                if not stray or not self._wanted(view, tensor, kernel):
                    continue
                room -= stray
                if room < 0:
                    return found
                found.append(Fetch(tensor))
        return found

    def _wanted(self, view: PolicyView, tensor: int, kernel: int) -> bool:
        if view.is_dead(tensor):
            return False
        if kernel >= len(self._uses) and not view.trace.tensors[tensor].persistent:
            return False
        now, later = view.kernel, view.kernel + len(self._uses)
        return not any(
            start <= now <= back or start <= later <= back for start, back in self._away.get(tensor, ())
        )


def _with_distances(kernels: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    """Give each tensor of each kernel the number of kernels since its last use, iteration after iteration."""
    last: dict[int, int] = {}
    found: list[list[tuple[int, int]]] = []
    for position in range(-len(kernels), len(kernels)):
        tensors = kernels[position]
        if position >= 0:
            found.append([(tensor, position - last[tensor]) for tensor in tensors])
        last.update(dict.fromkeys(tensors, position))
    return found
