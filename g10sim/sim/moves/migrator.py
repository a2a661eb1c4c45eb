"""The only writer of residency between kernels: checks what policies ask for and sets it going."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from simpy import Event

from g10sim.errors import G10SimError, PlanError, PolicyError, own_lines
from g10sim.hardware.gpu_memory.contiguous import Contiguous
from g10sim.hardware.memory import Departure
from g10sim.policies.interface.moves import Evict, Move, eviction_of
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import PolicyView
from g10sim.records import Location
from g10sim.sim.beside.cpu import HostStores
from g10sim.sim.context import Claims, JobContext
from g10sim.sim.fabric import Fabric, Moment, Timer
from g10sim.sim.hooks import MOVES
from g10sim.sim.stages.recomputation import Recomputation
from g10sim.trace.model import Trace


def moves_by_kernel(
    plan: MigrationPlan | None, trace: Trace, tiers: Collection[str]
) -> list[tuple[Planned, ...]]:
    """Group a plan's moves by the kernel that issues them; one group more than there are kernels.

    Raises PlanError for a kernel, tensor or tier that does not exist.
    """
    groups: dict[int, list[Planned]] = {}
    for number, planned in enumerate(plan.moves if plan is not None else ()):
        flaw = planned.flaw(trace, tiers)
        if flaw:
            raise PlanError(f"plan, move {number}: {flaw}")
        groups.setdefault(planned.kernel, []).append(planned)
    return [tuple(groups.get(kernel, ())) for kernel in range(len(trace.kernels) + 1)]


class Migrator:
    """Carries out moves on one job's memory; implements ``g10sim.policies.interface.moves.MoveState``.

    Tensors that kernels on the CPU claim stay in host memory until these have ended; ``stores`` sends them to
    other tiers from there. Those that collectives send stay on the GPU until these have ended. ``dying`` are
    the tensors that die with each kernel.
    """

    def __init__(
        self,
        context: JobContext,
        view: PolicyView,
        recomputation: Recomputation,
        dying: Sequence[Sequence[int]],
        stores: HostStores | None = None,
    ) -> None:
        self.view = view
        self.memory_kind = context.policy.requirements.placement
        self.keeps_needed = context.behaviour.running_tensors == "pinned"
        self._memory, self._addresses = context.memory, context.addresses
        self._policy, self._tiers = context.policy.name, context.machine.tiers
        self._recomputation, self._dying, self._stores = recomputation, dying, stores
        self._claims, self._sending = context.claims, context.sending

    def perform(self, moves: Iterable[Move], *, are_sound: bool = True) -> None:
        """Carry out moves in order: those that ``are_sound``, as of a plan, name what exists.

        Raises PolicyError for an illegal one, and for one of a plug-in that fails.
        """
        kind, trace, tiers = self.memory_kind, self.view.trace, self._tiers
        for move in moves:
            try:
                if isinstance(move, Move) and kind in move.memories:
                    flaw = None if are_sound else move.flaw(trace, tiers)
                    problem = flaw or move.check(self)
                else:
                    problem = self._cannot(move)
                if not problem:
                    move.apply(self)
            except Exception as error:
                lines = own_lines(error)
                if isinstance(error, G10SimError) or not lines:
                    raise
                problem = f"move '{move.name}' raised {type(error).__name__}: {error}{lines}"
            if problem:
                kernel = trace.kernels[self.view.kernel]
                raise PolicyError(f"policy '{self._policy}', kernel {kernel.id} ({kernel.name}): {problem}")

    def _cannot(self, move: object) -> str:
        """Say why something is no move that this kind of memory can do."""
        if not isinstance(move, Move):
            return f"found {move!r}; allowed: {MOVES}"
        found = f"found move '{move.name}' with {self.memory_kind} memory"
        return f"{found}; allowed: with {' or '.join(move.memories)} memory"

    def use_in_place(self, tensor: int, tier: str) -> None:
        """Let the kernel that is about to start use what a tier has of a tensor where it lies."""
        for place in self._addresses.held(tensor):
            self._memory.use_in_place(place, self._tiers[tier])

    def store(self, tensor: int, tier: str, *, is_clean: bool) -> None:
        """Send what lies of a tensor in host memory to another tier, once no kernel on the CPU uses it."""
        if self._stores is not None:
            send = partial(self._stores.start, target=self._tiers[tier], is_clean=is_clean)
            if not self._claims.postpone(tensor, send):
                send(tensor)

    def release(self, tensors: Iterable[int]) -> None:
        """Free dead tensors for good: nothing of them stays queued."""
        for tensor in tensors:
            self._release(self._addresses.held(tensor))

    def release_dying(self, kernel: int, claims: Claims | None = None) -> None:
        """Free the tensors that die with a kernel, unless they are claimed."""
        dying = self._dying[kernel]
        self.release(dying if claims is None else [tensor for tensor in dying if tensor not in claims])

    def release_all(self) -> None:
        """Give up all memory: the job ends."""
        self._release(range(len(self._memory.sizes)))

    def _release(self, places: Iterable[int]) -> None:
        for place in places:
            self._memory.cancel(place)
            self._memory.discard(place, but_for_gpu=False)
            if self._stores is not None:
                self._stores.forget(place)

    def fetch(self, tensor: int) -> None:
        """Queue what is elsewhere to come in, and what has no contents to be allocated."""
        if self._claims.postpone(tensor, self.fetch):
            return
        places = self._addresses.open_to(tensor)
        for place in places:
            self._memory.request_prefetch(place)
        self._memory.reclaim(places)

    def recall(self, tensor: int) -> None:
        """Keep what is still here of a tensor that was to be evicted."""
        if tensor not in self._claims:
            for place in self._addresses.held(tensor):
                self._memory.cancel_eviction(place)

    def discard(self, tensor: int) -> None:
        """Forget a tensor's contents, except for pages in transfer."""
        if self._claims.postpone(tensor, self.discard) or self._sending.postpone(tensor, self.discard):
            return
        for place in self._addresses.held(tensor):
            self._memory.discard(place)

    def await_transfers(self, tensors: frozenset[int] | None, *, evictions: bool, prefetches: bool) -> None:
        """Let the kernel wait for transfers under way of these tensors (None: of all)."""
        places = None if tensors is None else self._addresses.open_to_any(tensors)
        self._memory.await_transfers(places, evictions=evictions, prefetches=prefetches)

    def was_away(self, tensor: int) -> bool:
        """Return whether what is on the GPU of a tensor, or some of it, came from a tier."""
        return any(self._memory.copies[place] != Location.NONE for place in self._addresses.held(tensor))

    def drop_problem(self, tensor: int) -> str:
        """Say why a tensor cannot be computed again before its next use; empty if it can."""
        if self._addresses.are_shared:
            return "has addresses that others use meanwhile; allowed: with requirements.addresses 'own'"
        return self._recomputation.problem(tensor, self._recomputation.next_kernel)

    def evict(self, move: Evict | int, target: str = "host", **options: Any) -> None:
        """Queue what is on the GPU to go to a tier; pages of a dropped tensor are given back."""
        move = eviction_of(move, target, options)
        tensor = move.tensor
        if self._sending.postpone(tensor, partial(self._evict_at_last, move)):
            self._memory.begin_store(tensor)
            return
        if tensor in self._claims:
            return
        if tensor in self._recomputation.dropped:
            self.release((tensor,))
            return
        tier, memory = self._tiers[move.target], self._memory
        pages = None if move.size_bytes is None else move.size_bytes // memory.page_bytes
        for place in self._addresses.held(tensor):
            here = memory.idle[place]
            memory.request_eviction(place, tier, Departure(move.until, move.density, move.is_clean, pages))
            pages = None if pages is None else pages - (here - memory.idle[place])

    def _evict_at_last(self, move: Evict, tensor: int) -> None:
        """Evict a tensor that waited for a collective."""
        self._memory.end_store(tensor)
        self.evict(move)

    def keep_uncompressed(self) -> None:
        """Leave tensors in host memory uncompressed unless compression has begun."""
        if isinstance(self._memory, Contiguous):
            self._memory.drop_compression()

    def drop(self, tensor: int) -> None:
        """Forget a tensor's contents and have it computed again when it is read."""
        self.release((tensor,))
        self._recomputation.drop(tensor)

    def protect(self, tensors: Collection[int]) -> None:
        """Keep prefetches from pushing out tensors until the next kernel starts."""
        running = self._memory.needed if self.keeps_needed else frozenset()
        self._memory.protect(running | self._addresses.open_to_any(tensors))


class DelayedMoves:
    """Keeps a job's planned moves until they are due.

    Where kernels take other times than planned, a move may be due too late: it is dropped once a kernel that
    uses one of its tensors has started.
    """

    def __init__(self, trace: Trace, migrator: Migrator, fabric: Fabric) -> None:
        self._uses, self._kernels = trace.uses, len(trace.kernels)
        self._migrator, self._fabric, self._clock = migrator, fabric, fabric.clock
        self._position = 0
        self._pending: dict[Event, tuple[int, Move]] = {}

    def state(self) -> Hashable:
        """Return the moves that are not due yet, and in how many cycles they are."""
        now = self._clock.cycle
        return tuple((cycle - now, move) for cycle, move in self._pending.values())

    def enter(self, iteration: int, kernel: int) -> None:
        """Note which kernel starts now."""
        self._position = iteration * self._kernels + kernel

    def hold(self, moves: Iterable[Planned]) -> list[Move]:
        """Keep the moves that are due later than at the start of the kernel; return the others."""
        due = []
        for planned in moves:
            if planned.delay_cycles:
                self._set_timer(planned, self._position)
            else:
                due.append(planned.move)
        return due

    def close(self) -> None:
        """Drop all moves that are not due yet: the job ends."""
        self._pending.clear()

    def _set_timer(self, planned: Planned, since: int) -> None:
        def ring(timer: Event) -> None:
            if self._pending.pop(timer, None) is not None and not self._is_void(planned.move, since):
                with self._fabric.alter():
                    self._migrator.perform((planned.move,))

        timer = Timer(self._clock, Moment.KERNELS, planned.delay_cycles, ring)
        self._pending[timer] = self._clock.cycle + planned.delay_cycles, planned.move

    def _is_void(self, move: Move, since: int) -> bool:
        used = (
            self._uses_until(tensor, self._position) > self._uses_until(tensor, since)
            for tensor in move.subjects()
        )
        return any(used) or move.is_moot(self._migrator)

    def _uses_until(self, tensor: int, position: int) -> int:
        """Count the kernels that used a tensor, up to a kernel counted on over all iterations."""
        iteration, kernel = divmod(position, self._kernels)
        return iteration * len(self._uses[tensor]) + bisect_right(self._uses[tensor], kernel)
