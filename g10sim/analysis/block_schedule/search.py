"""FlexGen's search: the shares with the lowest cost are a linear program, solved for blocks of many sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import linprog

from g10sim.analysis.block_schedule.cost import Block, Cost, Placement, Rates, Shares, cost
from g10sim.analysis.block_schedule.room import Room, needed

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHARES = 6
_SMALL_BATCHES = 1, 2, 3
_BATCH_STEP, _LARGEST_BATCH = 4, 512
_MOST_BATCHES = 4096
_SLIGHTLY = 1e-6
"""Seconds that all of one kind of data on the drive costs, so that of equal placements least lies there."""


@dataclass(frozen=True)
class Found:
    """The best block and placement that a search has found."""

    placement: Placement
    cost: Cost


def search(block: Block, rates: Rates, room: Room) -> Found | None:
    """Return the batch size, number of batches and shares with most tokens per second; None: nothing fits.

    ``block`` says all but the sizes. For batches of 1, 2, 3, 4, 8, 12 and so on the number of batches is
    doubled until they no longer fit, and the most that fit are found by halving the difference.
    """
    best: Found | None = None
    for size in (*_SMALL_BATCHES, *range(_BATCH_STEP, _LARGEST_BATCH + 1, _BATCH_STEP)):
        tried = list(_numbers_of_batches(replace(block, gpu_batch=size), rates, room))
        if not tried:
            break
        best = max([*([best] if best else []), *tried], key=lambda found: found.cost.tokens_per_second)
    return best


def _numbers_of_batches(block: Block, rates: Rates, room: Room) -> Iterator[Found]:
    """Yield what is found for numbers of batches up to the most that fit."""
    fits, fails = 0, 1
    while fails <= _MOST_BATCHES:
        found = place(replace(block, batches=fails), rates, room)
        if found is None:
            break
        yield found
        fits, fails = fails, 2 * fails
    while fails - fits > 1:
        middle = (fits + fails) // 2
        found = place(replace(block, batches=middle), rates, room)
        if found is None:
            fails = middle
        else:
            fits = middle
            yield found


def place(block: Block, rates: Rates, room: Room) -> Found | None:
    """Return the shares with which a block takes the least time; None: none fit.

    A linear program in the shares on the GPU and in host memory, and the seconds of a layer: these are at
    least each of the sums of which the cost is the maximum, and each memory holds what it needs to.
    """
    origin, *units = (_sums(block, shares, rates, room) for shares in _corners())
    columns = [unit - origin for unit in units]
    times = np.zeros((2, len(origin)))
    times[0, :3] = times[1, 3:7] = -1.0
    matrix = np.array([*columns, *times]).T
    costs = [-_SLIGHTLY] * _SHARES + [1.0, block.output - 1.0]
    bounds = [(0.0, 1.0)] * _SHARES + [(0.0, None)] * 2
    found = linprog(costs, matrix, -origin, bounds=bounds, method="highs")
    if not found.success:
        return None
    placement = _placement(found.x[:_SHARES].clip(0.0, 1.0).tolist())
    return Found(placement, cost(block, placement, rates))


def _corners() -> Iterator[list[float]]:
    """Yield no share of anything, and all of each: what is affine in the shares is known from these."""
    yield [0.0] * _SHARES
    for share in range(_SHARES):
        yield [float(share == one) for one in range(_SHARES)]


def _sums(block: Block, shares: Sequence[float], rates: Rates, room: Room) -> NDArray[np.float64]:
    """Return what may not exceed 0, or a time: three sums of seconds of the prompts, and four of one token.

    Then the bytes beyond each memory, and the shares beyond 1, of which each kind has two.
    """
    placement = _placement(shares)
    found = cost(block, placement, rates)
    gpu, host, drive = needed(block, placement)
    beyond = [*(one - room.gpu for one in gpu), *(one - room.host for one in host), drive - room.drive]
    pairs = [shares[kind] + shares[kind + 1] - 1 for kind in (0, 2, 4)]
    return np.array([*found.prefill_sums, *found.decode_sums, *(one / 1e9 for one in beyond), *pairs])


def _placement(shares: Sequence[float]) -> Placement:
    weights, cache, hidden = (Shares(*shares[kind : kind + 2]) for kind in (0, 2, 4))
    return Placement(weights, cache, hidden)
