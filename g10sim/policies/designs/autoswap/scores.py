"""AutoSwap's priority scores, the higher, the sooner a candidate is swapped, and their best combination."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Floats, Integers
from g10sim.errors import PolicyError
from g10sim.policies.designs.autoswap.schedule import Schedule
from g10sim.policies.designs.autoswap.timeline import LoadTimeline
from g10sim.policies.interface import PlannedTier
from g10sim.policies.planning.timeline import Absence, Timeline, spans_of

_KNOWN = 1024
"""Candidates whose scores are kept up to date."""


def duration_of_absence(timeline: LoadTimeline, candidates: Sequence[Absence], copies: PlannedTier) -> Floats:
    """DOA: cycles between the uses less those of the copies; negative where they do not fit."""
    idle = (one.cycles(timeline) - one.out_cycles(copies) for one in candidates)
    found = [cycles - copies.in_cycles(one.size_bytes) for cycles, one in zip(idle, candidates, strict=True)]
    return np.array(found, dtype=np.float64)


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
    """Sum of the load over each absence."""
    load = Timeline(load_bytes)  # as if bytes were cycles
    return (load.lap_times(ends) - load.lap_times(starts)).astype(np.float64)


_STEPS = 20
"""Points that are tried after the single scores (the authors' driver)."""
_KAPPA = 5.0
"""Weight of uncertainty in an upper confidence bound (the authors' driver)."""
_RANDOM_POINTS, _CLIMBS = 1000, 2
"""Points at which the bound is looked for at random, and from which it is climbed."""


@dataclass(frozen=True)
class Combination:
    """Weight of each score, between -1 and 1, and what comes of swapping in the order of their sum."""

    weights: Mapping[str, float]
    outcome: Schedule
    cost: float


def best_combination(
    scores: Mapping[str, Floats],
    evaluate: Callable[[Floats], Schedule],
    cost: Callable[[Schedule], float],
    *,
    seed: int = 0,
) -> Combination:
    """Find weights whose order of candidates costs least; never more than the best single score.

    Every single score is tried first, and nothing else when one of them costs nothing. Twenty more
    points follow, each where a Gaussian process over the weights has its highest upper confidence bound.
    Scores are compared after division by their standard deviation, since each has a separate unit (the
    authors leave SWDOA as it is). Raises PolicyError where the library for it is missing.
    """
    names = tuple(scores)

    def outcome_of(weights: Mapping[str, float]) -> Combination:
        outcome = evaluate(weighted_sum(scores, weights))
        return Combination(dict(weights), outcome, cost(outcome))

    tried = [outcome_of({other: float(other == name) for other in names}) for name in names]
    if min(found.cost for found in tried) > 0:
        tried += _explored(tried, outcome_of, seed)
    return min(tried, key=attrgetter("cost"))


def weighted_sum(scores: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """Add up scores, each divided by its standard deviation and multiplied by its weight."""
    total = np.zeros(max(map(len, scores.values())))
    for name, found in scores.items():
        deviation = float(found.std()) if len(found) else 0.0
        if deviation:
            total += weights[name] * ((found - found.mean()) / deviation)
    return total


def _explored(
    tried: list[Combination], outcome_of: Callable[[Mapping[str, float]], Combination], seed: int
) -> list[Combination]:
    """Try the points that Bayesian optimisation proposes, until one costs nothing."""
    try:
        from bayes_opt import BayesianOptimization, acquisition
        from threadpoolctl import threadpool_limits
    except ImportError:
        raise PolicyError(
            "the combined score needs the package bayesian-optimization: pip install 'g10sim[bayesian]'; "
            "or choose another score"
        ) from None

    class UpperConfidenceBound(acquisition.UpperConfidenceBound):  # type: ignore[misc]
        """Looks for the highest bound at fewer points than by default: there are four dimensions only."""

        def suggest(self, *arguments: Any, **named: Any) -> Any:
            return super().suggest(*arguments, **{"n_random": _RANDOM_POINTS, "n_smart": _CLIMBS, **named})

    found = []
    with warnings.catch_warnings(), threadpool_limits(1):  # threads cost more than such small matrices
        warnings.simplefilter("ignore")  # of fits of the Gaussian process that do not converge
        optimizer = BayesianOptimization(
            f=None,
            pbounds=dict.fromkeys(tried[0].weights, (-1.0, 1.0)),
            acquisition_function=UpperConfidenceBound(kappa=_KAPPA),
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        for known in tried:
            optimizer.register(params=dict(known.weights), target=-known.cost)
        for _ in range(_STEPS):
            point = outcome_of({name: float(value) for name, value in optimizer.suggest().items()})
            optimizer.register(params=dict(point.weights), target=-point.cost)
            found.append(point)
            if point.cost <= 0:
                break
    return found
