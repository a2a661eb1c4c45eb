"""The machine as bounds see it: limits of links, and the memory tiers that are reached over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from g10sim.errors import ConfigError

GPU_MEMORY = "GPU memory"
"""Name of the resource that ``Machine.gpu_bytes`` is."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """Most bytes/second over one direction of a link, or over both together where paths of both name it."""

    name: str
    rate: int


@dataclass(frozen=True, slots=True)
class BoundTier:
    """A memory tier: its capacity, and the limits that a byte counts against on its way in and out.

    ``inward`` (to the GPU) and ``outward`` are positions in ``Machine.limits``, one for each crossing.
    """

    name: str
    capacity_bytes: int
    inward: tuple[int, ...]
    outward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundMachine:
    """GPU memory, and the tiers and limits that one GPU has to itself.

    ``queued_stores`` is the number of tiers that pages queue for (0: all of ``stores``).
    """

    gpu_bytes: int
    page_bytes: int
    clock_hz: int
    limits: tuple[RateLimit, ...]
    stores: tuple[BoundTier, ...]
    queued_stores: int = 0

    def __post_init__(self) -> None:
        if not self.stores:
            raise ConfigError("tiers: found none; allowed: at least one memory tier below the GPU's")
        object.__setattr__(self, "queued_stores", self.queued_stores or len(self.stores))

    @property
    def room_bytes(self) -> int:
        """GPU memory in whole pages."""
        return self.gpu_bytes // self.page_bytes * self.page_bytes

    def carried_bytes(self, limit: int) -> int:
        """Return the bytes that may have counted against a limit before an interval and arrive within it.

        Each of the queues (demand, prefetch and eviction for every tier; demand and prefetch of pages without
        contents) may have moved a part of one page.
        """
        inward = max(store.inward.count(limit) for store in self.stores)
        outward = max(store.outward.count(limit) for store in self.stores)
        return (3 * self.queued_stores + 2) * (inward + outward) * self.page_bytes

    def store_bytes(self, store: BoundTier) -> int:
        """Capacity of a tier in whole pages."""
        return store.capacity_bytes // self.page_bytes * self.page_bytes

    def bettered(self) -> Iterator[tuple[str, BoundMachine]]:
        """Yield, by name of a resource, the machine with a percent more of it."""
        yield GPU_MEMORY, replace(self, gpu_bytes=self.gpu_bytes * 101 // 100)
        for store in self.stores:
            larger = replace(store, capacity_bytes=store.capacity_bytes * 101 // 100)
            stores = tuple(larger if one is store else one for one in self.stores)
            yield store.name, replace(self, stores=stores)
        for limit in self.limits:
            faster = replace(limit, rate=limit.rate * 101 // 100)
            limits = tuple(faster if one is limit else one for one in self.limits)
            yield limit.name, replace(self, limits=limits)

    def reduced(self, most_bytes: int) -> BoundMachine:
        """Return the machine without tiers that never help and limits that never bind.

        A tier never helps if another one has room for ``most_bytes``, all that ever leaves the GPU, and is
        reached over no other limits. Nor does one without capacity, unless there is no other.
        """
        useful = [store for store in self.stores if self.store_bytes(store)] or list(self.stores[:1])
        kept = [
            store
            for place, store in enumerate(useful)
            if not any(
                self._dominates(other, store, most_bytes, earlier=number < place)
                for number, other in enumerate(useful)
                if other is not store
            )
        ]
        return replace(self, stores=tuple(kept))._with_binding_limits()

    def _dominates(self, one: BoundTier, other: BoundTier, most_bytes: int, *, earlier: bool) -> bool:
        if self.store_bytes(one) < most_bytes:
            return False
        ways = [(one.inward, other.inward), (one.outward, other.outward)]
        if not all(Counter(mine) <= Counter(its) for mine, its in ways):
            return False
        same = all(Counter(mine) == Counter(its) for mine, its in ways)
        return not same or earlier or self.store_bytes(other) < most_bytes

    def _with_binding_limits(self) -> BoundMachine:
        """Leave out limits that another one, no higher, holds for all the same bytes."""
        ways = [way for store in self.stores for way in (store.inward, store.outward)]
        table = [(limit.rate, [way.count(place) for way in ways]) for place, limit in enumerate(self.limits)]
        kept = [
            place for place, (_, counts) in enumerate(table) if any(counts) and not _implied(place, table)
        ]
        places = {number: place for place, number in enumerate(kept)}

        def renumbered(way: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(places[number] for number in way if number in places)

        stores = [
            replace(store, inward=renumbered(store.inward), outward=renumbered(store.outward))
            for store in self.stores
        ]
        return replace(self, limits=tuple(self.limits[number] for number in kept), stores=tuple(stores))


def _implied(number: int, table: Sequence[tuple[int, list[int]]]) -> bool:
    """Return whether a limit, given as (rate, crossings), holds wherever some other one does."""
    rate, counts = table[number]
    for other, (other_rate, other_counts) in enumerate(table):
        covers = other_rate <= rate and all(map(int.__le__, counts, other_counts))
        if other != number and covers and (other < number or (other_rate, other_counts) != (rate, counts)):
            return True
    return False


def crossings(way: Sequence[int], limits: int) -> list[int]:
    """Count for every limit how often a byte counts against it on a way."""
    return [way.count(number) for number in range(limits)]
