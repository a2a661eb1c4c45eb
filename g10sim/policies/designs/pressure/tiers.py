"""Memory tiers among which the bytes that have to leave are divided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from g10sim.policies.interface.machine import PlannedMachine, PlannedTier


class Queues:
    """Evictions under way to each tier, and what its path may still be asked to carry.

    ``free_bytes`` are those of each tier by name. Queues may be as long as their paths take ``cycles`` to
    empty. ``queued_bytes`` are on their way already.
    """

    def __init__(
        self,
        machine: PlannedMachine,
        free_bytes: Mapping[str, int],
        cycles: float,
        queued_bytes: Mapping[str, int] | None = None,
    ) -> None:
        self._machine, self._cycles, self._link_rate = machine, cycles, machine.link_rate
        self._queued = dict.fromkeys(free_bytes, 0) | dict(queued_bytes or {})
        self._free = {name: free - self._queued[name] for name, free in free_bytes.items()}

    def add(self, tier: PlannedTier, size_bytes: int) -> None:
        """Queue bytes for a tier, which its room is kept for."""
        self._queued[tier.name] += size_bytes
        self._free[tier.name] -= size_bytes

    def has_room(self, tier: PlannedTier, size_bytes: int) -> bool:
        """Return whether a tier has room for more bytes."""
        return self._free[tier.name] >= size_bytes

    def queued(self) -> int:
        """Return the bytes queued for all tiers."""
        return sum(self._queued.values())

    def take_more(self) -> bool:
        """Return whether some tier would be idle before the time is over."""
        return any(map(self.takes, self._machine.tiers))

    def queued_but_for(self, tier: PlannedTier) -> int:
        """Return the bytes queued for other tiers."""
        return self.queued() - self._queued[tier.name]

    def takes(self, tier: PlannedTier) -> bool:
        """Return whether a tier would be idle before the time is over, with what slower ones leave it."""
        cycles, slower = self._cycles, 0.0
        for other in self._machine.tiers:
            if other.write_rate < tier.write_rate:
                slower += min(self._queued[other.name], other.write_rate * cycles)
        left = self._link_rate * cycles - slower
        return self._queued[tier.name] < min(tier.write_rate * cycles, left)

    def shares_of_first(self, size_bytes: int) -> dict[str, float] | None:
        """Return the shares of bytes that have yet to leave if the first tier takes all; None: it cannot."""
        first, *others = self._machine.tiers
        if self._free[first.name] < size_bytes or size_bytes < 1:
            return None
        if first.write_rate * (size_bytes / self._link_rate) < size_bytes:
            return None
        return {first.name: 1.0, **dict.fromkeys((tier.name for tier in others), 0.0)}

    def shares(self, size_bytes: int, returned: Mapping[str, int] | None = None) -> dict[str, float]:
        """Divide bytes that have yet to leave: the share of each tier by name.

        In the least time in which they can leave, the first tier takes what it has room and bandwidth for,
        the next one what is left, and so on. Bytes that will have ``returned`` meanwhile, by tier, make room.
        """
        tiers, left = self._machine.tiers, float(size_bytes)
        room = {name: free + (returned or {}).get(name, 0) for name, free in self._free.items()}
        cycles = max(size_bytes / self._link_rate, self._least_cycles(size_bytes, tiers, room))
        found = {}
        for tier in tiers:
            taken = max(0.0, min(left, room[tier.name], tier.write_rate * cycles))
            found[tier.name] = taken / size_bytes if taken >= 1 else 0.0
            left -= taken
        return found

    @staticmethod
    def _least_cycles(size_bytes: int, tiers: Iterable[PlannedTier], room: Mapping[str, int]) -> float:
        """Return the time in which tiers take that many bytes, all at once, each until it is full."""
        rates = {tier.name: tier.write_rate for tier in tiers if room[tier.name] > 0}
        now, left = 0.0, float(size_bytes)
        for end, name in sorted((room[name] / rate, name) for name, rate in rates.items()):
            total = sum(rates.values())
            if left <= total * (end - now):
                return now + left / total
            left -= total * (end - now)
            now = end
            del rates[name]
        return now


class Debts:
    """Bytes by which each tier is behind its share of what has left."""

    def __init__(self, tiers: Iterable[PlannedTier]) -> None:
        self._bytes = dict.fromkeys((tier.name for tier in tiers), 0.0)

    def with_next(self, tier: PlannedTier, shares: Mapping[str, float], size_bytes: int) -> float:
        """Return what a tier is behind when that many bytes more have left that go elsewhere."""
        return self._bytes[tier.name] + shares[tier.name] * size_bytes

    def add(self, tier: PlannedTier, shares: Mapping[str, float], size_bytes: int) -> None:
        """Note bytes that have left for a tier."""
        for name, share in shares.items():
            self._bytes[name] += share * size_bytes
        self._bytes[tier.name] -= size_bytes
