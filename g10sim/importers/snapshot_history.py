"""Histories of PyTorch's allocator made whole: releases that were not recorded, and what blocks take."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from g10sim.config.allocator import CachingPoolSpec

Pool = tuple[int, tuple[int, ...]]
"""Stream and memory pool: PyTorch shares no segment between two of them."""


class Action(StrEnum):
    """Entries of a history that take or return memory."""

    ALLOCATED = "alloc"
    REQUESTED = "free_requested"
    RELEASED = "free_completed"
    GROWN = "segment_alloc"
    SHRUNK = "segment_free"
    MAPPED = "segment_map"
    UNMAPPED = "segment_unmap"


SIGNS = {Action.GROWN: 1, Action.MAPPED: 1, Action.SHRUNK: -1, Action.UNMAPPED: -1}
"""Actions that change the reserved bytes."""


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation: bytes asked for, where, from which pool, and the bytes that it takes (0: not known)."""

    address: int
    size_bytes: int
    pool: Pool
    taken_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the recorded history; ``block`` of a segment is the segment."""

    action: Action
    block: Block
    time_us: int


@dataclass(frozen=True, slots=True)
class State:
    """Memory when the snapshot was taken: segments, and the blocks in use.

    ``time_us`` is when that was. Blocks of at least ``most_split_bytes`` (None: no limit) are not split.
    """

    segments: Sequence[Block]
    blocks: Sequence[Block]
    time_us: int
    most_split_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Events in which every block and segment that is gone at the end is released.

    ``before`` are blocks from before the events, by address. ``inferred`` counts the releases of blocks that
    were not recorded: these are where they were requested, where the address is used again, or at the end.
    """

    before: tuple[Block, ...]
    events: tuple[Event, ...]
    inferred: int


class _Ranges:
    """Blocks that are there, none of which overlap, by address."""

    def __init__(self, blocks: Sequence[Block] = ()) -> None:
        self.blocks = {block.address: block for block in blocks}
        self.requested: dict[int, int] = {}
        self._addresses = sorted(self.blocks)

    def add(self, block: Block) -> None:
        if block.address not in self.blocks:
            insort(self._addresses, block.address)
        self.blocks[block.address] = block

    def remove(self, address: int) -> None:
        if self.blocks.pop(address, None) is not None:
            del self._addresses[bisect_left(self._addresses, address)]
            self.requested.pop(address, None)

    def around(self, address: int) -> Block | None:
        """Return the block that an address is in."""
        place = bisect_right(self._addresses, address)
        block = self.blocks[self._addresses[place - 1]] if place else None
        return block if block is not None and address < block.address + block.size_bytes else None

    def after(self, address: int, end: int) -> int:
        """Return the address of the first block after an address, at most ``end``."""
        place = bisect_right(self._addresses, address)
        return min(self._addresses[place], end) if place < len(self._addresses) else end

    def overlapping(self, block: Block) -> Iterator[Block]:
        """Yield the blocks that another one overlaps."""
        first = self.around(block.address)
        if first is not None and first.address < block.address:
            yield first
        place, end = bisect_left(self._addresses, block.address), block.address + block.size_bytes
        yield from map(self.blocks.__getitem__, self._addresses[place : bisect_left(self._addresses, end)])


def _completed(
    events: Sequence[Event], ended: Sequence[Block], end_us: int, allocated: Action, *releasing: Action
) -> tuple[list[Block], list[tuple[int, Event]]]:
    """Return blocks, or segments, from before the events, and the releases that are missing, with places.

    The last of the ``releasing`` actions ends a block, one before it asks for that.
    """
    live = _Ranges()
    before: list[Block] = []
    missing: list[tuple[int, Event]] = []

    def release(block: Block, latest: int, latest_us: int) -> None:
        position = live.requested.get(block.address, latest)
        time_us = latest_us if position == latest else events[position].time_us
        missing.append((position, Event(releasing[-1], block, time_us)))
        live.remove(block.address)

    for position, event in enumerate(events):
        address = event.block.address
        if event.action is allocated:
            for block in list(live.overlapping(event.block)):
                release(block, position, event.time_us)
            live.add(event.block)
        elif event.action in releasing:
            if address not in live.blocks:
                before.append(event.block)
                live.add(event.block)
            live.requested[address] = position
        if event.action is releasing[-1]:
            live.remove(address)
    there = {block.address for block in ended}
    for block in [block for address, block in live.blocks.items() if address not in there]:
        release(block, len(events), end_us)
    return before + [block for block in ended if block.address not in live.blocks], missing


def whole_history(events: Sequence[Event], end: State) -> History:
    """Return the history with the releases that are missing, and the bytes that every block takes."""
    actions = Action.ALLOCATED, Action.REQUESTED, Action.RELEASED
    blocks, releases = _completed(events, end.blocks, end.time_us, *actions)
    segments, shrinks = _completed(events, end.segments, end.time_us, Action.GROWN, Action.SHRUNK)
    # Of what has the same place, releases come first.
    placed = sorted([*releases, *shrinks, *enumerate(events)], key=lambda one: one[0])
    known = {block.address: block.taken_bytes for block in end.blocks}
    before = tuple(
        replace(block, taken_bytes=block.taken_bytes or _rounded(block.size_bytes))
        for block in sorted(blocks, key=lambda block: block.address)
    )
    taking = _Taking(before, segments, end, any(event.action is Action.MAPPED for event in events))
    return History(before, tuple(taking.of([event for _, event in placed], known)), len(releases))


_SPEC = CachingPoolSpec()


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // _SPEC.rounding) * _SPEC.rounding


class _Taking:
    """Tells what blocks take: what the allocator did not split off belongs to them."""

    def __init__(self, before: Sequence[Block], segments: Sequence[Block], end: State, grow: bool) -> None:
        """Follow blocks and segments from before the events; ``grow`` says that segments grow in place."""
        self._live, self._segments = _Ranges(before), _Ranges(segments)
        self._most_split, self._grow = end.most_split_bytes, grow

    def of(self, events: Sequence[Event], known: dict[int, int]) -> Iterator[Event]:
        """Yield the events, with the bytes that allocated blocks take; ``known`` of those that stay."""
        last = {event.block.address: event for event in events if event.action is Action.ALLOCATED}
        for event in events:
            address = event.block.address
            if event.action is Action.ALLOCATED:
                stays = known.get(address, 0) if last[address] is event else 0
                event = replace(event, block=replace(event.block, taken_bytes=stays or self._taken(event)))
                self._live.add(event.block)
            elif event.action is Action.RELEASED:
                self._live.remove(address)
            elif event.action is Action.GROWN:
                self._segments.add(event.block)
            elif event.action is Action.SHRUNK:
                self._segments.remove(address)
            yield event

    def _taken(self, event: Event) -> int:
        """Return the whole hole if its rest is too small to split off (``should_split`` of the allocator)."""
        block, rounded = event.block, _rounded(event.block.size_bytes)
        segment = self._segments.around(block.address)
        if segment is None or self._grow:
            return rounded
        hole = self._live.after(block.address, segment.address + segment.size_bytes) - block.address
        rest = hole - rounded
        if block.size_bytes <= _SPEC.small_limit:
            is_split = rest >= _SPEC.least_small_rest
        else:
            may_split = self._most_split is None or rounded < self._most_split
            is_split = may_split and rest > _SPEC.least_large_rest
        return rounded if is_split or rest < 0 else hole
