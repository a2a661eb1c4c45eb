"""Which tensor to drop and compute again when swapping cannot lower the peak any further."""

from __future__ import annotations

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.swap_planning.peak import Peak
from g10sim.policies.swap_planning.recomputing import recomputation_over
from g10sim.policies.swap_planning.schedule import JobSchedule, Recomputed


def choose_recomputation(schedule: JobSchedule, rules: Recomputability, peak: Peak) -> list[Recomputed]:
    """Return what may be recomputed to lower a peak, the best first.

    A tensor that is there at the peak, is not swapped, and is made from tensors that are neither swapped nor
    recomputed themselves. Best is the one with the most bytes for the time of the kernel that makes it.
    """
    accesses = schedule.accesses
    moved = schedule.moved()
    ranked: list[tuple[float, int, Recomputed]] = []
    for tensor in peak.residents:
        entry = recomputation_over(schedule, rules, peak, tensor) if tensor not in moved else None
        if entry is None:
            continue
        producer = rules.producer(tensor, entry.drop)
        if producer is None or moved & set(producer.inputs):
            continue
        time = accesses.interval(producer.id)
        ranked.append((accesses.sizes[tensor] / max(1, time.end - time.start), tensor, entry))
    return [entry for _, _, entry in sorted(ranked, key=lambda found: (-found[0], found[1]))]
