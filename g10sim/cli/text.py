"""How quantities read at the terminal: rounded, for people."""

from __future__ import annotations

_BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def rounded_bytes(size_bytes: int) -> str:
    """Write a size with about three digits in the largest binary unit that fits (``47.8 GiB``)."""
    for factor, unit in _BINARY_UNITS:
        if size_bytes >= factor:
            return f"{_three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def rounded_seconds(seconds: float) -> str:
    """Write a duration with about three digits in the largest unit that fits (``12.3 ms``)."""
    if seconds == 0:
        return "0 s"
    for factor, unit in _TIME_UNITS:
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}"
