"""Calls of a policy's hooks: whatever goes wrong in one is the policy's error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from typing import TypeVar

from g10sim.errors import G10SimError, PolicyError, is_own, own_lines
from g10sim.policies.base import Policy
from g10sim.policies.moves import Move
from g10sim.policies.plan import MigrationPlan
from g10sim.registry import not_found

Answer = TypeVar("Answer")
_Item = TypeVar("_Item")
_PLANNING = ("settle", "plan", "on_iteration_start")
"""Hooks that answer with plans, or choose what to plan with."""
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
        self.is_running, start, cpu = True, time.perf_counter(), time.process_time()
        try:
            return ask()
        finally:
            self.is_running = False
            self.seconds += time.perf_counter() - start
            if hook in _PLANNING:
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

    Raises PolicyError for one that fails: with policy, kernel, hook, and the last lines of its own code.
    """
    watch = _MEASURED_BY.get()
    try:
        return ask() if watch is None else watch.measured(hook, ask)
    except G10SimError:
        raise
    except Exception as error:
        where = f"policy '{policy.name}'" + ("" if kernel is None else f", kernel {kernel}")
        said = f"{type(error).__name__}: {error}{_advice(policy, hook, error)}"
        raise PolicyError(f"{where}: {hook} raised {said}") from error


def _advice(policy: Policy, hook: str, error: Exception) -> str:
    """Say what is allowed, as far as that is known, and where the plug-in's own code is wrong."""
    lines = own_lines(error)
    if lines:
        return f"{_meant(error)}{lines}"
    for name in (hook, f"{hook}_job"):
        code = getattr(getattr(type(policy), name, None), "__code__", None)
        if code is not None and is_own(code.co_filename):
            allowed = f"; allowed: {name}{signature(getattr(Policy, name))}" if _CALL in str(error) else ""
            return f"{allowed} ({code.co_filename}, line {code.co_firstlineno})"
    return ""


def _meant(error: Exception) -> str:
    """Name the attribute that was meant, where one of this package's objects has none of that name."""
    if not isinstance(error, AttributeError) or not type(error.obj).__module__.startswith("g10sim."):
        return ""
    return not_found(error.name, (name for name in dir(error.obj) if not name.startswith("_")))


def moves_of(answer: Iterable[Move] | Move | None) -> tuple[Move, ...]:
    """Return the moves that a hook answers with: some, a single one, or nothing. Raises TypeError."""
    if answer is None:
        return ()
    if isinstance(answer, Move):
        return (answer,)
    return _all_of(answer, "moves, such as Fetch(tensor) and Evict(tensor)")


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
    if answer is None or isinstance(answer, MigrationPlan):
        return answer
    raise TypeError(f"found {answer!r}; allowed: a MigrationPlan (see MigrationPlan.ordered), or None")


def _all_of(answer: Iterable[_Item], allowed: str) -> tuple[_Item, ...]:
    if not isinstance(answer, Iterable):
        raise TypeError(f"found {answer!r}; allowed: {allowed}")
    return tuple(answer)
