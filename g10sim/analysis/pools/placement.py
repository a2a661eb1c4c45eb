"""Offline dynamic storage allocation: offsets for blocks whose lifetimes are known (SmartPool).

Blocks whose lifetimes overlap may not share bytes; the highest end of a block is the footprint. To make it
least is NP-complete (Garey and Johnson, problem SR2), hence orders and fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import inf
from random import Random
from typing import Literal, TypeAlias

import numpy as np

from g10sim.analysis.pools.windows import AddressKind, Neighbors, Windows
from g10sim.analysis.timeline import Integers

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
_MOST_PLACED = 155_000
"""Copies placed again after which it gives up: more than on any bundled trace, a few seconds."""


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

    With ``period`` every block comes again each that many units of time. Lifetimes are then compared modulo
    laps * period, with the laps that the longest one spans, so that blocks that cross the border of an
    iteration are blocks like all others. What fits into no hole goes on top. Offsets are multiples of the
    alignment. Takes time in proportion to n log n and the number of pairs that share time. Raises
    ValueError for an empty lifetime or size.
    """
    instance = Instance(blocks, period, alignment_bytes)
    layout, copies = _Layout(instance, fit), instance.in_order(order)
    layout.reorder(copies, len(copies))
    return instance.placement(layout.offsets)


def peak_bytes(blocks: Sequence[Block], *, period: int | None = None) -> int:
    """Most bytes alive at a time, the least footprint that any placement can have.

    With ``period`` every block comes again each that many units of time.
    """
    _check(blocks, alignment_bytes=1)
    base, changes = load_changes(blocks, period)
    return base + max(accumulate((change for _, change in sorted(changes)), initial=0))


def load_changes(blocks: Sequence[Block], period: int | None) -> tuple[int, list[tuple[int, int]]]:
    """Return bytes that are always alive, and the changes of the others' load: (time, bytes).

    With ``period`` every block comes again each that many units of time. The times are those of one period.
    A block that crosses its border counts as always alive except for the rest of the period.
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

    Sizes and offsets are in units of the alignment. Raises ValueError for an empty lifetime or size, and for
    an alignment below 1.
    """

    def __init__(self, blocks: Sequence[Block], period: int | None, alignment_bytes: int) -> None:
        _check(blocks, alignment_bytes)
        self._count = len(blocks)
        self._laps, circle = _laps_and_circle(blocks, period)
        step = np.repeat(np.arange(self._laps, dtype=np.int64) * (period or 0), self._count)
        starts = np.array([block.start for block in blocks], dtype=np.int64)
        lengths = np.array([block.end - block.start for block in blocks], dtype=np.int64)
        sizes = np.array([-(-block.size_bytes // alignment_bytes) for block in blocks], dtype=np.int64)
        self._starts, self._unit = np.tile(starts, self._laps) + step, alignment_bytes
        self.sizes = np.tile(sizes, self._laps)
        self.neighbors = Neighbors(self._starts, np.tile(lengths, self._laps), circle)

    def in_order(self, order: Order) -> Integers:
        """Return the copies in the order in which they are placed."""
        keys = (self._starts, -self.sizes) if order == "size" else (-self.sizes, self._starts)
        return np.lexsort(keys)

    def placement(self, offsets: Integers) -> Placement:
        """Put the offsets of all copies together by block."""
        by_block = self._unit * offsets.reshape(self._laps, self._count).T
        footprint = self._unit * int((offsets + self.sizes).max(initial=0))
        return Placement(tuple(map(tuple, by_block.tolist())), footprint)


class _Layout:
    """Copies placed one after the other in an order, each alongside those before it that it shares time with.

    What is not placed yet is at address -1. A copy stays where it is if those before it have only traded
    places: each place has a random code, and ``_drift`` the sum by which theirs have changed.
    """

    def __init__(self, instance: Instance, fit: Fit) -> None:
        self._neighbors, self._sizes, self._fit = instance.neighbors, instance.sizes.tolist(), fit
        self.offsets: Integers = np.full(len(self._sizes), -1, dtype=np.int64)
        self.tops = self.offsets.copy()
        self._is_stale = np.ones(len(self._sizes), dtype=np.bool_)
        self._drift = np.ones(len(self._sizes), dtype=np.uint64)
        self._kind: AddressKind = "i" if int(instance.sizes.sum()) < 2**30 else "q"
        self._codes = defaultdict[tuple[int, int], int](partial(Random(0).getrandbits, 64))
        self.placed = -len(self._sizes)
        """Copies placed again so far."""

    def reorder(self, order: Integers, moved: int, bound: float = inf) -> bool:
        """Place all in an order of which only the first ``moved`` copies were in another before, if any.

        False as soon as a copy would end above the bound; those behind it are left for the next time.
        """
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        places_of_pieces = places[self._neighbors.block]
        self._is_stale[:moved] = True
        self._is_stale |= self.tops[order] > bound
        windows, is_stale = Windows(self._neighbors, self._kind), self._is_stale.data
        offsets, tops = self.offsets.data, self.tops.data
        for place, block in enumerate(order.tolist()):
            if is_stale[place]:
                is_stale[place] = False
                self.placed += 1
                if place < moved or self._drift[block]:
                    before, offset = offsets[block], self._offset(block, *windows.of(block))
                    if offset != before:
                        offsets[block], tops[block] = offset, offset + self._sizes[block]
                        if before >= 0:  # else those behind it are not placed either
                            turns = places_of_pieces.take(self._neighbors.of(block))
                            later = turns.compress(turns >= max(place + 1, moved))
                            self._is_stale[later] = True
                            self._drift[order[later]] += self._change(block, before)
                    self._drift[block] = 0
                if tops[block] > bound:
                    return False
            windows.put(block, offsets[block], tops[block])
        return True

    def _offset(self, block: int, begins: Integers, ends: Integers) -> int:
        """Return the offset for a copy among others that may overlap each other (they need not share time).

        Both are in order, and the first end is that of none, at 0; the last begin is above all. Where the
        n-th begin is above the n-th end, there is a hole between them.
        """
        holes = begins - ends
        fits = holes >= self._sizes[block]
        if self._fit == "first":
            return int(ends[fits.argmax()])
        fitting = fits.nonzero()[0]
        return int(ends[fitting[holes[fitting].argmin()]])

    def _change(self, block: int, before: int) -> np.uint64:
        """Return what the code of a copy changes by, which was at another offset before."""
        size = self._sizes[block]
        change = self._codes[int(self.offsets[block]), size] - self._codes[before, size]
        return np.uint64(change % 2**64)


def _laps_and_circle(blocks: Sequence[Block], period: int | None) -> tuple[int, int]:
    """Return how many copies of every block there are, and the time after which all of them repeat."""
    if not blocks:
        return 1, 1
    if period is None:
        return 1, max(block.end for block in blocks) - min(block.start for block in blocks)
    laps = max(-(-(block.end - block.start) // period) for block in blocks)
    return laps, laps * period


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
    take turns; what is not worse is kept. It ends early when nothing gets better for some time, or very many
    blocks have been placed again. The same seed gives the same placement. Lifetimes, alignment and errors are
    those of :func:`place_blocks`.
    """
    instance = Instance(blocks, period, alignment_bytes)
    order, layouts = instance.in_order("size"), {fit: _Layout(instance, fit) for fit in FITS}
    layouts["best"].reorder(order, len(order))
    offsets = layouts["best"].offsets.copy()
    footprint = int(layouts["best"].tops.max(initial=0))
    draw = np.random.default_rng(seed)
    movable = min(_MOVED_BLOCKS, len(order))
    improved = 0
    for number in range(rounds):
        if alignment_bytes * footprint <= target_bytes or movable < 2 or number - improved > _PATIENCE:
            break
        if sum(layout.placed for layout in layouts.values()) > _MOST_PLACED:
            break
        source, goal = draw.integers(0, movable, 2).tolist()
        changed = np.insert(np.delete(order, source), goal, order[source])
        fit = FITS[number % len(FITS)]
        if layouts[fit].reorder(changed, movable, footprint):
            order, offsets, before = changed, layouts[fit].offsets.copy(), footprint
            footprint = int(layouts[fit].tops.max())
            improved = number if footprint < before else improved
    return instance.placement(offsets)
