"""The least footprint of few blocks, to see how far a placement is from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from g10sim.analysis.pools.placement import FITS, ORDERS, Block, peak_bytes, place_blocks

_TIME_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FootprintBounds:
    """The least footprint lies between ``lower_bytes`` and ``upper_bytes``, which a placement attains."""

    lower_bytes: int
    upper_bytes: int

    @property
    def is_exact(self) -> bool:
        """Return True if the least footprint is known."""
        return self.lower_bytes == self.upper_bytes


def least_footprint(
    blocks: Sequence[Block], time_limit_seconds: float = _TIME_LIMIT_SECONDS
) -> FootprintBounds:
    """Bound the least footprint of blocks; exact within the time limit for some tens of blocks.

    A mixed-integer program (solved by HiGHS): for each two blocks that share time, one lies above the
    other. Peak load and the best of all orders and fits are the bounds that it starts from.
    """
    lower = peak_bytes(blocks)
    heuristics = (place_blocks(blocks, fit=fit, order=order) for fit in FITS for order in ORDERS)
    upper = min(placement.footprint_bytes for placement in heuristics)
    if lower == upper:
        return FootprintBounds(lower, upper)
    pairs = [
        (a, b)
        for a, b in combinations(range(len(blocks)), 2)
        if blocks[a].start < blocks[b].end and blocks[b].start < blocks[a].end
    ]
    return _solve([block.size_bytes for block in blocks], pairs, lower, upper, time_limit_seconds)


def _solve(
    sizes: Sequence[int], pairs: Sequence[tuple[int, int]], lower: int, upper: int, seconds: float
) -> FootprintBounds:
    """Solve for the offset of every block, then for every pair if its first block lies below, footprint."""
    unit = int(np.gcd.reduce(sizes))
    scaled, most = [size // unit for size in sizes], upper // unit
    count, top = len(sizes), len(sizes) + len(pairs)
    entries: list[tuple[int, int, int]] = []
    limits: list[int] = []

    def at_most(limit: int, *terms: tuple[int, int]) -> None:
        entries.extend((len(limits), variable, factor) for variable, factor in terms)
        limits.append(limit)

    for block, size in enumerate(scaled):
        at_most(-size, (block, 1), (top, -1))
    for number, (a, b) in enumerate(pairs, count):
        at_most(most - scaled[a], (a, 1), (b, -1), (number, most))
        at_most(-scaled[b], (b, 1), (a, -1), (number, -most))
    rows, columns, factors = zip(*entries, strict=True)
    matrix = coo_array((factors, (rows, columns)), shape=(len(limits), top + 1))
    least = np.zeros(top + 1)
    least[top] = -(-lower // unit)
    greatest = np.full(top + 1, float(most))
    greatest[count:top] = 1
    integral = np.zeros(top + 1)
    integral[count:top] = 1
    goal = np.zeros(top + 1)
    goal[top] = 1
    found = milp(
        goal,
        integrality=integral,
        bounds=Bounds(least, greatest),
        constraints=LinearConstraint(matrix, ub=np.array(limits, dtype=float)),
        options={"time_limit": seconds},
    )
    if found.mip_dual_bound is not None:
        lower = max(lower, int(np.ceil(found.mip_dual_bound - 1e-6)) * unit)
    if found.x is not None:
        below = found.x[count:top] > 0.5
        upwards = [(a, b) if is_below else (b, a) for (a, b), is_below in zip(pairs, below, strict=True)]
        upper = min(upper, _stacked(scaled, upwards) * unit)
    return FootprintBounds(min(lower, upper), upper)


def _stacked(sizes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> int:
    """Footprint when the first block of each pair lies below the second: the longest path."""
    below: dict[int, list[int]] = {block: [] for block in range(len(sizes))}
    for low, high in pairs:
        below[high].append(low)
    ends = [0] * len(sizes)
    for block in TopologicalSorter(below).static_order():
        ends[block] = sizes[block] + max((ends[low] for low in below[block]), default=0)
    return max(ends)
