"""Placement of data on flash: extents in superblocks, garbage collection and wear, without time.

A page-mapping flash translation layer seen from afar: large writes cover all planes evenly, so a drive
behaves like one log of superblocks (one block of each plane), and what matters of an extent is how many of
its bytes lie in which superblock. Bytes of an extent are interchangeable; those written first die first.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.errors import CapacityError, InvariantError
from g10sim.units import format_bytes

VictimChoice = Literal["greedy", "oldest"]
Writes = Sequence[tuple[Hashable, int]]
"""Extents, with the bytes of each."""

_DEAD = object()


@dataclass(slots=True)
class _Open:
    """A superblock that is being filled."""

    superblock: int
    left: int


@dataclass(slots=True)
class _Part:
    """Bytes of an extent in one superblock; ``age`` orders parts by when they were first written."""

    size: int
    age: int


class TranslationLayer:
    """The state of every superblock.

    ``streams`` superblocks are open at a time for data of the host, and one for copies of garbage collection.
    A victim is the closed superblock with the fewest valid bytes (*greedy*), or the one closed first
    (*oldest*). Of the free superblocks the least erased one is opened next.
    """

    def __init__(
        self, superblocks: int, superblock_bytes: int, streams: int = 1, victims: VictimChoice = "greedy"
    ) -> None:
        self.superblocks, self.superblock_bytes, self.streams = superblocks, superblock_bytes, streams
        self.host_bytes = self.copied_bytes = self.erased = 0
        self.valid = [0] * superblocks
        self.erases = [0] * superblocks
        self._greedy = victims == "greedy"
        self._contents: list[dict[Hashable, _Part]] = [{} for _ in range(superblocks)]
        self._places: dict[Hashable, dict[int, _Part]] = defaultdict(dict)
        self._age = self._closings = 0
        self._free = [(0, number) for number in range(superblocks)]
        self._open: list[_Open | None] = [None] * (streams + 1)
        self._closed_as = [-1] * superblocks
        self._waiting: dict[int, int] = {}
        self._dead: dict[int, int] = {}
        self._order: list[tuple[int, int, int]] = []

    @property
    def free_superblocks(self) -> int:
        """Superblocks that are erased and empty."""
        return len(self._free)

    @property
    def valid_bytes(self) -> int:
        """Bytes that an extent holds."""
        return sum(self.valid)

    def extent_bytes(self, extent: Hashable) -> int:
        """Return the valid bytes of an extent."""
        return sum(part.size for part in self._places.get(extent, {}).values())

    def room_bytes(self, stream: int = 0) -> int:
        """Bytes that a stream can take before it opens another superblock."""
        opened = self._open[stream]
        return 0 if opened is None else opened.left

    def write(self, extent: Hashable, size_bytes: int, stream: int = 0) -> None:
        """Append new bytes of an extent. Raises CapacityError when there is no room for them."""
        self.write_together([(extent, size_bytes)], stream)

    def write_together(self, writes: Writes, stream: int = 0) -> None:
        """Append bytes of several extents that arrive at the same time, mixed in proportion.

        Raises CapacityError when there is no room for them.
        """
        total = sum(size for _, size in writes)
        self.host_bytes += total
        self._append(writes, total, stream)

    def discard(self, extent: Hashable, size_bytes: int) -> None:
        """Forget bytes of an extent, the first written first. Raises InvariantError if it has fewer."""
        places = self._places.get(extent, {})
        while size_bytes:
            if not places:
                raise InvariantError(
                    f"flash holds {format_bytes(size_bytes)} less of extent {extent} than it loses"
                )
            superblock = min(places, key=lambda place: places[place].age)
            taken = min(places[superblock].size, size_bytes)
            self._take(extent, superblock, taken)
            size_bytes -= taken

    def awaited(self, extent: Hashable, size_bytes: int) -> int | None:
        """Return a superblock that waits to be copied and holds bytes that die next, if there is one."""
        places = self._places.get(extent, {})
        for superblock in sorted(places, key=lambda place: places[place].age):
            if superblock in self._waiting:
                return superblock
            size_bytes -= places[superblock].size
            if size_bytes <= 0:
                break
        return None

    def victim(self) -> int | None:
        """Return the superblock that garbage collection takes next; None where none would give room."""
        while self._order:
            valid, closing, superblock = self._order[0]
            is_current = self._closed_as[superblock] == closing
            if is_current and (not self._greedy or self.valid[superblock] == valid):
                return superblock if self.valid[superblock] < self.superblock_bytes else None
            heapq.heappop(self._order)
        return None

    def lock(self, superblock: int) -> None:
        """Choose a closed superblock for collection: what is valid in it now will be copied.

        Like a drive that lists it now and lets overwrites wait: what dies before the superblock's turn comes
        is copied all the same.
        """
        self._closed_as[superblock] = -1
        self._waiting[superblock] = self.valid[superblock]

    def start(self, superblock: int) -> int:
        """Begin to copy a locked superblock; returns the bytes to copy, dead ones included."""
        valid = self._waiting.pop(superblock)
        self._dead[superblock] = valid - self.valid[superblock]
        return valid

    def collect(self, superblock: int) -> int:
        """Copy what is valid in a closed superblock, and what died while it waited; erase it.

        Returns the bytes copied. Raises CapacityError when there is no room for the copies.
        """
        if superblock in self._waiting:
            self.start(superblock)
        dead = self._dead.pop(superblock, 0)
        contents = self._contents[superblock]
        moved = [(extent, part.size) for extent, part in contents.items()]
        ages = {extent: part.age for extent, part in contents.items()}
        copied = dead + self.valid[superblock]
        self._closed_as[superblock] = -1
        for extent, size in moved:
            self._take(extent, superblock, size)
        self._append([*moved, (_DEAD, dead)], copied, self.streams, ages)
        self.copied_bytes += copied
        self.erases[superblock] += 1
        self.erased += 1
        heapq.heappush(self._free, (self.erases[superblock], superblock))
        return copied

    def lay_out(self, extent: Hashable, size_bytes: int) -> None:
        """Put data on a drive before time starts, which counts as no write. Raises CapacityError."""
        self._append([(extent, size_bytes)], size_bytes, 0)

    def scatter(self, extent: Hashable, size_bytes: int, share: float) -> None:
        """Put data on a drive before time starts: ``share`` of each superblock, the rest of which is dead.

        Raises CapacityError when there is no room.
        """
        each = max(1, min(self.superblock_bytes, ceil(share * self.superblock_bytes)))
        while size_bytes:
            size = min(each, size_bytes)
            size_bytes -= size
            self._close_with(extent, size)

    def wear_in(self, erased: int) -> None:
        """Fill all erased superblocks except for a number with dead data, before time starts."""
        while len(self._free) > erased:
            self._close_with(_DEAD, 0)

    def check(self) -> None:
        """Check that superblocks and extents agree. Raises InvariantError."""
        held = Counter[int]()
        for extent, places in self._places.items():
            for superblock, part in places.items():
                held[superblock] += part.size
                if self._contents[superblock].get(extent) is not part or part.size <= 0:
                    raise InvariantError(f"superblock {superblock} and extent {extent} disagree")
        for superblock, valid in enumerate(self.valid):
            if valid != held[superblock]:
                raise InvariantError(f"superblock {superblock} counts {valid} valid bytes")
            if valid > self.superblock_bytes:
                raise InvariantError(f"superblock {superblock} is overfull")
        if any(self.valid[number] for _, number in self._free):
            raise InvariantError("a free superblock has valid bytes")

    def _append(
        self, writes: Writes, total: int, stream: int, ages: Mapping[Hashable, int] | None = None
    ) -> None:
        """Fill superblocks of a stream; copies keep the ``ages`` that they have."""
        while total:
            opened = self._open[stream]
            if opened is None:
                opened = self._open[stream] = self._take_free()
            size = min(total, opened.left)
            part, writes = (writes, ()) if size == total else _split(writes, total, size)
            self._put(part, opened, ages)
            total -= size
            if not opened.left:
                self._open[stream] = None
                self._close(opened.superblock)

    def _take_free(self) -> _Open:
        if not self._free:
            raise CapacityError(
                "the SSD has no erased block left: garbage collection finds no room for what it has to copy"
            )
        _, superblock = heapq.heappop(self._free)
        return _Open(superblock, self.superblock_bytes)

    def _put(self, writes: Writes, opened: _Open, ages: Mapping[Hashable, int] | None = None) -> None:
        superblock = opened.superblock
        self._age += 1
        contents = self._contents[superblock]
        for extent, size in writes:
            opened.left -= size
            if extent is _DEAD or not size:
                continue
            age = self._age if ages is None else ages[extent]
            if extent not in contents:
                contents[extent] = self._places[extent][superblock] = _Part(0, age)
            contents[extent].size += size
            contents[extent].age = min(contents[extent].age, age)
            self.valid[superblock] += size

    def _close(self, superblock: int) -> None:
        self._closings += 1
        self._closed_as[superblock] = self._closings
        self._rank(superblock)

    def _close_with(self, extent: Hashable, size_bytes: int) -> None:
        opened = self._take_free()
        self._put([(extent, size_bytes)], opened)
        self._close(opened.superblock)

    def _rank(self, superblock: int) -> None:
        valid = self.valid[superblock] if self._greedy else 0
        heapq.heappush(self._order, (valid, self._closed_as[superblock], superblock))

    def _take(self, extent: Hashable, superblock: int, size: int) -> None:
        contents, places = self._contents[superblock], self._places[extent]
        contents[extent].size -= size
        if not contents[extent].size:
            del contents[extent], places[superblock]
        self.valid[superblock] -= size
        if self._greedy and self._closed_as[superblock] >= 0:
            self._rank(superblock)


class InPlaceLayer(TranslationLayer):
    """A medium that is overwritten in place: writes are counted, and nothing is erased or moved."""

    def __init__(self) -> None:
        super().__init__(superblocks=1, superblock_bytes=1)

    def lay_out(self, extent: Hashable, size_bytes: int) -> None:
        """Put data on the medium before time starts."""

    def write_together(self, writes: Writes, stream: int = 0) -> None:
        """Overwrite what was there."""
        self.host_bytes += sum(size for _, size in writes)

    def discard(self, extent: Hashable, size_bytes: int) -> None:
        """Forget bytes; nothing has to be done for it."""


def new_layer(spec: FlashSsdSpec) -> TranslationLayer:
    """Return the translation layer of an empty drive."""
    if spec.in_place:
        return InPlaceLayer()
    superblock_bytes = spec.array.superblock_bytes * spec.drives
    return TranslationLayer(spec.blocks, superblock_bytes, spec.streams, spec.collection.victims)


def _split(writes: Writes, total: int, room: int) -> tuple[Writes, Writes]:
    """Divide writes into what fills ``room`` of ``total`` bytes, in proportion, and the rest."""
    seen = accumulate((size for _, size in writes), initial=0)
    shares = [after - before for before, after in pairwise(size * room // total for size in seen)]
    part = [(extent, share) for (extent, _), share in zip(writes, shares, strict=True)]
    rest = [(extent, size - share) for (extent, size), share in zip(writes, shares, strict=True)]
    return part, rest
