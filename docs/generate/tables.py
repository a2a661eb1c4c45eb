"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: columns of names to the left, right-aligned columns of numbers after them."""
    lines = [_line([*names, *numbers]), "|" + "---|" * len(names) + "---:|" * len(numbers)]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"
