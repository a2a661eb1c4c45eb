"""AutoSwap's priority scores: the higher, the sooner a candidate is swapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Floats, Integers
from g10sim.policies.designs.autoswap.timeline import LoadTimeline, spans_of
from g10sim.policies.interface import PlannedTier
from g10sim.policies.planning.timeline import Absence

_KNOWN = 1024
"""Candidates whose scores are kept up to date."""


def duration_of_absence(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """DOA: cycles between the uses less those of the copies; negative where they do not fit."""
    return np.array(
        [
            candidate.cycles(timeline) - candidate.out_cycles(copies) - copies.in_cycles(candidate.size_bytes)
            for candidate in candidates
        ],
        dtype=np.float64,
    )


def area_of_absence(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """AOA: DOA times size, or DOA over size where it is negative: large tensors are not worse then."""
    durations = duration_of_absence(timeline, candidates, copies)
    sizes = np.array([candidate.size_bytes for candidate in candidates], dtype=np.float64)
    return np.where(durations >= 0, durations * sizes, durations / sizes)


def weighted_duration(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """WDOA: sum of the load over the operations of the absence."""
    starts, ends, _ = spans_of(candidates)
    return _sums(timeline.load_bytes, starts, ends)


def submodular_duration(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """SWDOA: WDOA in the load that is left when all candidates with higher scores are away.

    What is away only lowers scores: the first ones are known again after each choice, all others when one of
    them may have become the highest.
    """
    period, scores, load = timeline.num_kernels, np.zeros(len(candidates)), timeline.load()
    starts, ends, sizes = spans_of(candidates)
    earliest, latest = int(starts.min(initial=0)), int(ends.max(initial=0))
    rest = np.arange(len(candidates))
    while len(rest):
        sums = _sums(load.bytes, starts[rest], ends[rest])
        order = np.argsort(-sums, kind="stable")
        first, others = np.sort(order[:_KNOWN]), order[_KNOWN:]
        left, most = sums[first], sums[others].max(initial=-1)
        some_starts, some_ends = starts[rest[first]], ends[rest[first]]
        taken = list[int]()
        while not taken or left.max() > most:
            best = int(left.argmax())
            taken.append(int(first[best]))
            number = int(rest[first[best]])
            scores[number], start, end = left[best], int(starts[number]), int(ends[number])
            size = int(sizes[number])
            load.add(start, end, -size)
            for lap in (-period, 0, period):
                if earliest < end + lap and start + lap < latest:
                    shared = np.minimum(some_ends, end + lap) - np.maximum(some_starts, start + lap)
                    left -= np.maximum(shared, 0) * size
            left[best] = -np.inf
        rest = np.delete(rest, taken)
    return scores


def majority_vote(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """Sum of the ranks by DOA, AOA and WDOA, negated (what the last version of the authors' code runs)."""
    ranks = np.zeros(len(candidates))
    for score in (duration_of_absence, area_of_absence, weighted_duration):
        ranks[in_order(score(timeline, candidates, copies))] += np.arange(len(candidates))
    return -ranks


Score: TypeAlias = Callable[[LoadTimeline, Sequence[Absence], PlannedTier], Floats]

SingleScore: TypeAlias = Literal["doa", "aoa", "wdoa", "swdoa"]

SINGLE_SCORES: Mapping[SingleScore, Score] = {
    "doa": duration_of_absence,
    "aoa": area_of_absence,
    "wdoa": weighted_duration,
    "swdoa": submodular_duration,
}
"""The four scores that AutoSwap combines."""


def in_order(scores: Floats) -> list[int]:
    """Absences by descending score; of equal ones, the first first."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order


def _sums(load_bytes: Integers, starts: Integers, ends: Integers) -> Floats:
    """Sum of the load over each absence, from prefix sums over two iterations."""
    operations = len(load_bytes)
    sums = np.zeros(2 * operations + 1)
    np.cumsum(np.tile(load_bytes, 2), out=sums[1:])
    first = starts % operations
    found: Floats = sums[first + ends - starts] - sums[first]
    return found
