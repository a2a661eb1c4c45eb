"""The account of a device: which tensors are there, which away, and what makes room within a budget."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from g10sim.execute.memory import Memory
from g10sim.trace.model import Trace

Victims = Callable[[], Iterable[int]]
"""Names tensors that may leave, first choice first."""
NO_BUDGET = 2**63


class StorageAccount:
    """Tensors of a trace, their storages, and the bytes that these take on the device.

    ``here`` has the bytes of tensors on the device, oldest arrival first; ``host`` what brings back those
    that are away; ``room`` bytes kept for tensors that are not born yet. ``other_bytes`` are storages of the
    step before that something still refers to. ``counts`` has bytes and events by name. Whatever is asked
    for, ``used_bytes`` never exceeds ``budget``, in bytes.
    """

    def __init__(self, trace: Trace, memory: Memory, victims: Victims) -> None:
        """Begin with an empty device."""
        self.memory, self.budget = memory, NO_BUDGET
        self.sizes: Sequence[int] = [tensor.size_bytes for tensor in trace.tensors]
        self.numbers: dict[int, int] = {}
        self.storages: dict[int, Any] = {}
        self.here: dict[int, int] = {}
        self.host: dict[int, Any] = {}
        self.room: dict[int, int] = {}
        self.other_bytes = self._held = 0
        self.counts: Counter[str] = Counter()
        self._strays: dict[int, Any] = {}
        self._victims = victims

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken on the device, by copies under way too."""
        return self._held + self.memory.leaving_bytes

    def fits(self, size_bytes: int) -> bool:
        """Return whether that many bytes more are within the budget."""
        return self._held + self.memory.leaving_bytes + size_bytes <= self.budget

    def number_of(self, tensor: Any) -> int | None:
        """Return the number of a tensor of PyTorch; None for one that the trace does not have."""
        return self.numbers.get(tensor.untyped_storage()._cdata)

    def numbers_of(self, tensors: Iterable[Any]) -> set[int]:
        """Return the numbers of those tensors of PyTorch that the trace has."""
        return {number for number in map(self.number_of, tensors) if number is not None}

    def bind(self, number: int, storage: Any) -> None:
        """Let a storage that is on the device be a tensor of the trace."""
        key = storage._cdata
        self.give_up(number)
        self.numbers[key] = number
        self.storages[number] = weakref.ref(storage, partial(self._released, key, number))
        self.here[number] = self.sizes[number]
        self._held += self.sizes[number]

    def is_bound(self, number: int) -> bool:
        """Return whether a tensor has a storage that is alive."""
        return number in self.storages

    def unbind(self, number: int) -> None:
        """Let a tensor's storage be none of the trace's any more; it stays on the device while it lives."""
        storage = self.storages.pop(number)()
        if storage is None:
            return
        key, size = storage._cdata, storage.nbytes()
        del self.numbers[key]
        self._bring_back(number, storage)
        if self.here.pop(number, None) is None:
            return  # dropped: its memory is free
        self.other_bytes += size
        self._strays[key] = weakref.ref(storage, partial(self._strayed, key, size))

    def _strayed(self, key: int, size: int, _: Any) -> None:
        del self._strays[key]
        self.other_bytes -= size
        self._held -= size

    def _released(self, key: int, number: int, reference: Any) -> None:
        """Forget a storage that nothing refers to any more."""
        if self.storages.get(number) is not reference:
            return
        del self.storages[number]
        self.numbers.pop(key, None)
        if self.here.pop(number, None) is not None:
            self._held -= self.sizes[number]
            self.memory.gone(number)
        self.host.pop(number, None)

    def evict(self, number: int, cause: str) -> bool:
        """Send a tensor away; returns False for one that is not there."""
        self.give_up(number)
        if number not in self.here:
            return False
        storage = self.storages[number]()
        if storage is None:
            return False
        self.host[number] = self.memory.evict(number, storage)
        self._held -= self.here.pop(number)
        self._count("out", cause, self.sizes[number])
        return True

    def fetch(self, number: int, spared: Collection[int], cause: str) -> bool:
        """Bring a tensor back, or keep room for one that is not born; returns False if there is no room."""
        size, is_away = self.sizes[number], number in self.host
        is_handed = is_away and self.memory.hand_over(size, waits=not self.fits(size))
        if not is_handed and not self.make_room(size, {*spared, number}, is_demanded=cause == "demand"):
            return False
        if is_away:
            storage = self.storages[number]()
            self.memory.fetch(number, storage, self.host.pop(number))
            self.here[number] = size
            self._count("in", cause, size)
        else:
            self.room[number] = size
        self._held += size
        return True

    def _count(self, way: str, cause: str, size: int) -> None:
        self.counts[way] += size
        self.counts[f"{cause} {way}"] += size
        self.counts["faults"] += way == "in" and cause == "demand"

    def give_up(self, number: int) -> None:
        """Give up the room that is kept for a tensor."""
        self._held -= self.room.pop(number, 0)

    def make_room(self, size_bytes: int, spared: Collection[int], *, is_demanded: bool) -> bool:
        """Make room for bytes; returns False if what is spared leaves too little.

        Copies out that have ended come first; for a kernel then those that it waits for, and room kept for
        others. Then tensors leave: those that the policy names, and the oldest.
        """
        while not self.fits(size_bytes):
            if self.memory.reclaim(waits=is_demanded):
                continue
            if self.memory.leaving_bytes and not is_demanded:
                return False  # what is under way makes room without more evictions
            kept = next((number for number in self.room if number not in spared), None)
            if is_demanded and kept is not None:
                self.give_up(kept)
            elif not self._evict_one(spared):
                return False
        return True

    def _evict_one(self, spared: Collection[int]) -> bool:
        named = (number for number in self._victims() if number in self.here and number not in spared)
        victim = next(named, None)
        if victim is None:
            others = [number for number in self.here if number not in spared]
            victim = next(filter(self.is_worth_moving, others), next(iter(others), None))
        return victim is not None and self.evict(victim, "room")

    def is_worth_moving(self, number: int) -> bool:
        """Return whether a tensor's copies cost the link more than they cost the host."""
        return self.sizes[number] >= self.memory.least_bytes

    def drop(self, number: int) -> None:
        """Take away what a tensor has, as nothing reads it any more."""
        self.give_up(number)
        self.host.pop(number, None)
        if number in self.here:
            storage = self.storages[number]()
            if storage is not None:
                self.memory.drop(number, storage)
                self._held -= self.here.pop(number)

    def restore(self) -> None:
        """Bring everything back, whatever the budget says."""
        for number in list(self.host):
            self._bring_back(number, self.storages[number]())

    def _bring_back(self, number: int, storage: Any) -> None:
        host = self.host.pop(number, None)
        if host is not None and storage is not None:
            self.memory.fetch(number, storage, host)
            self.memory.arrive(number)
            self.here[number] = self.sizes[number]
            self._held += self.sizes[number]
