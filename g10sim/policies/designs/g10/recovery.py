"""Help for a plan while time passes: strays are fetched back, and kernels wait for the room that it makes.

Where the GPU fills up in spite of the plan, the memory manager makes room with tensors that the plan
never meant to leave, so no prefetch of the plan brings them back. Their return is asked for here, far
enough ahead to go behind the plan's own prefetches in the queue, and only into memory that nothing on
its way will take.

A paced plan counts on stalls: a kernel starts when what it needs has room. One that starts earlier makes room
with whatever is oldest, for which the link has no time in the plan, and which no prefetch brings back.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from g10sim.grouping import grouped
from g10sim.policies.designs.g10.draft import Draft
from g10sim.policies.interface import Await, Fetch, JobPolicy, MigrationPlan, PlannedTier, PolicyView
from g10sim.policies.planning.leaving import first_gone

# Share of GPU memory left to tensors that are about to be born.
_RESERVED = 0.1


class RecoveringJob(JobPolicy):
    """Follows the plan of a job, and fetches back what left the GPU against it.

    ``kernels`` are the tensors that each kernel needs; it looks ``look_ahead`` of them ahead.
    """

    def __init__(
        self,
        draft: Draft,
        plan: MigrationPlan | None,
        kernels: Sequence[Sequence[int]],
        capacity_bytes: int,
        look_ahead: int,
    ) -> None:
        self.draft, self.plan, self._look_ahead = draft, plan, look_ahead
        self._kernels, self._capacity_bytes = kernels, capacity_bytes
        self._away = grouped(
            (one.tensor, (one.start, one.end if one.prefetch is None else one.prefetch))
            for one in draft.evictions
        )

    def on_kernel_start(self, view: PolicyView) -> list[Fetch]:
        """Fetch back strays that the next kernels need, in order of need."""
        now, count, found, seen = view.kernel, len(self._kernels), list[Fetch](), set[int]()
        room = view.free_bytes - _RESERVED * self._capacity_bytes
        for kernel in range(now + 1, now + min(self._look_ahead, count) + 1):
            if room <= 0:
                break
            for tensor in self._kernels[kernel % count]:
                if tensor in seen:
                    continue
                seen.add(tensor)
                if view.is_whole(tensor):
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
        if view.is_dead(tensor) or (kernel >= len(self._kernels) and not view.trace.lasting[tensor]):
            return False
        times, away = (view.kernel, view.kernel + len(self._kernels)), self._away.get(tensor, ())
        return not any(start <= time <= back for start, back in away for time in times)


class WaitingJob(RecoveringJob):
    """Follows the plan of a job whose kernels wait for the room that it makes."""

    def __init__(self, draft: Draft, *others: Any) -> None:
        super().__init__(draft, *others)
        departures, kernels = sorted(draft.evictions, key=attrgetter("out_by", "tensor")), len(self._kernels)
        self._planned = grouped((one.start % kernels, (one.tensor, one.tier)) for one in departures)
        self._leaving: dict[int, PlannedTier] = {}

    def state(self, view: PolicyView) -> Hashable:
        """Return the planned evictions under way."""
        return tuple((tensor, tier.name) for tensor, tier in self._leaving.items())

    def on_kernel_start(self, view: PolicyView) -> list[Fetch]:
        """Note what the plan evicts, and fetch back what left the GPU against it."""
        self._leaving |= self._planned.get(view.kernel, ())
        return super().on_kernel_start(view)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Await]:
        """Let a kernel end only when planned evictions have made room for the next one."""
        self._leaving = {one: tier for one, tier in self._leaving.items() if view.in_transfer_bytes(one)}
        if not self._leaving:
            return
        following = self._kernels[(view.kernel + 1) % len(self._kernels)]
        lack = sum(view.size_bytes(tensor) - view.resident_bytes(tensor) for tensor in following)
        dead = filter(view.is_dead, self._kernels[view.kernel])
        lack -= view.free_bytes + sum(map(view.resident_bytes, dead))
        if awaited := first_gone(view, self._leaving, lack):
            yield Await(awaited)
