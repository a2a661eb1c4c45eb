"""The number of DMA batches to come that are like the last one, and may be applied in one step."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from g10sim.hardware.counts import GPU
from g10sim.hardware.memory import Residency
from g10sim.hardware.recency import ANY_NUMBER, MERGE_PAGES
from g10sim.hardware.runs import Run
from g10sim.records import Location

_AHEAD: Final = 64
"""Runs of a queue that are looked at ahead."""


class BatchMove(NamedTuple):
    """``pages`` of ``run`` came from ``source``; as many of ``victim`` went to ``target`` for them.

    A planned eviction has source GPU, no victim, and its own target.
    """

    queue: deque[Run]
    source: Location
    run: Run
    victim: Run | None
    pages: int
    target: Location
    demanded: bool


def are_alike(moves: Sequence[BatchMove], others: Sequence[BatchMove]) -> bool:
    """Return whether two batches take equally many pages of the same runs to the same places."""
    if len(moves) != len(others):
        return False
    for (_, source, run, victim, pages, target, _), other in zip(moves, others, strict=True):
        _, other_source, other_run, other_victim, other_pages, other_target, _ = other
        if run is not other_run or victim is not other_victim or pages != other_pages:
            return False
        if source != other_source or target != other_target:
            return False
    return True


def repeats_of_runs(memory: Residency, moves: Iterable[BatchMove]) -> tuple[int, int]:
    """Return the batches until a run is used up, and how many at once do not blur the eviction order.

    Arrivals of several runs interleave there.
    """
    used: dict[Run, int] = {}
    arrivals: dict[int, int] = {}
    for _, source, run, victim, count, target, _ in moves:
        used[run] = used.get(run, 0) + count
        leaver = run if source is GPU else victim
        if source is not GPU:
            arrivals[run.tensor] = arrivals.get(run.tensor, 0) + count
        if victim is not None:
            used[victim] = used.get(victim, 0) + count
        if target and leaver is not None and leaver.tensor in memory.needed:
            back = memory.queues.fault[target]
            if back and back[-1].tensor == leaver.tensor:
                used[back[-1]] = used.get(back[-1], 0) - count
    repeats = sys.maxsize if any(use > 0 for use in used.values()) else MERGE_PAGES
    for run, use in used.items():
        if run.count <= repeats * use:
            repeats = (run.count - 1) // use
    at_once = MERGE_PAGES // max(arrivals.values()) if len(arrivals) > 1 else repeats
    return max(0, repeats), at_once


def repeats_in_room(memory: Residency, moves: Iterable[BatchMove], batch_pages: int) -> int:
    """Return the batches until the GPU or a tier comes so close to full that moves may differ."""
    host_place, flash_place = memory.tiers
    gpu = host = flash = 0
    for _, source, _, victim, count, target, _ in moves:
        host += count * ((target == host_place) - (source == host_place))
        flash += count * ((target == flash_place) - (source == flash_place))
        if source is GPU:
            gpu -= count
        elif victim is None:
            gpu += count
    limits = [1 << 62]
    if gpu > 0:
        limits.append((memory.frames.free - 1) // gpu)
    if host > 0:
        limits.append((memory.pools[host_place].free - batch_pages - 1) // host)
    if flash > 0:
        limits.append(memory.pools[flash_place].free // flash)
    return max(0, min(limits))


def in_turn(memory: Residency, moves: Sequence[BatchMove]) -> int:
    """Return the pages of a queue that go on to arrive as those of a batch did.

    There are none unless that batch served one queue, and victims made room for all its pages. No victim is
    needed, so that none has come back to the fault queues. Pages of further runs arrive as those of one do
    where that queue is the only one, nobody can tell that a run has come, and none joins earlier pages of its
    tensor.
    """
    queue, needed, merging = moves[-1].queue, memory.needed, memory.recency.merging
    if not queue or moves[0].queue is not queue:
        return 0
    for _, _, _, victim, _, _, _ in moves:
        if victim is None or victim.tensor in needed:
            return 0
    head, is_fault = queue[0], queue is memory.queues.fault[moves[0].source]
    if merging(head.tensor) not in (0, ANY_NUMBER):
        return 0
    if moves[0].demanded and not is_fault and head is not moves[0].run:
        return 0  # what the kernel waits for may have come
    pages, came = head.count, {head.tensor}
    if memory.queues.count > 1 or memory.awaits or (head.tensor in needed and not is_fault):
        return pages
    for run in islice(queue, 1, _AHEAD):
        tensor = run.tensor
        is_awaited = tensor in needed and not is_fault
        if tensor in came or is_awaited or (memory.idle[tensor] and merging(tensor)):
            break
        came.add(tensor)
        pages += run.count
    return pages
