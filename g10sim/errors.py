"""Errors a user can meet, and their words: a message names the place, what was found and what is allowed."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from sysconfig import get_path
from typing import Self

_MOST_CHARACTERS = 1_500
_MOST_FRAMES = 3
_SHOWN_CHARACTERS = 60
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


def is_bundled(module: str) -> bool:
    """Return whether a module comes with g10sim, by its name."""
    return module.startswith("g10sim.")


class InvariantError(G10SimError):
    """A simulator invariant does not hold: a defect of g10sim, never of its input."""


def shown(value: object, longest: int = _SHOWN_CHARACTERS) -> str:
    """Return a found value for a message, shortened."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, lists in lists in lists
        text = f"<{type(value).__name__}>"
    return text if len(text) <= longest else text[: longest - 3] + "..."


def few(names: Iterable[str], most: int) -> str:
    """Join names, the first ones and how many more there are where these are more than ``most``."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def printable(text: str) -> str:
    """Return a text with unprintable characters (line ends and terminal controls, too) as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """Return a hint such as ``" (did you mean 'g10'?)"``, or nothing when no choice is close.

    ``cutoff`` is the least share of letters in common (``difflib``): higher where choices are many.
    """
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return f" (did you mean '{close[0]}'?)" if close else ""


def as_spelled(name: str, choices: Iterable[str]) -> str:
    """Return the choice that differs from a name in capitals only; the name itself where there is none."""
    return next((choice for choice in choices if choice.casefold() == name.casefold()), name)


def choices_text(choices: Iterable[str]) -> str:
    """Write choices for an error message, sorted."""
    return ", ".join(sorted(choices))


def not_found(name: object, choices: Iterable[str]) -> str:
    """Write the end of an error message about an unknown name: a hint and the choices."""
    known = list(choices)
    return f"{nearest(str(name), known)}; allowed: {choices_text(known)}"
