"""Ways to drop a tensor before the peak and to compute it again after it."""

from __future__ import annotations

from bisect import bisect_left

from g10sim.analysis.recomputation import Recomputability
from g10sim.analysis.timeline import Integers
from g10sim.policies.planning.swapping.access import AccessSequence
from g10sim.policies.planning.swapping.peak import Peak
from g10sim.policies.planning.swapping.schedule import JobSchedule, Recomputed


def recomputation_over(
    schedule: JobSchedule, rules: Recomputability, peak: Peak, tensor: int
) -> Recomputed | None:
    """Return how a tensor would be dropped before the peak and made again after it; None: it cannot be."""
    accesses = schedule.accesses
    uses = accesses.uses[tensor]
    place = bisect_left(uses, bisect_left(accesses.times, peak.time))
    if not 0 < place < len(uses):
        return None
    drop, use = uses[place - 1] + 1, uses[place]
    covers = accesses.times[drop] <= peak.time < accesses.times[use]
    return recomputation_of(accesses, rules, tensor, drop, use) if covers else None


def recomputation_of(
    accesses: AccessSequence, rules: Recomputability, tensor: int, drop: int, use: int
) -> Recomputed | None:
    """Return how a tensor is dropped by a kernel and made again for its next use; None: it cannot be."""
    if rules.problem(tensor, drop):
        return None
    producer = rules.producer(tensor, drop)
    if producer is None:
        return None
    deaths = accesses.trace.deaths
    extra = sum(accesses.sizes[other] for other in set(producer.outputs) - {tensor} if deaths[other] <= use)
    return Recomputed(tensor, drop, use, extra)


def choose_recomputation(
    schedule: JobSchedule, rules: Recomputability, peak: Peak, residents: Integers
) -> list[Recomputed]:
    """Return what may be recomputed to lower a peak, the best first.

    Each of the ``residents`` at the peak that is not swapped, and is made from tensors that are neither
    swapped nor recomputed themselves. Best is the one with the most bytes for the time of the kernel that
    makes it.
    """
    accesses = schedule.accesses
    moved = schedule.moved()
    ranked: list[tuple[float, int, Recomputed]] = []
    for tensor in residents.tolist():
        entry = recomputation_over(schedule, rules, peak, tensor) if tensor not in moved else None
        if entry is None:
            continue
        producer = rules.producer(tensor, entry.drop)
        if producer is None or moved & set(producer.inputs):
            continue
        time = accesses.interval(producer.id)
        ranked.append((accesses.sizes[tensor] / max(1, time.end - time.start), tensor, entry))
    return [entry for _, _, entry in sorted(ranked, key=lambda found: (-found[0], found[1]))]
