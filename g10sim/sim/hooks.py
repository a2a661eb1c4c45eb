"""Calls of a policy's hooks: whatever goes wrong in one is the policy's error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import isfunction, signature
from itertools import pairwise
from traceback import walk_tb
from typing import TypeVar

from g10sim.errors import G10SimError, PolicyError, is_bundled, is_own, not_found, own_lines
from g10sim.policies.interface.contract import Move
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.policy import Policy, PolicyView

Answer = TypeVar("Answer")
_Item = TypeVar("_Item")
_PLANNING = ("settle", "plan", "on_iteration_start")
"""Hooks that answer with plans, or choose what to plan with."""
MOVES = "moves, such as Fetch(tensor) and Evict(tensor)"
_CALL = " argument"
"""Part of what Python says about a call with other arguments than a function takes."""


@dataclass
class TimeInHooks:
    """Seconds that passed in hooks of policies; what a hook asks of other hooks counts once.

    ``planning_cpu_seconds`` is the CPU time in those that answer with plans.
    """

    seconds: float = 0.0
    planning_cpu_seconds: float = 0.0
    is_running: bool = False

    def measured(self, hook: str, ask: Callable[[], Answer]) -> Answer:
        """Return what a hook answers, and count the time that it takes."""
        if self.is_running:
            return ask()
        plans = hook in _PLANNING
        self.is_running, start, cpu = True, time.perf_counter(), time.process_time() if plans else 0.0
        try:
            return ask()
        finally:
            self.is_running = False
            self.seconds += time.perf_counter() - start
            if plans:
                self.planning_cpu_seconds += time.process_time() - cpu


_MEASURED_BY: ContextVar[TimeInHooks | None] = ContextVar("time in hooks", default=None)


@contextmanager
def time_in_hooks(total: TimeInHooks) -> Iterator[None]:
    """Add the time in hooks until the end of the block."""
    before = _MEASURED_BY.set(total)
    try:
        yield
    finally:
        _MEASURED_BY.reset(before)


def asked(policy: Policy, hook: str, ask: Callable[[], Answer], kernel: int | None = None) -> Answer:
    """Return what a hook answers.

    Raises PolicyError for one that fails: with policy, kernel, hook, and the last lines of the policy's code.
    """
    watch = _MEASURED_BY.get()
    try:
        return ask() if watch is None else watch.measured(hook, ask)
    except G10SimError:
        raise
    except (Exception, SystemExit) as error:
        where = f"policy '{policy.name}'" + ("" if kernel is None else f", kernel {kernel}")
        said = f"{type(error).__name__}: {error}{_advice(policy, hook, error)}"
        raise PolicyError(f"{where}: {hook} raised {said}") from error


def place_of(policy: Policy, hook: str) -> str:
    """Say where the plug-in's own code for a hook begins; nothing for a hook of g10sim's."""
    found = getattr(type(policy), hook, None)
    code = getattr(getattr(found, "fget", found), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code and is_own(code.co_filename) else ""


def _advice(policy: Policy, hook: str, error: BaseException) -> str:
    """Say what is allowed, as far as that is known, and where the plug-in's own code is wrong."""
    lines = own_lines(error)
    if lines:
        return f"{_meant(error)}{lines}"
    for name in (hook, f"{hook}_job"):
        place = place_of(policy, name)
        if place:
            allowed = f"; allowed: {name}{signature(getattr(Policy, name))}" if _CALL in str(error) else ""
            return f"{allowed}{place}"
    return ""


def _meant(error: BaseException) -> str:
    """Name the attribute that was meant, or the question of the view and what it is asked with."""
    if isinstance(error, AttributeError) and is_bundled(type(error.obj).__module__):
        return not_found(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
    called = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    for caller, code in pairwise(called):
        question = None if code.co_name.startswith("_") else vars(PolicyView).get(code.co_name)
        if is_own(caller.co_filename) and not is_own(code.co_filename) and isfunction(question):
            asked_with = signature(question)
            given = asked_with.replace(parameters=list(asked_with.parameters.values())[1:])
            return f"; allowed: view.{code.co_name}{given}, with the number of a tensor"
    return ""


def moves_of(answer: Iterable[Move] | Move | None) -> tuple[Move, ...]:
    """Return the moves that a hook answers with: some, a single one, or nothing. Raises TypeError."""
    if answer is None:
        return ()
    if isinstance(answer, Move):
        return (answer,)
    return _all_of(answer, MOVES)


def victims_of(answer: Iterable[int] | None) -> tuple[int, ...]:
    """Return the tensors that a hook names: some, or none. Raises TypeError."""
    return () if answer is None else _all_of(answer, "numbers of tensors")


def plans_of(answer: Iterable[MigrationPlan | None], jobs: int) -> tuple[MigrationPlan | None, ...]:
    """Return the plans that a policy answers with, one for each job. Raises TypeError and ValueError."""
    plans = tuple(map(plan_of, _all_of(answer, "one plan or None for each job")))
    if len(plans) != jobs:
        raise ValueError(f"found {len(plans)} plans; allowed: one per job, {jobs}")
    return plans


def plan_of(answer: MigrationPlan | None) -> MigrationPlan | None:
    """Return the plan that a hook answers with. Raises TypeError."""
    if answer is None:
        return answer
    plan = kind_of(answer, MigrationPlan, "a MigrationPlan (see MigrationPlan.ordered), or None")
    for number, entry in enumerate(plan.moves):
        before = plan.moves[max(0, number - 1)]
        if not isinstance(entry, Planned) or not isinstance(entry.move, Move):
            raise TypeError(f"move {number}: found {entry!r}; allowed: Planned(kernel, move)")
        if entry.kernel < before.kernel:
            raise ValueError(
                f"move {number}: found kernel {entry.kernel} after kernel {before.kernel}; allowed: kernels "
                "in ascending order (see MigrationPlan.ordered)"
            )
    return plan


def truth_of(answer: object) -> bool:
    """Return a yes or no that a hook answers with. Raises TypeError."""
    if answer not in (True, False):
        raise TypeError(f"found {answer!r}; allowed: True, False")
    return bool(answer)


def kind_of(answer: object, kind: type[Answer], allowed: str) -> Answer:
    """Return an answer of a kind. Raises TypeError."""
    if not isinstance(answer, kind):
        raise TypeError(f"found {answer!r}; allowed: {allowed}")
    return answer


def _all_of(answer: Iterable[_Item], allowed: str) -> tuple[_Item, ...]:
    if isinstance(answer, tuple):  # as most are: told at once
        return answer
    if not isinstance(answer, Iterable) or isinstance(answer, str):
        raise TypeError(f"found {answer!r}; allowed: {allowed}")
    return tuple(answer)
