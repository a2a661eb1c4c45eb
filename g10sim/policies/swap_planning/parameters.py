"""Checks of policies' parameters: ValueError with the parameter, what was found, and what is allowed."""

from __future__ import annotations

from g10sim.units import parse_bytes


def check_flag(parameter: str, value: object) -> None:
    """Check a parameter that is true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{parameter}: found {value!r}; allowed: true, false")


def check_number(parameter: str, value: object, largest: float) -> None:
    """Check a number from 0 to ``largest`` (which may be infinite)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= largest:
        allowed = "a number from 0" + (f" to {largest}" if largest != float("inf") else "")
        raise ValueError(f"{parameter}: found {value!r}; allowed: {allowed}")


def parsed_bytes(parameter: str, value: str, *others: str) -> int:
    """Return a size in bytes from text such as ``20 GiB``; ``others`` are also allowed, to say so."""
    try:
        return parse_bytes(value)
    except ValueError as error:
        also = "".join(f", or {other}" for other in others)
        raise ValueError(f"{parameter}: {error}{also}") from None
