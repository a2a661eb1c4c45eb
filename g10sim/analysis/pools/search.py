"""A better offline placement than that of any fixed order, by local search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from g10sim.analysis.pools.placement import FITS, Block, Instance, Placement

ROUNDS = 200
_MOVED_BLOCKS = 64
_PATIENCE = 50
"""Rounds without a lower footprint after which the search gives up."""


def search_placement(
    blocks: Sequence[Block],
    target_bytes: int,
    *,
    period: int | None = None,
    alignment_bytes: int = 1,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Placement:
    """Place blocks by descending size, then look for an order with a footprint of at most the target.

    In each round one of the largest blocks moves to another place in the order, and best fit and first fit
    take turns; what is not worse is kept. It ends early when nothing gets better for some time. The same
    seed gives the same placement. Lifetimes, alignment and errors are those of
    :func:`g10sim.analysis.pools.placement.place_blocks`.
    """
    instance = Instance(blocks, period, alignment_bytes)
    order = instance.in_order("size")
    offsets = instance.place(order, "best")
    best = instance.placement(offsets)
    draw = np.random.default_rng(seed)
    movable = min(_MOVED_BLOCKS, len(order))
    improved = 0
    for number in range(rounds):
        if best.footprint_bytes <= target_bytes or movable < 2 or number - improved > _PATIENCE:
            break
        source, goal = draw.integers(0, movable, 2).tolist()
        changed = np.insert(np.delete(order, source), goal, order[source])
        found = instance.place_below(changed, FITS[number % len(FITS)], best.footprint_bytes)
        if found is not None:
            placement = instance.placement(found)
            improved = number if placement.footprint_bytes < best.footprint_bytes else improved
            order, best = changed, placement
    return best
