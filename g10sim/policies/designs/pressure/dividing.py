"""Division of what leaves over memory tiers: what each may take, and what has time to return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.account import TensorAccount
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.interface import PlannedMachine

Shares = Sequence[float]
"""Shares of bytes by tier."""


class EvictionQueues:
    """Evictions under way to each tier, and what its path may still be asked to carry.

    Tiers are numbers, ``free_bytes`` are those of each. Queues may be as long as their paths take ``cycles``
    to empty. ``queued`` bytes are on their way already, ``queued_bytes`` those to all tiers together.
    """

    def __init__(
        self, machine: PlannedMachine, free_bytes: Sequence[int], cycles: float, queued: Iterable[int]
    ) -> None:
        self._tiers, self._link_rate = machine.tiers, machine.link_rate
        self._carried = [tier.write_rate * cycles for tier in self._tiers]
        self._link_carried = self._link_rate * cycles
        self._queued = [*queued]
        self._free = [free - taken for free, taken in zip(free_bytes, self._queued, strict=True)]
        self.queued_bytes = sum(self._queued)
        self._idle: list[int] | None = None

    def add(self, tier: int, size_bytes: int) -> None:
        """Queue bytes for a tier, which its room is kept for."""
        self._queued[tier] += size_bytes
        self._free[tier] -= size_bytes
        self.queued_bytes += size_bytes
        self._idle = None

    def with_room(self, size_bytes: int) -> list[int]:
        """Return the tiers that have room for more bytes."""
        return [tier for tier, free in enumerate(self._free) if free >= size_bytes]

    def idle_tiers(self) -> list[int]:
        """Return the tiers that would be idle before the time is over, with what slower ones leave them."""
        if self._idle is None:
            self._idle, link = [], self._link_carried
            ways = [*zip(self._queued, self._carried, strict=True)]
            for tier, (queued, carried) in enumerate(ways):
                if queued < carried and queued < link - sum([min(way) for way in ways if way[1] < carried]):
                    self._idle.append(tier)
        return self._idle

    def queued_but_for(self, tier: int) -> int:
        """Return the bytes queued for other tiers."""
        return self.queued_bytes - self._queued[tier]

    def shares(self, size_bytes: int, returned: Callable[[], Sequence[int]]) -> Shares:
        """Divide bytes that have yet to leave.

        In the least time in which they can leave, the first tier takes what it has room and bandwidth for,
        the next one what is left, and so on. Bytes that will have ``returned`` meanwhile, by tier, make room.
        """
        tiers, left, rate = self._tiers, float(size_bytes), self._link_rate
        if 1 <= size_bytes <= self._free[0] and tiers[0].write_rate >= rate:
            return 1.0, *[0.0] * (len(tiers) - 1)
        room, found = [*map(add, self._free, returned())], []
        cycles = max(size_bytes / rate, self._least_cycles(size_bytes, room))
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


_RESERVE = 1.2
"""Bytes chosen for a tier over those that faster ones have no room for: not all leave as foreseen."""
_EASY = 0.6
"""Share of the time until memory is fullest that a tier may write for; one that needs more cannot choose."""


def most_patient(forecast: Forecast, machine: PlannedMachine) -> dict[int, frozenset[int]]:
    """Choose for tiers, by number, the tensors that have most time to return from there.

    They are chosen among what leaves when memory is fullest, for the slowest tier first. The fastest tier
    takes the rest, and tiers left out take whatever comes: faster ones have room for all, or they have no
    time to wait for what suits them.
    """
    peak = int(forecast.lack.argmax())
    lack, tiers = int(forecast.lack[peak]), machine.tiers
    ids, uses = _by_next_use(forecast, peak)
    sizes = forecast.sizes.take(ids)
    later = sizes.cumsum() - sizes
    times = forecast.timeline.lap_times
    # From that many kernels after the peak on, a tensor has room next to what is needed later.
    worst_from = np.maximum.accumulate(np.roll(forecast.lack, -peak)[::-1])
    ahead = len(worst_from) - worst_from.searchsorted(later, side="right")
    cycles = times(uses) - times(np.minimum(peak + ahead, uses))
    is_left, found = later < lack, {}
    for number in range(len(tiers) - 1, 0, -1):
        tier = tiers[number]
        rest = min(tier.capacity_bytes, lack - sum(faster.capacity_bytes for faster in tiers[:number]))
        if not 0 < rest <= _EASY * tier.write_rate * forecast.timeline.lap_time(peak):
            continue
        order = (sizes / tier.read_rate - cycles).argsort(kind="stable")
        order = order[is_left.take(order)]
        taken = order[sizes.take(order).cumsum() - sizes.take(order) < _RESERVE * rest]
        is_left[taken] = False
        found[number] = frozenset(ids.take(taken).tolist())
    return found


def _by_next_use(forecast: Forecast, kernel: int) -> tuple[Integers, Integers]:
    """Return the tensors that lie idle at a kernel, and the kernels that need them next, last first."""
    ids = np.array(forecast.alive_at(kernel), dtype=np.int64)
    uses = np.array([forecast.next_use(tensor, kernel) for tensor in ids.data], dtype=np.int64)
    ids, uses = ids[uses > kernel], np.minimum(uses[uses > kernel], kernel + forecast.kernels)
    order = np.argsort(-uses, kind="stable")
    return ids.take(order), uses.take(order)


_BUSY = 0.9
"""Share of the time that all that has to leave takes from which on a tier may not idle."""
_EARLY = 0.28
"""Share of what the link can carry until a kernel that may be left for that time: chosen on five traces."""


class Division:
    """Divides what leaves in an iteration of one job over memory tiers.

    The tier that needs longest for its share of all that has to leave never idles. The others take their
    share evenly, so that in every part of what returns they have something to bring, side by side.
    """

    def __init__(self, forecast: Forecast, machine: PlannedMachine, account: TensorAccount) -> None:
        self._forecast, self._machine = forecast, machine
        self._account, self._shortage = account, account.shortage
        self._patient = most_patient(forecast, machine)
        self._divided: tuple[int, Shares] = 0, ()
        self._rates = [tier.write_rate for tier in machine.tiers]
        self.start_iteration()

    def start_iteration(self) -> None:
        """Forget what has left: no tier is behind its share of that by any bytes."""
        self._debts, self._even_debts = ([0.0] * len(self._rates) for _ in range(2))

    def start_kernel(self, kernel: int, queues: EvictionQueues) -> None:
        """Look at what has to leave from a kernel on that lacks something."""
        self._kernel, self._queues = kernel, queues
        self._has_looked, self._divided = False, (0, ())

    def _look_ahead(self) -> None:
        """Tell which tiers take their share evenly, once for each kernel and before anything leaves."""
        if self._has_looked:
            return
        self._has_looked, kernel, shortage = True, self._kernel, self._shortage
        worst, peak = shortage.worst(), shortage.worst_step()
        timeline = self._forecast.timeline
        cycles = timeline.lap_time(kernel + peak) - timeline.lap_time(kernel)
        shares = self._shares(worst)
        needs = [share * worst / rate for share, rate in zip(shares, self._rates, strict=True)]
        link_needs = worst / self._machine.link_rate
        self._is_behind = link_needs >= cycles
        self._evenly = set()
        if self._is_behind or not (self._patient or self._is_urgent(worst, peak, cycles)):
            longest = link_needs if self._is_behind else max(needs)
            self._evenly = {tier for tier, need in enumerate(needs) if need < _BUSY * longest}
        self._even = [share if tier in self._evenly else 0.0 for tier, share in enumerate(shares)]

    @property
    def is_choosy(self) -> bool:
        """Return whether a tensor that suits no tier may be followed by one that does."""
        if self._patient:
            self._look_ahead()
        return bool(self._patient) and not self._is_behind

    def place(self, tensor: int, size_bytes: int, away: int, worst: int) -> int | None:
        """Return the tier where bytes of a tensor go, or None for nowhere.

        It is ``away`` for that many kernels, the worst of which lacks that much.
        """
        shares = self._shares(worst, away)
        tier = self._choose(shares, tensor, size_bytes)
        if tier is not None:
            self._look_ahead()
            self._queues.add(tier, size_bytes)
            self._divided = 0, ()
            for debts, parts in (self._debts, shares), (self._even_debts, self._even):
                if parts[tier] < 1:  # else nobody is behind by more
                    debts[:] = _with_next(debts, parts, size_bytes)
                    debts[tier] -= size_bytes
        return tier

    def _shares(self, worst: int, away: int | None = None) -> Shares:
        """Divide what the worst of that many kernels lacks, or of all; again only after more was queued."""
        if self._divided[0] != worst:
            kernel, returning, worst_step = self._kernel, self._account.returning, self._shortage.worst_step
            shares = self._queues.shares(worst, lambda: returning(kernel, kernel + worst_step(away)))
            self._divided = worst, shares
        return self._divided[1]

    def _choose(self, shares: Shares, tensor: int, size_bytes: int) -> int | None:
        """Choose by what is short: time before the next kernel, or else tiers that would idle.

        If the next kernel lacks room before the queues of other tiers are empty, that is the tier that is
        behind its share most; if not, the slowest one that has a share, would idle and suits the tensor.
        """
        queues = self._queues
        roomy = queues.with_room(size_bytes)
        sharing = [tier for tier in roomy if shares[tier] > 0] or roomy
        if len(sharing) > 1:
            sharing.sort(key=_with_next(self._debts, shares, size_bytes).__getitem__, reverse=True)
        if sharing and self._shortage.worst_soon() + queues.queued_but_for(sharing[0]) > 0:
            return sharing[0]
        idle = queues.idle_tiers()
        if set(sharing).isdisjoint(idle):
            return None
        if sharing == roomy[:1]:  # there is no choice
            return sharing[0]
        self._look_ahead()
        late = _with_next(self._even_debts, self._even, size_bytes) if self._evenly else ()
        due = [tier for tier in sharing if tier not in self._evenly or late[tier] > 0] or sharing
        for tier in sorted(due, key=self._rates.__getitem__):
            # A slower tier takes what has time to return from there, if there is a choice.
            suits = tier == roomy[0] or self._is_behind or tensor in self._patient.get(tier, (tensor,))
            if suits and tier in idle:
                return tier
        return None

    def _is_urgent(self, worst: int, peak: int, cycles: int) -> bool:
        """Return whether some kernel lacks more than a part of what the link can carry until then.

        The ``worst`` of all mostly does. It comes ``peak`` kernels, and ``cycles``, from now.
        """
        queued, rate = self._queues.queued_bytes, _EARLY * self._machine.link_rate
        if peak > 1 and worst + queued > rate * cycles:
            return True
        (ahead, lacks), timeline = self._shortage.later(), self._forecast.timeline
        times = timeline.lap_times(ahead + self._kernel) - timeline.lap_time(self._kernel)
        return bool(np.any((lacks > 0) & (lacks + queued > rate * times)))


def _with_next(debts: Sequence[float], shares: Shares, size_bytes: int) -> list[float]:
    """Return by how much tiers are behind when that many bytes more have left that go elsewhere."""
    return [debt + share * size_bytes for debt, share in zip(debts, shares, strict=True)]
