"""Forms of objects at a prompt and in a notebook: a line, or a small table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_BINARY_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_LONGEST = 60


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


class Displayed:
    """Base of objects that show some facts about them instead of all that they hold."""

    def display(self) -> Mapping[str, str]:
        """Return the facts by name, the most important first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Write the facts in a line."""
        facts = ", ".join(f"{name}: {_short(text)}" for name, text in self.display().items())
        return f"<{type(self).__name__} {facts}>"

    def __str__(self) -> str:
        """Write the facts in a line."""
        return repr(self)

    def _repr_html_(self) -> str:
        """Write the facts as a table for notebooks."""
        facts = ((escape(name), escape(_short(text))) for name, text in self.display().items())
        rows = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in facts)
        return f"<table>{rows}</table>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
