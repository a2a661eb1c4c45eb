"""Offline dynamic storage allocation: offsets for blocks whose lifetimes are known (SmartPool).

Blocks whose lifetimes overlap may not share bytes; the highest end of a block is the footprint. To make it
least is NP-complete (Garey and Johnson, problem SR2), hence orders and fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.errors import InvariantError

Fit: TypeAlias = Literal["best", "first"]
Order: TypeAlias = Literal["size", "arrival"]

FITS: tuple[Fit, ...] = ("best", "first")
"""Smallest hole that is large enough, or lowest one."""
ORDERS: tuple[Order, ...] = ("size", "arrival")
"""Largest block first, or first come first served."""
ROUNDS = 200
_MOVED_BLOCKS = 64
_PATIENCE = 50
"""Rounds without a lower footprint after which the search gives up."""


@dataclass(frozen=True, slots=True)
class Block:
    """``size_bytes`` needed from time ``start`` until just before ``end``; times are whole numbers."""

    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Offsets of blocks.

    ``offsets[b][i]`` is the offset of block ``b`` in iterations i, i + laps, i + 2 laps ...: one entry a
    block, unless some block lives for more than one iteration.
    """

    offsets: tuple[tuple[int, ...], ...]
    footprint_bytes: int

    @property
    def laps(self) -> int:
        """Iterations after which the offsets repeat."""
        return len(self.offsets[0]) if self.offsets else 1


def place_blocks(
    blocks: Sequence[Block],
    *,
    period: int | None = None,
    fit: Fit = "best",
    order: Order = "size",
    alignment_bytes: int = 1,
) -> Placement:
    """Place blocks in the given order, each in a hole between those that it shares time with.

    With ``period`` every block comes again each so many units of time. Lifetimes are then compared modulo
    laps * period, with the laps that the longest one spans, so that blocks that cross the border of an
    iteration are blocks like all others. What fits into no hole goes on top. Offsets are multiples of the
    alignment. Takes time in proportion to n log n and the number of pairs that share time. Raises
    ValueError for an empty lifetime or size.
    """
    instance = Instance(blocks, period, alignment_bytes)
    offsets = instance.place(instance.in_order(order), fit)
    return instance.placement(offsets)


def peak_bytes(blocks: Sequence[Block], *, period: int | None = None, alignment_bytes: int = 1) -> int:
    """Most bytes alive at a time, the least footprint that any placement can have.

    With ``period`` every block comes again each so many units of time.
    """
    _check(blocks, alignment_bytes)
    aligned = [
        Block(block.start, block.end, -(-block.size_bytes // alignment_bytes) * alignment_bytes)
        for block in blocks
    ]
    base, changes = load_changes(aligned, period)
    return base + max(accumulate((change for _, change in sorted(changes)), initial=0))


def load_changes(blocks: Sequence[Block], period: int | None) -> tuple[int, list[tuple[int, int]]]:
    """Return bytes that are always alive, and the changes of the others' load: (time, bytes).

    With ``period`` every block comes again each so many units of time, and the times are those of one period.
    A block that crosses its border counts as always alive but for the rest of the period.
    """
    base = 0
    changes: list[tuple[int, int]] = []
    for block in blocks:
        start, length, size = block.start, block.end - block.start, block.size_bytes
        if period is not None:
            whole, length = divmod(length, period)
            base += whole * size
            start %= period
            if start + length > period:
                base += size
                start, length, size = start + length - period, period - length, -size
        if length:
            changes += [(start, size), (start + length, -size)]
    return base, changes


def _check(blocks: Sequence[Block], alignment_bytes: int) -> None:
    if alignment_bytes < 1:
        raise ValueError(f"alignment_bytes: found {alignment_bytes}; allowed: 1 or more")
    for number, block in enumerate(blocks):
        if block.end <= block.start or block.size_bytes < 1:
            raise ValueError(f"block {number}: found {block}; allowed: an end after the start and a size")


class Instance:
    """Blocks to be placed, with one copy for each lap: copy ``i * len(blocks) + b`` is block b in lap i.

    Raises ValueError for an empty lifetime or size, and for an alignment below 1.
    """

    def __init__(self, blocks: Sequence[Block], period: int | None, alignment_bytes: int) -> None:
        _check(blocks, alignment_bytes)
        self._count = len(blocks)
        self._laps, self._circle = _laps_and_circle(blocks, period)
        step = np.repeat(np.arange(self._laps, dtype=np.int64) * (period or 0), self._count)
        starts = np.array([block.start for block in blocks], dtype=np.int64)
        lengths = np.array([block.end - block.start for block in blocks], dtype=np.int64)
        sizes = np.array([-(-block.size_bytes // alignment_bytes) for block in blocks], dtype=np.int64)
        self._starts = np.tile(starts, self._laps) + step
        self._lengths = np.tile(lengths, self._laps)
        self._sizes = np.tile(sizes * alignment_bytes, self._laps)

    def in_order(self, order: Order) -> Integers:
        """Return the copies in the order in which they are placed."""
        keys = (self._starts, -self._sizes) if order == "size" else (-self._sizes, self._starts)
        return np.lexsort(keys)

    def place(self, order: Integers, fit: Fit) -> Integers:
        """Offsets of all copies, placed one after the other."""
        offsets = self.place_below(order, fit, None)
        if offsets is None:
            raise InvariantError("a placement without a bound has no end")
        return offsets

    def place_below(self, order: Integers, fit: Fit, bound_bytes: int | None) -> Integers | None:
        """Offsets of all copies, or None as soon as one would end above the bound."""
        starts, lengths, sizes = self._starts[order], self._lengths[order], self._sizes[order]
        offsets = np.zeros(len(order), dtype=np.int64)
        for i, size in enumerate(sizes.tolist()):
            apart = (starts[:i] - starts[i]) % self._circle
            together = (apart < lengths[i]) | ((-apart) % self._circle < lengths[:i])
            offset = _offset(offsets[:i][together], sizes[:i][together], size, fit)
            if bound_bytes is not None and offset + size > bound_bytes:
                return None
            offsets[i] = offset
        result = np.empty_like(offsets)
        result[order] = offsets
        return result

    def placement(self, offsets: Integers) -> Placement:
        """Put the offsets of all copies together by block."""
        by_block = offsets.reshape(self._laps, self._count).T
        footprint = int((offsets + self._sizes).max(initial=0))
        return Placement(tuple(map(tuple, by_block.tolist())), footprint)


def _laps_and_circle(blocks: Sequence[Block], period: int | None) -> tuple[int, int]:
    """Return how many copies of every block there are, and the time after which all of them repeat."""
    if not blocks:
        return 1, 1
    if period is None:
        return 1, max(block.end for block in blocks) - min(block.start for block in blocks)
    laps = max(-(-(block.end - block.start) // period) for block in blocks)
    return laps, laps * period


def _offset(offsets: Integers, sizes: Integers, size: int, fit: Fit) -> int:
    """Offset for a block among others that may overlap each other (they need not share time)."""
    by_address = np.argsort(offsets, kind="stable")
    begins = offsets[by_address]
    ends = np.concatenate(([0], np.maximum.accumulate(begins + sizes[by_address])))
    holes = begins - ends[:-1]
    fitting = np.flatnonzero(holes >= size)
    if not len(fitting):
        return int(ends[-1])
    chosen = holes[fitting].argmin() if fit == "best" else 0
    return int(ends[fitting[chosen]])


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
    :func:`place_blocks`.
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
