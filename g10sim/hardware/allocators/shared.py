"""One job's addresses over the pages of a GPU that other jobs use, too."""

from __future__ import annotations

from g10sim.errors import InvariantError
from g10sim.hardware.allocators.interface import Allocator
from g10sim.hardware.placement import Block, FitRule
from g10sim.hardware.shared import Frames


class SharedSpace:
    """Addresses that belong to one job, as those of a process do, for pages that all jobs of a GPU take from.

    Blocks are consecutive in the job's addresses; a block needs as many free pages of the GPU, wherever.
    """

    def __init__(self, addresses: Allocator, frames: Frames) -> None:
        self._addresses, self._frames = addresses, frames
        self.capacity_pages = addresses.capacity_pages

    def __contains__(self, owner: int) -> bool:
        """Whether an owner has a block."""
        return owner in self._addresses

    @property
    def used_pages(self) -> int:
        """Pages that owners of this job have."""
        return self._addresses.used_pages

    @property
    def free_pages(self) -> int:
        """Pages of the GPU that no job has."""
        return self._frames.free

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest block that could be allocated."""
        return min(self._addresses.largest_hole_pages, self._frames.free)

    @property
    def reserved_pages(self) -> int:
        """Addresses, in pages, that some block has covered since ``restart``."""
        return self._addresses.reserved_pages

    @property
    def blocks(self) -> dict[int, Block]:
        """Block of every owner, by address."""
        return self._addresses.blocks

    def allocate(self, owner: int, pages: int, rule: FitRule) -> bool:
        """Give an owner a block where ``rule`` says; False where pages or addresses are short.

        Raises InvariantError when the owner has a block, or the rule chose addresses that are not free.
        """
        if pages > self._frames.free or not self._addresses.allocate(owner, pages, rule):
            return False
        self._frames.free -= pages
        self._frames.note_peak()
        return True

    def release(self, owner: int) -> None:
        """Take an owner's block back, if it has one."""
        before = self._addresses.used_pages
        self._addresses.release(owner)
        self._frames.free += before - self._addresses.used_pages

    def restart(self) -> None:
        """Count ``reserved_pages`` from what is in use now."""
        self._addresses.restart()

    def check(self) -> None:
        """Check the job's blocks, and that all jobs together fit. Raises InvariantError."""
        self._addresses.check()
        if not self.used_pages <= self._frames.used <= self._frames.capacity_pages:
            used, capacity = self._frames.used, self._frames.capacity_pages
            raise InvariantError(f"{used} of {capacity} pages are in use, {self.used_pages} by one job")
