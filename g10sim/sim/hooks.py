"""Calls of a policy's hooks: whatever goes wrong in one is the policy's error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import g10sim
from g10sim.errors import G10SimError, PolicyError
from g10sim.policies.base import Policy
from g10sim.policies.moves import Move

_PACKAGE = str(Path(g10sim.__file__).parent)
_MOST_FRAMES = 3

Answer = TypeVar("Answer")


def asked(policy: Policy, hook: str, ask: Callable[[], Answer], kernel: int | None = None) -> Answer:
    """Return what a hook answers.

    Raises PolicyError for one that fails: with policy, kernel, hook, and the last lines of its own code.
    """
    try:
        return ask()
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
