"""Queues of pages in transfer, and counts of those that have crossed a link."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from g10sim.hardware.runs import Run


@dataclass(slots=True)
class Traffic:
    """Pages that crossed a GPU's link, by the place at the other end, and demanded pages.

    In bytes, what kernels read and wrote where it lies.
    """

    moved_in: list[int]
    moved_out: list[int]
    faults: int = 0
    read_in_place: int = 0
    written_in_place: int = 0

    def snapshot(self) -> Traffic:
        """Return the counts so far."""
        return replace(self, moved_in=self.moved_in.copy(), moved_out=self.moved_out.copy())


class Queues:
    """Pages in transfer, first come first served: what is to happen to them, and where they lie or go.

    ``fault`` (demanded), ``prefetch`` and ``evict`` have one queue for each place, the GPU's own unused.
    """

    __slots__ = ("all", "evict", "fault", "prefetch")

    def __init__(self, places: int) -> None:
        self.fault, self.prefetch, self.evict = (tuple(deque[Run]() for _ in range(places)) for _ in range(3))
        self.all = (*self.prefetch, *self.evict, *self.fault)

    @property
    def faulting(self) -> bool:
        """Tell whether any demanded page has not arrived."""
        return any(self.fault)

    @property
    def busy(self) -> bool:
        """Tell whether anything is in transfer."""
        return any(self.all)

    @property
    def count(self) -> int:
        """Number of queues with anything in them."""
        return sum(map(bool, self.all))
