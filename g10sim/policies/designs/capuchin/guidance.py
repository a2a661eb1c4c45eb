"""One job's plan while time passes: what to issue when, and copies in that are issued earlier when late."""

from __future__ import annotations

from dataclasses import replace

from g10sim.policies.designs.capuchin.planner import Planned as PlannedSwaps
from g10sim.policies.designs.capuchin.swaps import GuidedSwap, trigger_at
from g10sim.policies.interface import MigrationPlan, Planned
from g10sim.policies.interface.moves import Fetch
from g10sim.policies.planning.grouping import grouped


class Guidance:
    """The moves of one job by kernel, and its swaps that were late.

    ``step``: by which share of its time a copy in that was late is issued earlier from then on.
    ``leaving`` maps kernels to the tensors that leave when they have ended, ``awaited`` to those that must
    have left before the next one starts, ``returning`` to the swaps that are to be back when they start.
    """

    def __init__(self, planned: PlannedSwaps, step: float) -> None:
        self.planned, self._step = planned, step
        self._accesses = planned.schedule.accesses
        self._swaps = list(planned.swaps)
        self._late: dict[int, int] = {}
        self._seen: set[int] = set()
        starts = [self._accesses.interval(swap.first).start for swap in self._swaps]
        waits = [swap for swap, start in zip(self._swaps, starts, strict=True) if swap.out.end > start]
        self.leaving = grouped(
            (self._leaves_after(swap), swap.pair.tensor)
            for swap in sorted(self._swaps, key=lambda swap: swap.out)
        )
        self.awaited = grouped((swap.first - 1, swap.pair.tensor) for swap in waits)
        self.returning = grouped((swap.pair.use, number) for number, swap in enumerate(self._swaps))

    def _leaves_after(self, swap: GuidedSwap) -> int:
        """Return the kernel at whose end a copy out is issued: the last before the link is free for it."""
        ended = self._accesses.kernel_at(swap.out.start) - 1
        return min(max(swap.pair.evicted, ended), swap.first - 1)

    def swap(self, number: int) -> GuidedSwap:
        """Return a swap with its trigger as it is now."""
        return self._swaps[number]

    def note_late(self, number: int) -> None:
        """Remember that a tensor was still on its way in when the kernel started that uses it."""
        self._seen.add(number)

    def adjust(self) -> bool:
        """Issue earlier what was late since the last call, as memory permits; whether anything changed."""
        changed = False
        for number in sorted(self._seen):
            self._late[number] = self._late.get(number, 0) + 1
            changed |= self._move(number)
        self._seen.clear()
        return changed

    @property
    def is_final(self) -> bool:
        """Return True if nothing that was late since the last adjustment can ever be issued earlier."""
        return not any(map(self._can_move, self._seen))

    def plan(self) -> MigrationPlan:
        """Return drops, allocations, and copies in, each issued when its trigger starts."""
        swaps = sorted(self._swaps, key=lambda swap: (swap.trigger, swap.back))
        moves = self.planned.schedule.memory_moves()
        moves += [Planned(swap.trigger, Fetch(swap.pair.tensor)) for swap in swaps]
        moves.sort(key=lambda move: (move.kernel, move.delay_cycles))
        return MigrationPlan(tuple(moves), "capuchin")

    def _move(self, number: int) -> bool:
        """Move a swap's trigger towards where it is wanted, one kernel after another while there is room."""
        swap = self._swaps[number]
        lead = round(self._step * self._late[number] * swap.pair.copy_cycles)
        wanted = trigger_at(self._accesses, swap.pair, swap.last, swap.back.start - lead)
        trigger = swap.trigger
        while trigger > wanted and self._has_room(trigger - 1, swap.pair.size_bytes):
            trigger -= 1
        if trigger == swap.trigger:
            return False
        self._swaps[number] = moved = replace(swap, trigger=trigger)
        self.planned.analysis.remove(swap.counted(self._accesses))
        self.planned.analysis.add(moved.counted(self._accesses))
        return True

    def _can_move(self, number: int) -> bool:
        """Return True if a swap could be issued a kernel earlier, once it has been late often enough."""
        swap = self._swaps[number]
        earlier = self._step > 0 and swap.trigger > swap.last + 1
        return earlier and self._has_room(swap.trigger - 1, swap.pair.size_bytes)

    def _has_room(self, kernel: int, size_bytes: int) -> bool:
        """Return True if more memory during a kernel stays within the target, or within the peak.

        A kernel that takes no time needs none.
        """
        start, end = self._accesses.interval(kernel)
        level = self.planned.analysis.most(start, end) if start < end else 0
        return level + size_bytes <= max(self.planned.target_bytes, self.planned.peak_bytes)
