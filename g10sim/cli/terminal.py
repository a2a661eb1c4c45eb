"""Consoles that show foreign text without obeying it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from g10sim.text import printable


class SafeConsole(Console):
    """A console that writes unprintable characters of names and messages as escapes.

    A terminal would obey them: clear the screen, change its title, or show text in another order. Names
    between colons stay as they are.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"emoji": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as usual, each piece of text without control characters."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = (printable(line) for line in segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)
