"""How a tensor would be dropped before the peak and computed again after it."""

from __future__ import annotations

from bisect import bisect_left

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.swap_planning.peak import Peak
from g10sim.policies.swap_planning.schedule import JobSchedule, Recomputed


def recomputation_over(
    schedule: JobSchedule, rules: Recomputability, peak: Peak, tensor: int
) -> Recomputed | None:
    """Return how a tensor would be dropped before the peak and made again after it; None: it cannot be."""
    accesses = schedule.accesses
    uses = accesses.uses[tensor]
    place = bisect_left(uses, peak.time, key=lambda kernel: accesses.interval(kernel).start)
    if not 0 < place < len(uses):
        return None
    drop, use = uses[place - 1] + 1, uses[place]
    covers = accesses.interval(drop).start <= peak.time < accesses.interval(use).start
    if not covers or rules.problem(tensor, drop):
        return None
    producer = rules.producer(tensor, drop)
    if producer is None:
        return None
    deaths = accesses.trace.deaths
    extra = sum(accesses.sizes[other] for other in set(producer.outputs) - {tensor} if deaths[other] <= use)
    return Recomputed(tensor, drop, use, extra)
