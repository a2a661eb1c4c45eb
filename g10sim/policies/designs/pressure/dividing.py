"""Division of what leaves over memory tiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.returning import most_patient
from g10sim.policies.designs.pressure.shortage import Shortage
from g10sim.policies.designs.pressure.tiers import Queues, Shares
from g10sim.policies.interface.machine import PlannedMachine

_BUSY = 0.9
"""Share of the time that all that has to leave takes from which on a tier may not idle."""
_EARLY = 0.28
"""Share of what the link can carry until a kernel that may be left for that time: chosen on five traces."""

Returned = Callable[[int], Sequence[int]]
"""Bytes by tier that will have returned from there in a step of a shortage."""


class Division:
    """Divides what leaves in an iteration of one job over memory tiers.

    The tier that needs longest for its share of all that has to leave never idles. The others take their
    share evenly, so that in every part of what returns they have something to bring, side by side.
    """

    def __init__(self, forecast: Forecast, machine: PlannedMachine) -> None:
        self._forecast, self._machine = forecast, machine
        self._patient = most_patient(forecast, machine)
        self._rates = [tier.write_rate for tier in machine.tiers]
        self.start_iteration()

    def start_iteration(self) -> None:
        """Forget what has left: no tier is behind its share of that by any bytes."""
        self._debts, self._even_debts = ([0.0] * len(self._rates) for _ in range(2))

    def start_kernel(self, kernel: int, queues: Queues, shortage: Shortage, returned: Returned) -> None:
        """Look at what has to leave from a kernel on that lacks something."""
        self._queues, self._shortage, self._returned = queues, shortage, returned
        worst, peak = shortage.worst(), shortage.worst_step()
        timeline = self._forecast.timeline
        cycles = timeline.lap_time(kernel + peak) - timeline.lap_time(kernel)
        shares = self._queues.shares(worst, lambda: returned(peak))
        needs = [share * worst / rate for share, rate in zip(shares, self._rates, strict=True)]
        link_needs = worst / self._machine.link_rate
        self._is_behind = link_needs >= cycles
        self._evenly = set()
        if self._is_behind or not (self._patient or self._is_urgent(kernel)):
            longest = link_needs if self._is_behind else max(needs)
            self._evenly = {tier for tier, need in enumerate(needs) if need < _BUSY * longest}
        self._even = [share if tier in self._evenly else 0.0 for tier, share in enumerate(shares)]

    @property
    def is_choosy(self) -> bool:
        """Return whether a tensor that suits no tier may be followed by one that does."""
        return bool(self._patient) and not self._is_behind

    def place(self, tensor: int, size_bytes: int, away: int, worst: int) -> int | None:
        """Return the tier where bytes of a tensor go, or None for nowhere.

        It is ``away`` for that many kernels, the worst of which lacks that much.
        """
        shares = self._queues.shares(worst, lambda: self._returned(self._shortage.worst_step(away)))
        tier = self._choose(shares, tensor, size_bytes)
        if tier is not None:
            self._queues.add(tier, size_bytes)
            for debts, parts in (self._debts, shares), (self._even_debts, self._even):
                debts[:] = _with_next(debts, parts, size_bytes)
                debts[tier] -= size_bytes
        return tier

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
        if sharing and self._shortage.worst_of_two() + queues.queued_but_for(sharing[0]) > 0:
            return sharing[0]
        late = _with_next(self._even_debts, self._even, size_bytes) if self._evenly else ()
        due = [tier for tier in sharing if tier not in self._evenly or late[tier] > 0] or sharing
        for tier in sorted(due, key=self._rates.__getitem__):
            # A slower tier takes what has time to return from there, if there is a choice.
            suits = tier == roomy[0] or self._is_behind or tensor in self._patient.get(tier, (tensor,))
            if suits and queues.takes(tier):
                return tier
        return None

    def _is_urgent(self, kernel: int) -> bool:
        """Return whether some kernel lacks more than a part of what the link can carry until then."""
        timeline, (ahead, lacks) = self._forecast.timeline, self._shortage.later()
        cycles = timeline.lap_times(ahead + kernel) - timeline.lap_time(kernel)
        leaving = lacks + self._queues.queued_bytes
        return bool(np.any((lacks > 0) & (leaving > _EARLY * self._machine.link_rate * cycles)))


def _with_next(debts: Sequence[float], shares: Shares, size_bytes: int) -> list[float]:
    """Return by how much tiers are behind when that many bytes more have left that go elsewhere."""
    return [debt + share * size_bytes for debt, share in zip(debts, shares, strict=True)]
