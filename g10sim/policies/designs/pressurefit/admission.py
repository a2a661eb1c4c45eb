"""Carries out a plan: tensors leave as planned, and return in the order of need as far as there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, filterfalse

from g10sim.grouping import grouped
from g10sim.policies.designs.pressurefit.choosing import Fitted
from g10sim.policies.interface import JobPolicy, MigrationPlan, Planned, PlannedTier, PolicyView
from g10sim.policies.interface.moves import Await, Drop, Evict, Fetch, Free, Move
from g10sim.policies.planning.leaving import first_gone
from g10sim.trace.model import Trace


class Admission(JobPolicy):
    """One job: ``_queue`` was asked for without room so far, ``_coming`` and ``_leaving`` are on their way.

    Copies in never push out what the plan lets stay: they start when there is room. ``_near`` are all that
    may have pages on the GPU: what had some or moved when victims were named, was used or asked for since,
    and what kernels that run ``_again`` use.
    """

    def __init__(self, trace: Trace, fitted: Fitted, note: str) -> None:
        program, arrivals, tasks = fitted.program, fitted.replay.arrivals, fitted.program.tasks
        self._tiers, self._ahead = program.tiers, program.ahead
        moves = [Planned(drop.start, Drop(drop.tensor)) for drop in program.drops]
        mortal = (tensor for tensor, uses in enumerate(trace.uses) if uses and not trace.lasting[tensor])
        moves += [Planned(trace.deaths[tensor], Free(tensor)) for tensor in mortal]
        cut = [(number, program.gaps[number]) for number in program.first_due if number in arrivals]
        self._left = grouped((program.kernels[(gap.start - 1) % tasks + 1] - 1, gap.tensor) for _, gap in cut)
        self._asked = grouped((program.kernels[arrivals[number] % tasks], gap.tensor) for number, gap in cut)
        self.plan = MigrationPlan.ordered(moves, "pressurefit")
        self.note = note
        away = (gap.tensor for gap in program.gaps if gap.end >= tasks)
        self.homes = {tensor: program.tiers[tensor].name for tensor in away}
        """Tiers of persistent tensors between iterations."""
        self._queue, self._coming = deque[int](), dict[int, None]()
        self._leaving = dict[int, PlannedTier]()
        self._near = set(range(len(trace.tensors)))
        again = chain.from_iterable(drop.producers for drop in program.drops)
        self._again = {tensor for kernel in again for tensor in kernel.touched}

    def state(self, view: PolicyView) -> tuple[object, ...]:
        """Return what waits for room and what is on its way."""
        return tuple(self._queue), tuple(self._coming), tuple(self._leaving)

    def on_kernel_start(self, view: PolicyView) -> Iterator[Move]:
        """Bring in what the kernel needs, and as much of what was asked for as there is room for."""
        asked, kernel = self._asked.get(view.kernel, ()), view.trace.kernels[view.kernel]
        self._queue += asked
        self._near.update(asked, kernel.touched)
        for tensor in kernel.tensors:
            if tensor in self._queue:
                self._queue.remove(tensor)
                yield Fetch(tensor)
        yield from self._admitted(view)

    def on_kernel_end(self, view: PolicyView) -> Iterator[Move]:
        """Let tensors leave; wait until enough has left for the next kernel."""
        for tensor in self._left.get(view.kernel, ()):
            self._leaving[tensor] = self._tiers[tensor]
            yield Evict(tensor, self._tiers[tensor].name)
        following = view.trace.kernels[(view.kernel + 1) % len(view.trace.kernels)]
        missing = sum(view.size_bytes(one) - view.resident_bytes(one) for one in following.tensors)
        if missing <= view.free_bytes:
            return
        for tensor in [one for one in self._leaving if not view.in_transfer_bytes(one)]:
            del self._leaving[tensor]
        if awaited := first_gone(view, self._leaving, missing - view.free_bytes):
            yield Await(awaited)

    def choose_victims(self, view: PolicyView) -> list[int]:
        """Return what is used last first."""
        there = sorted(filter(view.resident_bytes, self._near))
        self._near = {*there, *self._queue, *filter(view.in_transfer_bytes, self._near), *self._again}
        needed = set(filter(view.is_needed, view.trace.kernels[view.kernel].touched))
        return sorted(filterfalse(needed.__contains__, there), key=view.next_use, reverse=True)

    def _admitted(self, view: PolicyView) -> Iterator[Move]:
        """Yield fetches of the first in the queue, as long as they have room."""
        room = view.free_bytes - self._ahead[view.kernel]
        for tensor in list(self._coming):
            under_way = view.in_transfer_bytes(tensor)
            room -= under_way
            if not under_way:
                del self._coming[tensor]
        while self._queue:
            size = view.size_bytes(self._queue[0]) - view.resident_bytes(self._queue[0])
            if size > room:
                return
            tensor = self._queue.popleft()
            room -= size
            self._coming[tensor] = None
            yield Fetch(tensor)
