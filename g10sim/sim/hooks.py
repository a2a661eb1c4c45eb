"""Calls of a policy's hooks: whatever goes wrong in one is the policy's error."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import g10sim
from g10sim.errors import G10SimError, PolicyError
from g10sim.policies.base import Policy
from g10sim.policies.moves import Move

_PACKAGE = str(Path(g10sim.__file__).parent)
_MOST_FRAMES = 3

Answer = TypeVar("Answer")


@dataclass
class TimeInHooks:
    """Seconds that passed in hooks of policies; what a hook asks of other hooks counts once."""

    seconds: float = 0.0
    is_running: bool = False

    def measured(self, ask: Callable[[], Answer]) -> Answer:
        """Return what a hook answers, and count the time that it takes."""
        if self.is_running:
            return ask()
        self.is_running, start = True, time.perf_counter()
        try:
            return ask()
        finally:
            self.is_running = False
            self.seconds += time.perf_counter() - start


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
        return ask() if watch is None else watch.measured(ask)
    except G10SimError:
        raise
    except Exception as error:
        where = f"policy '{policy.name}'" + ("" if kernel is None else f", kernel {kernel}")
        lines = _own_lines(error)
        raise PolicyError(f"{where}: {hook} raised {type(error).__name__}: {error}{lines}") from error


def moves_of(answer: Iterable[Move] | Move | None) -> tuple[Move, ...]:
    """Return the moves that a hook answers with: some, a single one, or nothing."""
    if answer is None:
        return ()
    return (answer,) if isinstance(answer, Move) else tuple(answer)


def _own_lines(error: Exception) -> str:
    """Say where in the policy's own code an exception came from, the place itself first."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    places = [f"{frame.filename}, line {frame.lineno}, in {frame.name}" for frame in frames[-_MOST_FRAMES:]]
    return f" ({'; from '.join(reversed(places))})" if places else ""


def _is_own(file: str) -> bool:
    """Tell whether code belongs to a plug-in: it is neither g10sim's, nor that of a library."""
    return not file.startswith((_PACKAGE, "<")) and "site-packages" not in file
