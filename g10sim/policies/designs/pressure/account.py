"""Bytes of a job's tensors on the GPU and elsewhere, and what the kernels to come lack by that."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.shortage import NextUses, Settings, Shortage


class Order:
    """Some of a number of tensors by ranks, such as kernels, of equals the lower number first."""

    def __init__(self, tensors: int) -> None:
        self._bits = tensors.bit_length()
        self._mask = (1 << self._bits) - 1
        self._keys: list[int] = []

    def reset(self, ranks: Iterable[tuple[int, int]]) -> None:
        """Begin again with pairs of a rank and a tensor."""
        self._keys = sorted(rank << self._bits | tensor for rank, tensor in ranks)

    def add(self, rank: int, tensor: int) -> None:
        """Add a tensor."""
        insort(self._keys, rank << self._bits | tensor)

    def remove(self, rank: int, tensor: int) -> None:
        """Remove a tensor that is there."""
        del self._keys[bisect_left(self._keys, rank << self._bits | tensor)]

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._keys)

    def __iter__(self) -> Iterator[int]:
        """Yield the tensors; one that leaves as soon as it was yielded does not disturb this."""
        keys, place = self._keys, 0
        while place < len(keys):
            key = keys[place]
            yield key & self._mask
            place += place < len(keys) and keys[place] == key


class Account:
    """Bytes of tensors ``here`` on the GPU that do not leave, and ``away``, which lie elsewhere or leave.

    Bytes on their way in are neither. ``next`` are the kernels that use tensors next, ``tier_of`` the places
    of those of ``tiers`` where they went. ``alive`` marks those that have contents or pages. ``present``
    and ``absent`` have those with bytes here, needed last first, and away, needed first first. ``here_bytes``
    are those of all.
    """

    def __init__(self, forecast: Forecast, tiers: int, settings: Settings) -> None:
        self._forecast = forecast
        tensors = len(forecast.sizes)
        self.here, self.away, self.next, self.tier_of = ([0] * tensors for _ in range(4))
        self.alive = [False] * tensors
        self.present, self.absent = Order(tensors), Order(tensors)
        self._uses = NextUses(forecast.never + 1)
        self.here_bytes = 0
        self._returning: Integers = np.zeros((tiers, forecast.never + 1), dtype=np.int64)
        self._returning_of = self._returning.data
        self.shortage = Shortage(forecast.lack, self._uses, settings)

    def state(self) -> tuple[object, ...]:
        """Return what is where."""
        return tuple(array("q", part).tobytes() for part in (self.here, self.away, self.tier_of))

    def start_iteration(self, alive: Iterable[int]) -> None:
        """Begin an iteration with the tensors that are alive at its first kernel."""
        self.next = self._forecast.first_uses.copy()
        self.alive = [False] * len(self.next)
        self.shortage.start_iteration()
        self._returning[:] = 0
        for tensor in (tensors := [*alive]):
            self.alive[tensor] = True
            if self.away[tensor]:
                self._count(tensor, self.away[tensor])
        self._uses.reset(self.next[i] for i in tensors)
        self.present.reset((-self.next[i], i) for i in tensors if self.here[i])
        self.absent.reset((self.next[i], i) for i in tensors if self.away[i])

    def bear(self, tensor: int) -> None:
        """Count a tensor in that is alive from now on."""
        self.alive[tensor] = True
        self._uses.add(self.next[tensor])

    def forget(self, tensor: int) -> None:
        """Count a tensor out, alive or not."""
        self.put(tensor, 0, 0)
        if self.alive[tensor]:
            self.alive[tensor] = False
            self._uses.remove(self.next[tensor])

    def use(self, tensor: int, following: int) -> None:
        """Note the kernel that is the next to use a tensor that is alive."""
        here, away = self.here[tensor], self.away[tensor]
        if here or away:
            self.put(tensor, 0, 0)
        self._uses.remove(self.next[tensor])
        self.next[tensor], self.tier_of[tensor] = following, 0
        self._uses.add(following)
        if here or away:
            self.put(tensor, here, away)

    def leave(self, tensor: int, size_bytes: int, tier: int) -> None:
        """Note bytes that leave for a tier; those that are away already count there, too."""
        before, self.tier_of[tensor] = self.tier_of[tensor], tier
        if before != tier:
            self._returning_of[before, self.next[tensor]] -= self.away[tensor]
            self._returning_of[tier, self.next[tensor]] += self.away[tensor]
        self.put(tensor, self.here[tensor] - size_bytes, self.away[tensor] + size_bytes)

    def put(self, tensor: int, here: int, away: int) -> None:
        """Note the bytes of a tensor that are here and away."""
        use, was_here, was_away = self.next[tensor], self.here[tensor], self.away[tensor]
        if here != was_here:
            self.here[tensor] = here
            self.here_bytes += here - was_here
            if not was_here:
                self.present.add(-use, tensor)
            elif not here:
                self.present.remove(-use, tensor)
        if away != was_away:
            self.away[tensor] = away
            self._count(tensor, away - was_away)
            if not was_away:
                self.absent.add(use, tensor)
            elif not away:
                self.absent.remove(use, tensor)

    def returning_bytes(self, first: int, last: int) -> int:
        """Return the bytes that have to be back for some kernels, from the first to the last."""
        return sum(map(sum, self._returning[:, first : last + 1].tolist()))

    def returning(self, first: int, last: int) -> list[int]:
        """Return those bytes by tier."""
        found: list[int] = np.add.reduce(self._returning[:, first : last + 1], axis=1).tolist()
        return found

    def _count(self, tensor: int, size_bytes: int) -> None:
        """Count bytes that are away until they are used."""
        use = self.next[tensor]
        self.shortage.spare(use, size_bytes)
        self._returning_of[self.tier_of[tensor], use] += size_bytes
