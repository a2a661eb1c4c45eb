"""Waiting for what a paced plan evicts.

A paced plan counts on stalls: a kernel starts when what it needs has room. One that starts earlier makes room
with whatever is oldest, for which the link has no time in the plan, and which no prefetch brings back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from g10sim.policies.designs.g10.draft import Draft
from g10sim.policies.interface.machine import PlannedTier
from g10sim.policies.interface.moves import Await
from g10sim.policies.interface.policy import PolicyView
from g10sim.policies.planning.leaving import by_departure


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
        awaited = []
        for tensor, size in by_departure(view, self._leaving):
            if lack <= 0:
                break
            awaited.append(tensor)
            lack -= size
        if awaited:
            yield Await(frozenset(awaited))
