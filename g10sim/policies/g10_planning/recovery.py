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
        self._kernels = kernels
        self._capacity_bytes = capacity_bytes
        self._away: dict[int, list[tuple[int, int]]] = {}
        for eviction in draft.evictions:
            back = eviction.end if eviction.prefetch is None else eviction.prefetch
            self._away.setdefault(eviction.tensor, []).append((eviction.start, back))

    def prefetches(self, view: PolicyView, look_ahead: int) -> list[Fetch]:
        """Return prefetches of strays that the next ``look_ahead`` kernels need, in order of need."""
        room = view.free_bytes - _RESERVED * self._capacity_bytes
        found: list[Fetch] = []
        seen: set[int] = set()
        for ahead in range(1, look_ahead + 1):
            if room <= 0:
                break
            kernel = view.kernel + ahead
            for tensor in self._kernels[kernel % len(self._kernels)]:
                if tensor in seen or view.is_whole(tensor):
                    continue
                seen.add(tensor)
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
        if kernel >= len(self._kernels) and not view.trace.tensors[tensor].persistent:
            return False
        now, later = view.kernel, view.kernel + len(self._kernels)
        return not any(
            start <= now <= back or start <= later <= back for start, back in self._away.get(tensor, ())
        )
