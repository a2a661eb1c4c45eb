"""Answers of a policy while kernels run: its hooks are asked, and what they ask for is carried out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from g10sim.errors import PolicyError
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.policy import Policy
from g10sim.sim.hooks import Answer, asked, moves_of, place_of, plan_of, truth_of, victims_of
from g10sim.sim.moves.migrator import Migrator
from g10sim.sim.view import View


class Reactions:
    """Hooks of one job's policy; those that it does not define are never asked."""

    def __init__(self, policy: Policy, view: View, migrator: Migrator) -> None:
        self._policy, self.view, self._migrator = policy, view, migrator

    def has(self, hook: str) -> bool:
        """Return whether the policy defines a hook."""
        return getattr(type(self._policy), hook) is not getattr(Policy, hook)

    def react(self, hook: str) -> None:
        """Carry out what a hook answers with. Raises PolicyError for what is not allowed."""
        ask: Callable[[View], Iterable[Move]] = getattr(self._policy, hook)
        moves = self._asked(hook, lambda: moves_of(ask(self.view)))
        try:
            self._migrator.perform(moves, are_planned=False)
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
