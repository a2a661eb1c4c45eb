"""Victims on a full GPU: the least recent pages, unless the policy names others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from operator import attrgetter

from g10sim.errors import PolicyError
from g10sim.hardware.memory import Residency
from g10sim.hardware.runs import Run
from g10sim.sim.context import JobContext
from g10sim.sim.hooks import place_of
from g10sim.sim.moves.reactions import Reactions
from g10sim.trace.repetition import each


class RecencyVictims:
    """Oldest pages first; prefetches spare protected tensors, and the running kernel's where pinned."""

    asks_policy = False

    def __init__(self, context: JobContext, dropped: Container[int]) -> None:
        behaviour, addresses, policy = context.behaviour, context.addresses, context.policy
        self._addresses, self._memory, self._dropped = addresses, context.memory, dropped
        self._pinned = behaviour.running_tensors == "pinned"
        released = behaviour.dead_tensors == "released" and not addresses.are_shared
        self._drops_dead = policy.requirements.drops_dead_tensors or released

    def restart(self) -> None:
        """Forget earlier choices: a kernel starts."""

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room next, or None."""
        if not demanded and memory.protected:
            return memory.recency.scan_outside(memory.protected)
        run = memory.recency.oldest()
        if self._pinned and run is not None and run.tensor in memory.needed:
            return memory.recency.oldest_outside(memory.needed)
        return run

    def upcoming(self, memory: Residency, demanded: bool) -> Iterable[Run]:
        """Return the runs that make room one after another, as far as they are known already."""
        if not demanded and memory.protected:
            return memory.recency.scan_ahead(memory.protected)
        return memory.recency.oldest_ahead(memory.needed if self._pinned else ())

    def spares(self, coming: int, place: int) -> bool:
        """Return whether two ranges are one, or of one tensor that is alive."""
        addresses = self._addresses
        if coming == place:
            return True
        return addresses.tensor_at(coming) == addresses.tensor_at(place) and not addresses.is_dead(place)

    def is_worthless(self, place: int) -> bool:
        """Return whether what lies at a range is dead, or not computed yet, and is not written out."""
        if self._drops_dead and self._addresses.is_dead(place):
            return True
        return place in self._memory.discarded or place in self._dropped


class NominatedVictims(RecencyVictims):
    """Pages of the tensors that a policy names, in its order; recency once it names none.

    Discarded pages go before all of them.
    """

    asks_policy = True

    def __init__(self, context: JobContext, dropped: Container[int], reactions: Reactions) -> None:
        super().__init__(context, dropped)
        policy, self._view, self._nominate = context.policy, reactions.view, reactions.nominate
        self._policy, self._place = policy.name, place_of(policy, "choose_victims")
        self._names = each(context.job.trace.tensors, attrgetter("name"))
        self._waiting: list[int] = []
        self._places: list[int] = []
        self._current: Run | None = None

    def restart(self) -> None:
        """Ask the policy again when the next victim is needed."""
        self._waiting, self._places = [], []
        self._current = None

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room next, or None."""
        oldest = memory.recency.oldest() if memory.discarded else None
        if oldest is not None and oldest.tensor in memory.discarded:
            return oldest
        for attempt in range(2):
            run = self._next(memory)
            if run is not None:
                return run
            if attempt == 0:
                self._waiting = list(self._nominate())[::-1]
        return super().choose(memory, demanded)

    def upcoming(self, memory: Residency, demanded: bool) -> Iterable[Run]:
        """Return nothing: the policy is asked first."""
        return ()

    def _next(self, memory: Residency) -> Run | None:
        if self._current is not None and self._current.count:
            return self._current
        while self._places or self._waiting:
            if not self._places:
                self._places = list(self._named(self._waiting.pop()))[::-1]
                continue
            self._current = memory.recency.oldest_of(self._places.pop())
            if self._current is not None:
                return self._current
        return None

    def _named(self, tensor: object) -> Sequence[int]:
        """Return the ranges of a tensor that the policy names. Raises PolicyError."""
        where, count = f"policy '{self._policy}', kernel {self._view.kernel}: victim", len(self._names)
        if type(tensor) is not int or not 0 <= tensor < count:
            kind = "" if type(tensor) is int else ", as int"
            raise PolicyError(
                f"{where} {tensor!r} is no tensor of the trace; allowed: 0 to {count - 1}{kind}{self._place}"
            )
        if self._view.is_needed(tensor):
            raise PolicyError(
                f"{where} '{self._names[tensor]}' is in the running kernel's working set; "
                f"allowed: tensors that it does not need{self._place}"
            )
        return self._addresses.held(tensor)
