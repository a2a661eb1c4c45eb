"""Answers of a policy: what it names before time starts, how it reacts while kernels run, and its victims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from g10sim.config.tiers import Tier
from g10sim.errors import PolicyError, choices_text, is_bundled
from g10sim.hardware.memory import Residency
from g10sim.hardware.runs import Run
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.records import Location
from g10sim.sim.addresses import OwnAddresses
from g10sim.sim.context import JobContext
from g10sim.sim.hooks import Answer, asked, moves_of, place_of, plan_of, truth_of, victims_of
from g10sim.sim.moves.migrator import Migrator
from g10sim.sim.view import View
from g10sim.trace.repetition import each
from g10sim.trace.workload import Job

_Found = TypeVar("_Found", bound=Collection[int])


class NamedTensors:
    """Asks for the tensors of one job, which share addresses with none, and checks the answers."""

    def __init__(self, policy: Policy, number: int, job: Job, addresses: OwnAddresses) -> None:
        self._policy, self._number = policy, number
        self._lasting, self._addresses = job.trace.lasting, addresses

    def pageable(self) -> frozenset[int]:
        """Return the tensors that are not pinned in host memory. Raises PolicyError for unknown ones."""
        return self._found("pageable", lambda: frozenset(self._policy.pageable(self._number)))

    def host_reserved(self) -> int:
        """Return the bytes of host memory that the job keeps reserved. Raises PolicyError for no bytes."""
        found = asked(self._policy, "host_reserved", lambda: self._policy.host_reserved(self._number))
        if type(found) is not int or found < 0:
            raise self._refusal(f"host_reserved: found {found!r}", "an int from 0")
        return found

    def homes(self, tiers: Sequence[Tier]) -> dict[int, Location]:
        """Return where tensors lie before time starts. Raises PolicyError for unknown tensors and tiers."""
        places = {tier.name: tier.place for tier in tiers}
        homes = self._found("homes", lambda: dict(self._policy.homes(self._number)))
        for tensor, tier in homes.items():
            if not self._lasting[tensor]:
                what = f"homes names tensor {tensor}, which is not persistent"
                raise self._refusal(what, "persistent ones")
            if tier not in list(places):  # whatever it is
                raise self._refusal(f"homes names the tier {tier!r}", choices_text(places))
        return {tensor: places[tier] for tensor, tier in homes.items()}

    def _found(self, hook: str, ask: Callable[[], _Found]) -> _Found:
        found = asked(self._policy, hook, ask)
        if found and self._addresses.are_shared:
            allowed = "with requirements.addresses 'own'"
            raise self._refusal(f"{hook} names tensors that share addresses", allowed)
        for tensor in found:
            if type(tensor) is not int or not 0 <= tensor < len(self._lasting):
                raise self._refusal(f"{hook} names tensor {tensor!r}", f"0 to {len(self._lasting) - 1}")
        return found

    def _refusal(self, what: str, allowed: str) -> PolicyError:
        return PolicyError(f"policy '{self._policy.name}': {what}; allowed: {allowed}")


class Reactions:
    """Hooks of one job's policy; those that it does not define are never asked.

    Moves of bundled designs name what exists: that is only looked at if the run ``is_checked``.
    """

    def __init__(self, policy: Policy, view: View, migrator: Migrator, *, is_checked: bool) -> None:
        self._policy, self.view, self._migrator = policy, view, migrator
        self._are_sound = is_bundled(type(policy).__module__) and not is_checked

    def has(self, hook: str) -> bool:
        """Return whether the policy defines a hook."""
        return getattr(type(self._policy), hook) is not getattr(Policy, hook)

    def react(self, hook: str) -> None:
        """Carry out what a hook answers with. Raises PolicyError for what is not allowed."""
        ask: Callable[[View], Iterable[Move]] = getattr(self._policy, hook)
        moves = self._asked(hook, lambda: moves_of(ask(self.view)))
        try:
            self._migrator.perform(moves, are_sound=self._are_sound)
        except PolicyError as error:
            raise PolicyError(f"{error}{place_of(self._policy, hook)}") from error

    def nominate(self) -> Iterable[int]:
        """Return the tensors whose pages the policy wants to go first."""
        return self._asked("choose_victims", lambda: victims_of(self._policy.choose_victims(self.view)))

    def replan(self) -> MigrationPlan | None:
        """Return the plan that replaces the one before, if any."""
        return self._asked("on_iteration_start", lambda: plan_of(self._policy.on_iteration_start(self.view)))

    def state(self) -> tuple[bool, Hashable]:
        """Return whether the policy has settled, and what it has learnt."""
        settled = self._asked("is_steady", lambda: truth_of(self._policy.is_steady(self.view)))
        return settled, self._asked("state", lambda: self._policy.state(self.view))

    def _asked(self, hook: str, ask: Callable[[], Answer]) -> Answer:
        return asked(self._policy, hook, ask, self.view.kernel)


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
        self.restart()

    def restart(self) -> None:
        """Ask the policy again when the next victim is needed."""
        self._runs: Iterator[Run] = iter(())
        self._current: Run | None = None

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room next, or None."""
        oldest = memory.recency.oldest() if memory.discarded else None
        if oldest is not None and oldest.tensor in memory.discarded:
            return oldest
        if self._current is None or not self._current.count:
            self._current = next(self._runs, None)
        if self._current is None:
            self._runs = self._nominated(memory, self._nominate())
            self._current = next(self._runs, None)
        return super().choose(memory, demanded) if self._current is None else self._current

    def upcoming(self, memory: Residency, demanded: bool) -> Iterable[Run]:
        """Return nothing: the policy is asked first."""
        return ()

    def _nominated(self, memory: Residency, tensors: Iterable[int]) -> Iterator[Run]:
        """Yield the oldest run at each range of what the policy names, as each is needed."""
        for tensor in tensors:
            for place in self._named(tensor):
                run = memory.recency.oldest_of(place)
                if run is not None:
                    yield run

    def _named(self, tensor: object) -> Sequence[int]:
        """Return the ranges of a tensor that the policy names. Raises PolicyError."""
        count = len(self._names)
        if type(tensor) is not int or not 0 <= tensor < count:
            kind = "" if type(tensor) is int else ", as int"
            flaw = f"{tensor!r} is no tensor of the trace; allowed: 0 to {count - 1}{kind}"
        elif self._view.is_needed(tensor):
            rule = "is in the running kernel's working set; allowed: tensors that it does not need"
            flaw = f"'{self._names[tensor]}' {rule}"
        else:
            return self._addresses.held(tensor)
        raise PolicyError(f"policy '{self._policy}', kernel {self._view.kernel}: victim {flaw}{self._place}")
