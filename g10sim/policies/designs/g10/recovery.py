"""Help for a plan while time passes: strays are fetched back, and kernels wait for the room that it makes.

Where the GPU fills up in spite of the plan, the memory manager makes room with tensors that the plan
never meant to leave, so no prefetch of the plan brings them back. Their return is asked for here, far
enough ahead to go behind the plan's own prefetches in the queue, and only into memory that nothing on
its way will take.

A paced plan counts on stalls: a kernel starts when what it needs has room. One that starts earlier makes room
with whatever is oldest, for which the link has no time in the plan, and which no prefetch brings back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from g10sim.policies.designs.g10.draft import Draft
from g10sim.policies.interface import PlannedTier, PolicyView
from g10sim.policies.interface.moves import Await, Fetch
from g10sim.policies.planning.grouping import grouped
from g10sim.policies.planning.leaving import first_gone

# Share of GPU memory left to tensors that are about to be born.
_RESERVED = 0.1


class Recovery:
    """Knows for one job which tensors the plan wants on the GPU at each kernel."""

    def __init__(self, draft: Draft, kernels: Sequence[Sequence[int]], capacity_bytes: int) -> None:
        """``kernels`` are the tensors that each kernel needs."""
        self._kernels, self._capacity_bytes = kernels, capacity_bytes
        self._away = grouped(
            (one.tensor, (one.start, one.end if one.prefetch is None else one.prefetch))
            for one in draft.evictions
        )

    def prefetches(self, view: PolicyView, look_ahead: int) -> list[Fetch]:
        """Return prefetches of strays that the next ``look_ahead`` kernels need, in order of need."""
        now, count, found, seen = view.kernel, len(self._kernels), list[Fetch](), set[int]()
        room = view.free_bytes - _RESERVED * self._capacity_bytes
        for kernel in range(now + 1, now + min(look_ahead, count) + 1):
            if room <= 0:
                break
            for tensor in self._kernels[kernel % count]:
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
        lasts = view.trace.tensors[tensor].persistent
        if view.is_dead(tensor) or (kernel >= len(self._kernels) and not lasts):
            return False
        now, later = view.kernel, view.kernel + len(self._kernels)
        return not any(
            start <= now <= back or start <= later <= back for start, back in self._away.get(tensor, ())
        )


class Waiting:
    """Knows for one job which planned evictions are under way."""

    def __init__(self, draft: Draft, kernels: Sequence[Sequence[int]]) -> None:
        """``kernels`` are the tensors that each kernel needs."""
        self._kernels = [frozenset(tensors) for tensors in kernels]
        self._planned: list[dict[int, PlannedTier]] = [{} for _ in kernels]
        for eviction in sorted(draft.evictions, key=lambda entry: (entry.out_by, entry.tensor)):
            self._planned[eviction.start % len(kernels)][eviction.tensor] = eviction.tier
        self._leaving: dict[int, PlannedTier] = {}

    def state(self) -> tuple[object, ...]:
        """Return the planned evictions under way."""
        return tuple((tensor, tier.name) for tensor, tier in self._leaving.items())

    def begin(self, kernel: int) -> None:
        """Note what the plan evicts at the start of a kernel."""
        self._leaving |= self._planned[kernel]

    def waits(self, view: PolicyView) -> Iterator[Await]:
        """Let a kernel end only when planned evictions have made room for the next one."""
        for tensor in [tensor for tensor in self._leaving if not view.in_transfer_bytes(tensor)]:
            del self._leaving[tensor]
        if not self._leaving:
            return
        following = self._kernels[(view.kernel + 1) % len(self._kernels)]
        lack = sum(view.size_bytes(tensor) - view.resident_bytes(tensor) for tensor in following)
        dead = filter(view.is_dead, self._kernels[view.kernel])
        lack -= view.free_bytes + sum(map(view.resident_bytes, dead))
        if awaited := first_gone(view, self._leaving, lack):
            yield Await(awaited)
