"""What contiguous GPU memory asks of an allocator."""

from __future__ import annotations

from typing import Protocol

from g10sim.errors import InvariantError
from g10sim.hardware.placement import Block, FitRule


class Allocator(Protocol):
    """Gives owners (tensors) blocks of a memory; everything is counted in pages."""

    capacity_pages: int

    def __contains__(self, owner: int) -> bool:
        """Whether an owner has a block."""
        ...

    @property
    def used_pages(self) -> int:
        """Pages that owners asked for and have."""
        ...

    @property
    def free_pages(self) -> int:
        """Pages that are in nobody's block."""
        ...

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest request that would be granted now."""
        ...

    @property
    def reserved_pages(self) -> int:
        """Pages that the allocator has needed at some time since ``restart``."""
        ...

    @property
    def blocks(self) -> dict[int, Block]:
        """Block of every owner, by address."""
        ...

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block where ``rule`` says; False where there is no room.

        Raises InvariantError when the owner has a block, or the rule chose pages that are not free.
        """
        ...

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one."""
        ...

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        ...

    def check(self) -> None:
        """Check that blocks and holes tile the memory and no two holes touch. Raises InvariantError."""
        ...


class BlockTable:
    """Which owner has which block."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def __contains__(self, owner: int) -> bool:
        return owner in self._blocks

    @property
    def blocks(self) -> dict[int, Block]:
        """Block of every owner, by address."""
        return dict(sorted(self._blocks.items(), key=lambda item: item[1].start))

    def _refuse_second(self, owner: int) -> None:
        """Raise InvariantError when an owner has a block."""
        if owner in self._blocks:
            raise InvariantError(f"owner {owner} has a block already")
