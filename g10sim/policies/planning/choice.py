"""The best of candidates whose worth only shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Worths: TypeAlias = npt.NDArray[np.float64]

_FIRST, _MOST = 8, 128
"""Candidates that are worked out at a time: before bounds are made anew, and at most."""


def best_of(
    bounds: Worths, worths: Callable[[Sequence[int]], Sequence[float]], newer_bounds: Callable[[], Worths]
) -> int | None:
    """Return the number of the candidate that is worth most, of equals the first; None: none has any worth.

    No candidate is worth more than its bound. ``worths`` works out what some of them are worth, the bounds of
    which become that: those with the highest bounds first, more and more of them at a time. Where that are
    not few, ``newer_bounds`` are asked for, once, which may be lower.
    """
    known, count, are_new = set[int](), _FIRST, False
    while len(bounds):
        first = int(bounds.argmax())
        if bounds[first] <= 0:
            break
        if first in known:
            return first
        if known and not are_new:
            np.minimum(bounds, newer_bounds(), out=bounds)
            are_new = True
            continue
        others = bounds.copy()
        others[list(known)] = 0
        rest = max(0, len(others) - count)
        highest = np.flatnonzero((others >= np.partition(others, rest)[rest]) & (others > 0))[:count]
        some = list({first, *highest.tolist()})
        bounds[some] = worths(some)
        known.update(some)
        count = min(2 * count, _MOST)
    return None
