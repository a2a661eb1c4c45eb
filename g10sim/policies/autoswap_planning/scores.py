"""AutoSwap's priority scores: the higher, the sooner a candidate is swapped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from g10sim.policies.autoswap_planning.timeline import Candidate, LoadTimeline
from g10sim.policies.planning.machine import PlannedTier

Scores: TypeAlias = npt.NDArray[np.float64]


def duration_of_absence(
    timeline: LoadTimeline, candidates: Sequence[Candidate], copies: PlannedTier
) -> Scores:
    """DOA: cycles between the uses less those of the copies; negative where they do not fit."""
    return np.array(
        [
            timeline.lap_time(candidate.end)
            - timeline.lap_time(candidate.start)
            - copies.out_cycles(candidate.size_bytes)
            - copies.in_cycles(candidate.size_bytes)
            for candidate in candidates
        ],
        dtype=np.float64,
    )


def area_of_absence(timeline: LoadTimeline, candidates: Sequence[Candidate], copies: PlannedTier) -> Scores:
    """AOA: DOA times size, or DOA over size where it is negative: large tensors are not worse then."""
    durations = duration_of_absence(timeline, candidates, copies)
    sizes = np.array([candidate.size_bytes for candidate in candidates], dtype=np.float64)
    return np.where(durations >= 0, durations * sizes, durations / sizes)


def weighted_duration(timeline: LoadTimeline, candidates: Sequence[Candidate], copies: PlannedTier) -> Scores:
    """WDOA: sum of the load over the operations of the absence."""
    return _sums(timeline.load_bytes, candidates)


def submodular_duration(
    timeline: LoadTimeline, candidates: Sequence[Candidate], copies: PlannedTier
) -> Scores:
    """SWDOA: WDOA in the load that is left when all candidates with higher scores are away."""
    load = timeline.load()
    scores = np.zeros(len(candidates))
    left = list(range(len(candidates)))
    while left:
        sums = _sums(load.bytes, [candidates[number] for number in left])
        place = int(sums.argmax())
        best = left.pop(place)
        scores[best] = sums[place]
        load.add(candidates[best].start, candidates[best].end, -candidates[best].size_bytes)
    return scores


def majority_vote(timeline: LoadTimeline, candidates: Sequence[Candidate], copies: PlannedTier) -> Scores:
    """Sum of the ranks by DOA, AOA and WDOA, negated (what the last version of the authors' code runs)."""
    ranks = np.zeros(len(candidates))
    for score in (duration_of_absence, area_of_absence, weighted_duration):
        ranks[in_order(score(timeline, candidates, copies))] += np.arange(len(candidates))
    return -ranks


Score: TypeAlias = Callable[[LoadTimeline, Sequence[Candidate], PlannedTier], Scores]

SingleScore: TypeAlias = Literal["doa", "aoa", "wdoa", "swdoa"]

SINGLE_SCORES: Mapping[SingleScore, Score] = {
    "doa": duration_of_absence,
    "aoa": area_of_absence,
    "wdoa": weighted_duration,
    "swdoa": submodular_duration,
}
"""The four scores that AutoSwap combines."""


def in_order(scores: Scores) -> list[int]:
    """Candidates by descending score; of equal ones, the first first."""
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return order


def _sums(load_bytes: npt.NDArray[np.int64], candidates: Sequence[Candidate]) -> Scores:
    """Sum of the load over each absence, from prefix sums over two iterations."""
    operations = len(load_bytes)
    sums = np.zeros(2 * operations + 1)
    np.cumsum(np.tile(load_bytes, 2), out=sums[1:])
    starts = np.array([candidate.start for candidate in candidates], dtype=np.int64)
    lengths = np.array([candidate.end for candidate in candidates], dtype=np.int64) - starts
    first = starts % operations
    return sums[first + lengths] - sums[first]
