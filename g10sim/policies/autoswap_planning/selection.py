"""Which candidates are swapped: by score, until the load is within the limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from g10sim.policies.autoswap_planning.candidates import Candidate
from g10sim.policies.autoswap_planning.timeline import Load, Timeline


def select(
    timeline: Timeline, candidates: Sequence[Candidate], order: Iterable[int], limit_bytes: int
) -> tuple[Candidate, ...]:
    """Take candidates in order until the peak of what is left is within the limit; all, if it never is."""
    load = Load(timeline)
    chosen: list[Candidate] = []
    for number in order:
        if load.peak_bytes <= limit_bytes:
            break
        candidate = candidates[number]
        load.change(candidate.start, candidate.end, -candidate.size_bytes)
        chosen.append(candidate)
    return tuple(chosen)


def least_peak_bytes(timeline: Timeline, candidates: Iterable[Candidate]) -> int:
    """Highest load with every candidate away, were copies free: no limit below can be kept."""
    load = Load(timeline)
    for candidate in candidates:
        load.change(candidate.start, candidate.end, -candidate.size_bytes)
    return load.peak_bytes
