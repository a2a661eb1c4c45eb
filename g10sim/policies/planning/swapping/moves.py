"""Moves of a plan that are the same however swaps were chosen: allocations and drops."""

from __future__ import annotations

import math
from collections.abc import Iterator

from g10sim.policies.interface.moves import Drop, Fetch
from g10sim.policies.interface.plan import Planned
from g10sim.policies.planning.swapping.peak import PeakAnalysis
from g10sim.policies.planning.swapping.schedule import JobSchedule


def allocations(schedule: JobSchedule, analysis: PeakAnalysis, rate: float) -> Iterator[Planned]:
    """Yield moves that give tensors their memory when they are made.

    Or as much earlier as that takes at ``rate`` bytes/cycle, where the peak does not rise by it.
    """
    accesses, trace = schedule.accesses, schedule.accesses.trace
    peak_bytes = analysis.peak_bytes
    for kernel in trace.kernels:
        made = [
            tensor
            for tensor in kernel.tensors
            if not trace.tensors[tensor].persistent and trace.births[tensor] == kernel.id
        ]
        size, start = sum(accesses.sizes[tensor] for tensor in made), accesses.interval(kernel.id).start
        early = max(0, start - math.ceil(size / rate))
        issue = min(accesses.kernel_at(early), kernel.id)
        delay = early - accesses.interval(issue).start
        is_early = issue < kernel.id and analysis.most(early, start) + size <= peak_bytes
        for tensor in made:
            if is_early:
                yield Planned(issue, Fetch(tensor), delay)
            yield Planned(kernel.id, Fetch(tensor))


def drops(schedule: JobSchedule) -> Iterator[Planned]:
    """Yield moves that drop what is recomputed."""
    for entry in schedule.recomputed:
        yield Planned(entry.drop, Drop(entry.tensor))
