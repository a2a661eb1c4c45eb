"""The best of candidates whose worth only shrinks, found with few of them worked out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Worths: TypeAlias = npt.NDArray[np.float64]

_MOST = 64
"""Candidates that are worked out at a time, at most."""


def best_of(bounds: Worths, worths: Callable[[Sequence[int]], Sequence[float]]) -> int | None:
    """Return the number of the candidate that is worth most, of equals the first; None: none is worth anything.

    No candidate is worth more than its bound. ``worths`` works out what some of them are worth, the bounds of
    which become that: those with the highest bounds first, more and more of them at a time.
    """
    known, count = set[int](), 1
    while len(bounds):
        first = int(bounds.argmax())
        if bounds[first] <= 0:
            break
        if first in known:
            return first
        highest = np.argpartition(-bounds, min(count, len(bounds) - 1))[:count].tolist() if count > 1 else []
        some = list({first, *highest} - known)
        bounds[some] = worths(some)
        known.update(some)
        count = min(2 * count, _MOST)
    return None
