"""The moves of a policy's simulation as a plan: the planned ones, and those decided on while kernels ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from g10sim.api import Result, simulate
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.interface.moves import Evict, Move
from g10sim.policies.interface.observed import observed
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy, PolicyView
from g10sim.sim.hooks import moves_of, plan_of, plans_of
from g10sim.trace.model import Trace

BEHAVIOUR = BehaviourSpec(addresses="own")
"""Behaviour of a device: no tensor has the address of another."""


def simulated_plan(
    policy: Policy, trace: Trace, system: SystemSpec, **options: Any
) -> tuple[MigrationPlan, Result]:
    """Simulate a policy until its iterations repeat, and return the moves of the last one, and the result.

    What it decides on at the end of a kernel comes before the next one. ``options`` are those of
    ``g10sim.api.simulate``. Raises errors of ``g10sim.errors``.
    """
    noted = _Noted()
    result = simulate(trace, system, observed(policy, noted.listen), compat=BEHAVIOUR, **options)
    return noted.last_iteration(policy.name), result


@dataclass
class _Noted:
    """Hears a policy's answers; keeps the moves of the latest iteration, with tensors as in its trace.

    ``starts`` were decided on at the start of their kernel, ``ends`` before that.
    """

    plan: MigrationPlan | None = None
    iteration: int = -1
    starts: list[Planned] = field(default_factory=list)
    ends: list[Planned] = field(default_factory=list)

    def listen(self, hook: str, given: tuple[Any, ...], answer: Any) -> Any:
        """Note the answer of a hook, and return it."""
        if hook == "plan":
            (made,) = plans_of(answer, 1)
            self._keep(made, given[0].jobs[0].trace)
            return (made,)
        if hook == "on_iteration_start":
            answer = plan_of(answer)
            if answer is not None:
                self._keep(answer, given[0].trace)
        elif hook != "choose_victims":
            answer = moves_of(answer)
            self._note(answer, given[0], at_end=hook == "on_kernel_end")
        return answer

    def _keep(self, plan: MigrationPlan | None, trace: Trace) -> None:
        self.plan = plan.with_ids(trace.given_ids) if plan and trace.given_ids else plan

    def _note(self, moves: Iterable[Move], view: PolicyView, *, at_end: bool) -> None:
        if view.iteration != self.iteration:
            self.iteration, self.starts, self.ends = view.iteration, [], []
        noted = self.ends if at_end else self.starts
        trace, upcoming = view.trace, view.kernel + at_end
        needed = trace.kernels[upcoming].tensors if upcoming < len(trace.kernels) else ()
        for move in moves:
            # An eviction of what the next kernel needs is called off.
            if not (at_end and isinstance(move, Evict) and move.until is None and move.tensor in needed):
                given = move.with_ids(trace.given_ids) if trace.given_ids else move
                noted.append(Planned(upcoming, given))

    def last_iteration(self, planner: str) -> MigrationPlan:
        """Return the plan of the latest iteration, and what was decided on in it."""
        planned = self.plan.moves if self.plan else ()
        return MigrationPlan.ordered((*self.ends, *planned, *self.starts), planner)
