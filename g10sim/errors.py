"""Errors a user can meet. Each message names the place, what was found and what is allowed."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from sysconfig import get_path
from typing import Self

from g10sim.text import printable

_MOST_CHARACTERS = 1_500
_MOST_FRAMES = 3
_PACKAGE = str(Path(__file__).parent)


class G10SimError(Exception):
    """Base of every error that g10sim raises on purpose.

    Its text is one line of printable characters, whatever was found: others are shown as escapes, and the
    middle of a very long line is left out.
    """

    @classmethod
    def at(cls, place: object, found: object, allowed: object) -> Self:
        """Make the error for a place, with what was found there and what is allowed."""
        return cls(f"{place}: found {found}; allowed: {allowed}")

    def __str__(self) -> str:
        """Return the message with unprintable characters escaped."""
        text = printable(super().__str__().translate({ord(c): " " for c in "\n\r\t"}))
        half = _MOST_CHARACTERS // 2
        return text if len(text) <= _MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


class ConfigError(G10SimError, ValueError):
    """A run configuration, system description or command-line option is wrong."""


def all_of(errors: Sequence[ConfigError]) -> ConfigError:
    """Return the first of errors that were found together, with the others as its notes (PEP 678)."""
    first, *others = errors
    for error in others:
        for text in (str(error), *notes_of(error)):
            if text not in (str(first), *notes_of(first)):
                first.add_note(text)
    return first


def notes_of(error: BaseException) -> tuple[str, ...]:
    """Return the notes of an exception."""
    return tuple(getattr(error, "__notes__", ()))


class TraceError(G10SimError, ValueError):
    """A trace file is unreadable or breaks a structural rule."""


class PlanError(G10SimError, ValueError):
    """A migration plan is unreadable or does not fit its trace."""


class PolicyError(G10SimError):
    """A policy could not be found, raised, or asked for something illegal."""


class UnsupportedError(G10SimError):
    """A policy cannot run this workload on this system, or none can (a result, not a failure)."""


class CapacityError(UnsupportedError):
    """The workload cannot run on the system at all, whatever the policy does."""


class ExecutionError(G10SimError, RuntimeError):
    """A step is not that of its trace, or a move cannot be carried out on the device."""


def own_lines(error: BaseException) -> str:
    """Say where in a plug-in's own code an exception came from, the place itself first; or nothing."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    places = [f"{frame.filename}, line {frame.lineno}, in {frame.name}" for frame in frames[-_MOST_FRAMES:]]
    return f" ({'; from '.join(reversed(places))})" if places else ""


def is_raised_by_plug_in(error: BaseException) -> bool:
    """Return whether code of a plug-in raised an exception itself. An interruption by the user is not one."""
    if isinstance(error, Exception):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1].line or "" if frames else ""
    says_so = "raise" in last or "exit" in last
    return bool(own_lines(error)) and (says_so or not isinstance(error, KeyboardInterrupt))


def is_own(file: str) -> bool:
    """Return whether code belongs to a plug-in: it is neither g10sim's, nor that of a library."""
    return not file.startswith((_PACKAGE, get_path("stdlib"), "<")) and "site-packages" not in file


class InvariantError(G10SimError):
    """A simulator invariant does not hold: a defect of g10sim, never of its input."""
