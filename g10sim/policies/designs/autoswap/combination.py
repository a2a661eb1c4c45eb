"""The combination of all four scores that costs least, found by Bayesian optimisation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from g10sim.analysis.timeline import Floats
from g10sim.errors import PolicyError

STEPS = 20
"""Points that are tried after the single scores (the authors' driver)."""
_KAPPA = 5.0
"""Weight of uncertainty in an upper confidence bound (the authors' driver)."""
_RANDOM_POINTS, _CLIMBS = 1000, 2
"""Points at which the bound is looked for at random, and from which it is climbed."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Combination(Generic[Outcome]):
    """Weight of each score, between -1 and 1, and what comes of swapping in the order of their sum."""

    weights: Mapping[str, float]
    outcome: Outcome


def best_combination(
    scores: Mapping[str, Floats],
    evaluate: Callable[[Floats], Outcome],
    cost: Callable[[Outcome], float],
    *,
    seed: int = 0,
    steps: int = STEPS,
) -> Combination[Outcome]:
    """Find weights whose order of candidates costs least; never more than the best single score.

    Every single score is tried first, and nothing else when one of them costs nothing. ``steps`` more
    points follow, each where a Gaussian process over the weights has its highest upper confidence bound.
    Scores are compared after division by their standard deviation, since each has a separate unit (the
    authors leave SWDOA as it is). Raises PolicyError where the library for it is missing.
    """
    names = tuple(scores)

    def outcome_of(weights: Mapping[str, float]) -> Combination[Outcome]:
        return Combination(dict(weights), evaluate(weighted_sum(scores, weights)))

    tried = [outcome_of({other: float(other == name) for other in names}) for name in names]
    if min(cost(found.outcome) for found in tried) > 0:
        tried += _explored(names, tried, outcome_of, lambda found: cost(found.outcome), seed, steps)
    return min(tried, key=lambda found: cost(found.outcome))


def weighted_sum(scores: Mapping[str, Floats], weights: Mapping[str, float]) -> Floats:
    """Add up scores, each divided by its standard deviation and multiplied by its weight."""
    total = np.zeros(max(map(len, scores.values())))
    for name, found in scores.items():
        total += weights[name] * _standardised(found)
    return total


def _explored(
    names: tuple[str, ...],
    tried: list[Combination[Outcome]],
    outcome_of: Callable[[Mapping[str, float]], Combination[Outcome]],
    cost: Callable[[Combination[Outcome]], float],
    seed: int,
    steps: int,
) -> list[Combination[Outcome]]:
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
            pbounds=dict.fromkeys(names, (-1.0, 1.0)),
            acquisition_function=UpperConfidenceBound(kappa=_KAPPA),
            random_state=seed,
            verbose=0,
            allow_duplicate_points=True,
        )
        for known in tried:
            optimizer.register(params=dict(known.weights), target=-cost(known))
        for _ in range(steps):
            point = outcome_of({name: float(value) for name, value in optimizer.suggest().items()})
            optimizer.register(params=dict(point.weights), target=-cost(point))
            found.append(point)
            if cost(point) <= 0:
                break
    return found


def _standardised(scores: Floats) -> Floats:
    deviation = float(scores.std()) if len(scores) else 0.0
    return (scores - scores.mean()) / deviation if deviation else np.zeros_like(scores)
