"""Memory tiers among which the bytes that have to leave are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add

from g10sim.policies.interface.machine import PlannedMachine

Shares = Sequence[float]
"""Shares of bytes by tier."""


class Queues:
    """Evictions under way to each tier, and what its path may still be asked to carry.

    Tiers are numbers, ``free_bytes`` are those of each. Queues may be as long as their paths take ``cycles``
    to empty. ``queued`` bytes are on their way already, ``queued_bytes`` those to all tiers together.
    """

    def __init__(
        self, machine: PlannedMachine, free_bytes: Sequence[int], cycles: float, queued: Iterable[int]
    ) -> None:
        self._tiers, self._cycles, self._link_rate = machine.tiers, cycles, machine.link_rate
        self._queued = [*queued]
        self._free = [free - taken for free, taken in zip(free_bytes, self._queued, strict=True)]
        self.queued_bytes = sum(self._queued)

    def add(self, tier: int, size_bytes: int) -> None:
        """Queue bytes for a tier, which its room is kept for."""
        self._queued[tier] += size_bytes
        self._free[tier] -= size_bytes
        self.queued_bytes += size_bytes

    def with_room(self, size_bytes: int) -> list[int]:
        """Return the tiers that have room for more bytes."""
        return [tier for tier, free in enumerate(self._free) if free >= size_bytes]

    def take_more(self) -> bool:
        """Return whether some tier would be idle before the time is over."""
        return any(map(self.takes, range(len(self._tiers))))

    def queued_but_for(self, tier: int) -> int:
        """Return the bytes queued for other tiers."""
        return self.queued_bytes - self._queued[tier]

    def takes(self, tier: int) -> bool:
        """Return whether a tier would be idle before the time is over, with what slower ones leave it."""
        cycles, rate, slower = self._cycles, self._tiers[tier].write_rate, 0.0
        for other, queued in zip(self._tiers, self._queued, strict=True):
            if other.write_rate < rate:
                slower += min(queued, other.write_rate * cycles)
        return self._queued[tier] < min(rate * cycles, self._link_rate * cycles - slower)

    def shares(self, size_bytes: int, returned: Callable[[], Sequence[int]]) -> Shares:
        """Divide bytes that have yet to leave.

        In the least time in which they can leave, the first tier takes what it has room and bandwidth for,
        the next one what is left, and so on. Bytes that will have ``returned`` meanwhile, by tier, make room.
        """
        tiers, left, cycles = self._tiers, float(size_bytes), size_bytes / self._link_rate
        if 1 <= size_bytes <= min(self._free[0], tiers[0].write_rate * cycles):
            return 1.0, *[0.0] * (len(tiers) - 1)
        room = [*map(add, self._free, returned())]
        cycles, found = max(cycles, self._least_cycles(size_bytes, room)), []
        for tier, free in zip(tiers, room, strict=True):
            taken = max(0.0, min(left, free, tier.write_rate * cycles))
            found.append(taken / size_bytes if taken >= 1 else 0.0)
            left -= taken
        return found

    def _least_cycles(self, size_bytes: int, room: Sequence[int]) -> float:
        """Return the time in which tiers take that many bytes, all at once, each until it is full."""
        rates = {number: tier.write_rate for number, tier in enumerate(self._tiers) if room[number] > 0}
        now, left = 0.0, float(size_bytes)
        for end, number in sorted((room[number] / rate, number) for number, rate in rates.items()):
            total = sum(rates.values())
            if left <= total * (end - now):
                return now + left / total
            left -= total * (end - now)
            now = end
            del rates[number]
        return now
