"""Capacities of a memory tier and of a GPU, the most of them in use, and the one way in."""

from __future__ import annotations

from bisect import bisect_left
from itertools import count as counter

from g10sim.config.tiers import Tier
from g10sim.errors import CapacityError, InvariantError
from g10sim.records import FlashRecord
from g10sim.units import format_bytes


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


class Watched:
    """Something of which some is in use. Observers look for its peak, each from some time on."""

    @property
    def used(self) -> int:
        """Units in use."""
        raise NotImplementedError

    def __init__(self) -> None:
        self._since: dict[int, int] = {}
        self._time = 0
        self._peaks: list[tuple[int, int]] = []
        """Times with what was in use then, the most since the time before: each less than the last."""
        self.least_peak = 0
        """Lowest peak of any observer: no more than that in use needs no note."""

    def watch(self, observer: int) -> None:
        """Begin to look for the peak again, for one observer."""
        self._since[observer] = self._time
        self._note(self.used)

    def peak(self, observer: int) -> int:
        """Return the most in use since an observer began to watch."""
        return self._peaks[bisect_left(self._peaks, (self._since[observer],))][1]

    def note_peak(self) -> None:
        """Note how much is in use."""
        used = self.used
        if used > self.least_peak:
            self._note(used)

    def _note(self, used: int) -> None:
        """Note a level; lower ones before it are nobody's peak any more."""
        while self._peaks and self._peaks[-1][1] <= used:
            self._peaks.pop()
        self._peaks.append((self._time, used))
        self._time, self.least_peak = self._time + 1, used


class Pages(Watched):
    """Pages of a memory, of which some are free."""

    def __init__(self, capacity_pages: int) -> None:
        self.capacity_pages = self.free = capacity_pages
        super().__init__()

    @property
    def used(self) -> int:
        """Pages in use."""
        return self.capacity_pages - self.free


FlashSnapshot = tuple[int, ...]


class Pool(Pages):
    """Pages of a memory tier, shared by all GPUs; their ``owner`` is the memory of the job that has them."""

    keeps_copies = True
    """True if pages that went to a GPU may lie here again without being written."""
    has_worn = False
    """True once what was written here changes how it goes on."""

    def __init__(self, tier: Tier, page_bytes: int, capacity_pages: int | None = None) -> None:
        super().__init__(tier.capacity // page_bytes if capacity_pages is None else capacity_pages)
        self.tier, self.name = tier, tier.words
        self.page_bytes, self.reserved_pages = page_bytes, 0

    def peak(self, observer: int) -> int:
        """Return the most in use since an observer began to watch, at least what is reserved all the time."""
        return max(super().peak(observer), self.reserved_pages)

    def reserve(self, count: int) -> None:
        """Count pages as in use all the time that nothing is put into."""
        self.reserved_pages += count

    def take(self, count: int) -> None:
        """Fill ``count`` pages. Raises CapacityError when there are not that many."""
        self._fill(count)
        self.note_peak()

    def _fill(self, count: int) -> None:
        self.free -= count
        if self.free < 0:
            self.free += count
            raise CapacityError(
                f"{self.name} is full: its {format_bytes(self.capacity_pages * self.page_bytes)} cannot "
                f"hold another {format_bytes(count * self.page_bytes)} of evicted tensors"
            )

    def place(self, owner: object, tensor: int, count: int) -> None:
        """Put pages of a tensor here that need not be written. Raises CapacityError."""
        self._fill(count)

    def store(self, owner: object, tensor: int, count: int) -> None:
        """Take pages of a tensor in. Raises CapacityError.

        Whoever moves pages notes the peak, once all that moves at the same time has moved.
        """
        self._fill(count)

    def fetch(self, owner: object, tensor: int, count: int) -> None:
        """Give pages of a tensor out."""
        self.free += count

    def drop(self, owner: object, tensor: int, count: int) -> None:
        """Forget pages of a tensor."""
        self.free += count

    def check(self) -> None:
        """Check what the device behind it knows, where one is modelled. Raises InvariantError."""

    def snapshot(self) -> FlashSnapshot:
        """Return what the device behind it has done so far; nothing where none is modelled."""
        return ()

    def figures_since(self, before: FlashSnapshot) -> FlashRecord | None:
        """Return what the device behind it has done since then, where one is modelled."""
        return None


class Frames(Pages):
    """The pages of one GPU, whichever jobs use them, and one clock for the eviction orders of all jobs."""

    def __init__(self, capacity_pages: int) -> None:
        super().__init__(capacity_pages)
        self.clock = counter()
