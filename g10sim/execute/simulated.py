"""The moves of a policy's simulation as a plan: the planned ones, and those decided on while kernels ran."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from g10sim.api import Result, simulate
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.policies.interface.moves import Evict, Move
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy, PolicyView
from g10sim.sim.hooks import moves_of, plan_of, plans_of
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload


def simulated_plan(
    policy: Policy, trace: Trace, system: SystemSpec, behaviour: BehaviourSpec, **options: Any
) -> tuple[MigrationPlan, Result]:
    """Simulate a policy until its iterations repeat, and return the moves of the last one, and the result.

    What it decides on at the end of a kernel comes before the next one. ``options`` are those of
    ``g10sim.api.simulate``. Raises errors of ``g10sim.errors``.
    """
    noted = _Noted(policy)
    result = simulate(trace, system, policy, compat=behaviour, **options)
    return noted.last_iteration(), result


class _Noted:
    """Listens to a policy's hooks; keeps the moves of the latest iteration, with tensors as in its trace."""

    def __init__(self, policy: Policy) -> None:
        self._name = policy.name
        self._plan: MigrationPlan | None = None
        self._iteration, self._moves = -1, list[tuple[int, bool, Move]]()
        plan, replan = policy.plan, policy.on_iteration_start

        def planned(workload: Workload, *others: Any) -> Any:
            answer = plan(workload, *others)
            (made,) = plans_of(answer, 1)
            self._keep(made, workload.jobs[0].trace)
            return answer

        def planned_again(view: PolicyView) -> Any:
            answer = plan_of(replan(view))
            if answer is not None:
                self._keep(answer, view.trace)
            return answer

        vars(policy).update(
            plan=planned,
            on_iteration_start=planned_again,
            on_kernel_start=self._listened(policy.on_kernel_start, at_end=False),
            on_kernel_end=self._listened(policy.on_kernel_end, at_end=True),
        )

    def _keep(self, plan: MigrationPlan | None, trace: Trace) -> None:
        self._plan = plan.with_ids(trace.given_ids) if plan and trace.given_ids else plan

    def _listened(
        self, ask: Callable[[PolicyView], Iterable[Move]], *, at_end: bool
    ) -> Callable[[PolicyView], Iterable[Move]]:
        def asked(view: PolicyView) -> Iterable[Move]:
            moves = list(moves_of(ask(view)))
            if view.iteration != self._iteration:
                self._iteration, self._moves = view.iteration, []
            trace, upcoming = view.trace, view.kernel + at_end
            needed = trace.kernels[upcoming].tensors if upcoming < len(trace.kernels) else ()
            for move in moves:
                # An eviction of what the next kernel needs is called off.
                if not (at_end and isinstance(move, Evict) and move.until is None and move.tensor in needed):
                    given = move.with_ids(trace.given_ids) if trace.given_ids else move
                    self._moves.append((upcoming, not at_end, given))
            return moves

        return asked

    def last_iteration(self) -> MigrationPlan:
        """Return the plan of the latest iteration, and what was decided on in it."""
        ends, starts = (
            [Planned(kernel, move) for kernel, is_start, move in self._moves if is_start == wanted]
            for wanted in (False, True)
        )
        planned = self._plan.moves if self._plan else ()
        return MigrationPlan.ordered((*ends, *planned, *starts), self._name)
