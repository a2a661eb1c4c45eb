"""Named things that outsiders can add to: look up by name, with the choices in every refusal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


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


def register_class(known: dict[str, Any], new: Any, kind: str, kinds: str, error: type[Exception]) -> None:
    """Add a class under its attribute ``name``; a class that is defined again replaces its former self.

    Raises ``error`` when another class already has the name, or it has none.
    """
    if not new.name:
        raise error(f"{kind} class {new.__module__}:{new.__name__} has no name")
    other = known.get(new.name, new)
    if (other.__module__, other.__qualname__) != (new.__module__, new.__qualname__):
        raise error(
            f"two {kinds} are called '{new.name}': {other.__module__}:{other.__name__} and "
            f"{new.__module__}:{new.__name__}"
        )
    known[new.name] = new
