"""Workers of the host that compress offloaded tensors and expand them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from g10sim.config.host import CompressionSpec
from g10sim.hardware.links import Message


def packed_bytes(size_bytes: int, density: float, spec: CompressionSpec) -> int:
    """Bytes that a tensor takes when compressed, ``density`` of its elements not being zero.

    A bit for each element, and for each worker the pieces of its share that its packed elements fill and
    the one after them (public code of vDNN++, Shriram et al., IPDPS 2019, compression_test).
    """
    mask = ceil(size_bytes / (8 * spec.element))
    begun = min(spec.pieces, int(round(density * spec.pieces, 9)) + 1)
    return mask + ceil(size_bytes * begun / spec.pieces)


class Expanded(NamedTuple):
    """Pages that a tensor has on the GPU while it is there, if it moves in a compressed format.

    ``index_pages`` of them hold what it takes to expand it, and stay while it is away.
    """

    block_pages: int
    index_pages: int


def index_owner(tensor: int) -> int:
    """Return who owns the block with a compressed tensor's index, below -1; of an owner its tensor."""
    return -2 - tensor


@dataclass(slots=True, eq=False)
class Work:
    """One tensor for the workers, which read and write ``moved_bytes`` of the host memory at ``gpu`` for it.

    ``begin`` may refuse (None) or delay the start; ``finish`` is called with the cycle of the end.
    """

    gpu: int
    moved_bytes: int
    cycles: int
    begin: Callable[[int], int | None]
    finish: Callable[[int], None]
    may_be_dropped: bool
    is_running: bool = False


class Workers:
    """All workers together serve one tensor at a time, first come first served.

    ``carry``, if there is one, lets the bytes of a tensor share the bandwidth of host memory; the tensor is
    done when they have passed.
    """

    def __init__(self) -> None:
        self._waiting: deque[Work] = deque()
        self._current: Work | None = None
        self._due = 0
        self._carried: Message | None = None
        self.carry: Callable[[Work], Message] | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a tensor is in work."""
        return self._current is not None

    @property
    def next_event(self) -> int | None:
        """Cycle at which the tensor in work is done, or its bytes begin to move; None: links say when."""
        return None if self._current is None or self._carried is not None else self._due

    def submit(self, work: Work, now: int) -> None:
        """Give the workers one more tensor."""
        self._waiting.append(work)
        self._start(now)

    def withdraw(self, work: Work) -> None:
        """Take a tensor back that no worker has begun with, if it still waits."""
        if work in self._waiting:
            self._waiting.remove(work)

    def drop_waiting(self) -> None:
        """Forget what has not begun and may be dropped."""
        self._waiting = deque(work for work in self._waiting if not work.may_be_dropped)

    def advance(self, now: int) -> None:
        """Carry out what is done by the cycle ``now``, in order of time."""
        while self._current is not None and self._is_done(self._current, now):
            work, end = self._current, now if self._carried is not None else self._due
            self._current, self._carried, work.is_running = None, None, False
            work.finish(end)
            self._start(end)

    def _is_done(self, work: Work, now: int) -> bool:
        if self._carried is None and self._due > now:
            return False
        if self.carry is None:
            return True
        if self._carried is None:
            self._carried = self.carry(work)
        return self._carried.is_done

    def _start(self, now: int) -> None:
        while self._current is None and self._waiting:
            work = self._waiting.popleft()
            begin = work.begin(now)
            if begin is not None:
                self._current, work.is_running = work, True
                self._due = begin if self.carry is not None else begin + work.cycles
