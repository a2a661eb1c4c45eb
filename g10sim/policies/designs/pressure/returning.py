"""Tensors that have most time to return: slow tiers take these while they need not hurry."""

from __future__ import annotations

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.interface.machine import PlannedMachine

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
    cycles = times(uses) - times(_first_return(forecast, peak, later, uses))
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


def _first_return(forecast: Forecast, peak: int, later: Integers, uses: Integers) -> Integers:
    """Return the kernels from which on tensors have room, next to the bytes that are needed later."""
    lack = np.roll(forecast.lack, -peak)
    worst_from = np.maximum.accumulate(lack[::-1])
    ahead = len(lack) - worst_from.searchsorted(later, side="right")
    return np.minimum(peak + ahead, uses)
