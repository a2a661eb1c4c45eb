"""Named things that outsiders can add to: look up by name, with the choices in every refusal."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return a hint such as ``" (did you mean 'g10'?)"``, or nothing when no choice is close."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" (did you mean '{close[0]}'?)" if close else ""


def choices_text(choices: Iterable[str]) -> str:
    """Write choices for an error message, sorted."""
    return ", ".join(sorted(choices))
