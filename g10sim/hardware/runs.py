"""Runs of interchangeable pages of one tensor, queues of them, and groups that became recent at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final

NO_TENSOR: Final = -1
_GONE: Final = -1


class Run:
    """``count`` pages of one tensor that share a place in a queue or in the eviction order.

    ``rate`` limits how fast a run can be served, in bytes/second; 0 means no limit. It holds for the place
    ``toward`` which it leaves (None: for any). Of runs in eviction orders that share a clock, the one with
    the lower ``stamp`` is older.
    """

    __slots__ = ("count", "rate", "stamp", "tensor", "toward")

    is_empty = False
    """Its pages cross the link, but none of the tensor's changes place."""

    def __init__(self, tensor: int, count: int, rate: int = 0, stamp: int = 0) -> None:
        self.tensor = tensor
        self.count = count
        self.rate = rate
        self.stamp = stamp
        self.toward: Hashable = None

    def entries(self) -> Iterable[tuple[int, int]]:
        """Return the tensor and the pages of each run that it stands for, the most recent first."""
        return ((self.tensor, self.count),)

    def filled(self) -> Iterable[int]:
        """Return tensor, pages, and so on, of the runs with any that it stands for, the oldest first."""
        return self.tensor, self.count

    def state(self, now: int) -> tuple[object, ...]:
        """Return what sets it apart from other runs in its place at the cycle ``now``."""
        return self.tensor, self.count, self.rate, self.toward, self.is_empty


class EmptyRun(Run):
    """A read of what is on the GPU anyway."""

    __slots__ = ()

    is_empty = True


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
        """Return whether any demanded page has not arrived."""
        return any(self.fault)

    @property
    def busy(self) -> bool:
        """Return whether anything is in transfer."""
        return any(self.all)

    @property
    def heads(self) -> Iterator[Run]:
        """Yield the planned copies that are the next of their queues."""
        return (queue[0] for queue in (*self.evict, *self.prefetch) if queue)

    @property
    def count(self) -> int:
        """Number of queues with anything in them."""
        return sum(map(bool, self.all))


class Chunk:
    """Tensors that become recent together, in this order, and the group that they are in, if any.

    ``loose`` are those that may have their own runs.
    """

    __slots__ = ("group", "loose", "members")

    def __init__(self, members: range) -> None:
        self.members = members
        self.group: Group | None = None
        self.loose = set(members)


class Group(Run):
    """Runs of a chunk's members that became recent at once, as one: they are made when somebody asks for one.

    ``counts`` has the pages of each, ``_GONE`` for an empty run and 0 for none; its own ``count`` is 0 once
    all of them are empty. ``size`` is the number of runs.
    """

    __slots__ = ("chunk", "counts", "size")

    def __init__(self, chunk: Chunk, counts: list[int], size: int, stamp: int) -> None:
        super().__init__(NO_TENSOR, size, 0, stamp)
        self.chunk, self.counts, self.size = chunk, counts, size

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield tensor and pages of each run, the most recent first."""
        for tensor, count in zip(reversed(self.chunk.members), reversed(self.counts), strict=True):
            if count:
                yield tensor, count if count > 0 and self.count else 0

    def filled(self) -> Iterable[int]:
        """Return tensor, pages, and so on, of the runs with any, the oldest first."""
        return [number for pair in self.members() if pair[1] > 0 for number in pair]

    def members(self) -> Iterable[tuple[int, int]]:
        """Return every member with its part of ``counts``, the oldest first."""
        return zip(self.chunk.members, self.counts, strict=True)

    def pages(self, tensor: int) -> int:
        """Pages of one member."""
        return max(0, self.counts[tensor - self.chunk.members.start])

    def lower(self, tensor: int, taken: int) -> None:
        """Take out pages of a member, which has enough."""
        place = tensor - self.chunk.members.start
        left = self.counts[place] - taken
        self.counts[place] = left or _GONE
        if not left:
            self.count -= 1
            if not self.count:
                self.chunk.group = None
