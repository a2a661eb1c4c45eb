"""Text that others wrote, made harmless where it is shown: in messages, on terminals, in spreadsheets."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

_SHOWN_CHARACTERS = 60
_FORMULA_STARTS = ("=", "+", "-", "@")


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


def inert(value: object) -> object:
    """Return a value for a cell of a spreadsheet: a text that it would compute gets an apostrophe in front.

    Unprintable characters are written as escapes. Numbers stay as they are, also those written as text.
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    try:
        return f"'{text}" if text.startswith(_FORMULA_STARTS) and not isfinite(float(text)) else text
    except ValueError:
        return f"'{text}"
