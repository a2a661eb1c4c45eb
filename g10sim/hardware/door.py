"""The one way into memory: it may be changed only while its door is open."""

from __future__ import annotations

from g10sim.errors import InvariantError


class Door:
    """Says whether memory may be changed now, and counts changes; by itself, a memory's door stands open."""

    __slots__ = ("changes", "is_open")

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.changes = 0

    def enter(self) -> None:
        """Count a change. Raises InvariantError while the door is closed."""
        if not self.is_open:
            raise InvariantError("memory was changed outside Fabric.alter()")
        self.changes += 1
