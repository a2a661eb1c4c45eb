"""Collectives of one job, and transfers with other stages: launched in order, they run next to kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeAlias

from simpy import Event

from g10sim.errors import InvariantError
from g10sim.records import BesideRecord
from g10sim.sim.beside.peers import Peers
from g10sim.sim.context import Claims, JobContext
from g10sim.sim.fabric import Process
from g10sim.sim.stages.working_set import endless_wait
from g10sim.trace.model import Kernel

Release: TypeAlias = Callable[[int, Claims], None]
"""Frees what dies with a kernel and is not claimed."""
MakeRoom: TypeAlias = Callable[[], None] | None
"""Lets the policy act where nothing under way frees memory, if it can."""


class Launched(NamedTuple):
    """A kernel that was launched: its ``tensors`` come ``after`` some events, until it is ``ready``."""

    kernel: Kernel
    tensors: frozenset[int]
    after: tuple[Event, ...]
    ready: Event
    ended: Event


class Launches:
    """Kernels of one job that were launched and have not ended, in order.

    What moves ask for meanwhile of tensors in ``claims`` is done when they have ended. ``release`` frees what
    dies with a kernel. Those that have ended are added to ``records``, if somebody asked for kernels.
    """

    def __init__(
        self, context: JobContext, claims: Claims, release: Release, records: list[BesideRecord]
    ) -> None:
        self._number, self._gpu, self._memory = context.number, context.gpu, context.memory
        self._fabric, self._keeps = context.fabric, context.machine.recorder.wants_kernels
        self._records = records
        self.claims, self._release = claims, release
        self._pending: list[Launched] = []

    def state(self) -> tuple[int, ...]:
        """Return the kernels."""
        return tuple(launched.kernel.id for launched in self._pending)

    def blocker(self, kernel: Kernel) -> Launched | None:
        """Return the last one under way that is a kernel, or uses a tensor of it, if there is any."""
        for launched in reversed(self._pending):
            if launched.kernel.id == kernel.id or not launched.tensors.isdisjoint(kernel.tensors):
                return launched
        return None

    def demand(self) -> None:
        """Let those that lack only data or room have them before all else: the job waits."""

    def drain(self) -> Process[None]:
        """SimPy process: wait until all have ended."""
        while self._pending:
            self.demand()
            yield self._pending[-1].ended

    def ends_of(self, tensors: Collection[int]) -> tuple[Event, ...]:
        """Return the ends of those that use any of some tensors."""
        return tuple(one.ended for one in self._pending if not one.tensors.isdisjoint(tensors))

    def _ended(self, iteration: int, launched: Launched, launch: int, start: int) -> None:
        """Release what died with a kernel, and do what was asked for meanwhile of its tensors.

        When it was launched, began and has ended is kept if somebody asked for it.
        """
        if self._keeps:
            facts = self._number, self._gpu, iteration, launched.kernel.id
            self._records.append(BesideRecord(*facts, launch, start, self._fabric.clock.cycle))
        with self._fabric.alter(self._number):
            self._pending.remove(launched)
            due = self.claims.give_back(launched.kernel.touched)
            self._release(launched.kernel.id, self.claims)
            for operation in due:
                operation()


class Collectives(Launches):
    """All-gathers and reduce-scatters of one job, and what it sends to other stages and receives from them.

    Each brings its tensors to the GPU, and maps those without contents. It begins when all that take part
    have theirs, and ends when all bytes have arrived.
    """

    def __init__(self, context: JobContext, release: Release, make_room: MakeRoom) -> None:
        """``make_room`` is asked for room when the job waits and a tensor finds none."""
        super().__init__(context, context.sending, release, context.machine.recorder.collectives)
        self._peers, self._make_room = context.peers, make_room
        self._is_awaited = False

    def demand(self) -> None:
        """Let those that lack only data or room have them before all else: the job waits."""
        waiting = [one for one in self._pending if not one.ready.triggered]
        begun = [one.kernel.tensors for one in waiting if all(event.triggered for event in one.after)]
        was_awaited, self._is_awaited = self._is_awaited, bool(begun)
        if begun or was_awaited:
            with self._fabric.alter(self._number):
                self._memory.hold(frozenset(chain.from_iterable(begun)))

    def go_on(self) -> None:
        """Note that the job waits for none of them any more."""
        self._is_awaited = False

    def launch(self, iteration: int, kernel: Kernel, after: tuple[Event, ...]) -> None:
        """Let a collective's tensors come to the GPU ``after`` some events, and let it begin then."""
        peers = self._peers
        if peers is None:
            raise InvariantError(f"kernel {kernel.id} ({kernel.name}) has nobody to send to or receive from")
        clock = self._fabric.clock
        launched = Launched(kernel, frozenset(kernel.tensors), after, clock.event(), clock.event())
        self.claims.take(kernel.tensors)
        self._pending.append(launched)
        if not after:
            for tensor in kernel.tensors:
                self._memory.cancel_eviction(tensor)
            self._bring(kernel)
        clock.process(self._run(iteration, launched, peers))

    def _run(self, iteration: int, launched: Launched, peers: Peers) -> Process[None]:
        """SimPy process: one collective."""
        kernel, launch = launched.kernel, self._fabric.clock.cycle
        yield from launched.after
        if not self._bring(kernel):
            waits = partial(self._describe_wait, kernel)
            yield self._fabric.until(partial(self._bring, kernel), waits, self._number)
        launched.ready.succeed()
        if self._is_awaited:
            self.demand()
        start: int = yield peers.join(iteration, kernel)
        self._ended(iteration, launched, launch, start)
        launched.ended.succeed()

    def _bring(self, kernel: Kernel) -> bool:
        """Ask for what of a collective's tensors is not on its way to the GPU; True if all is there."""
        memory = self._memory
        missing = [tensor for tensor in kernel.tensors if memory.idle[tensor] < memory.sizes[tensor]]
        asked = [t for t in missing if memory.idle[t] + memory.moving[t] < memory.sizes[t]]
        if asked:
            with self._fabric.alter(self._number):
                for tensor in asked:
                    memory.request_prefetch(tensor)
        if missing and self._is_awaited and self._make_room is not None:
            with self._fabric.alter(self._number):
                self._make_room()
        return not missing

    def _describe_wait(self, kernel: Kernel) -> str:
        memory = self._memory
        missing = sum(memory.sizes[tensor] - memory.idle[tensor] for tensor in kernel.tensors)
        return endless_wait(memory, kernel, missing, ", a collective,", " on the GPU")
