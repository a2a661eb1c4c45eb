"""Rotations: a prefetch that pushes out the latest pages of its own tensor, run after run.

Where a scan for victims has come to the end of the eviction order, what arrives is the only victim left for
the pages that follow it. Each round exchanges as many pages as the last one brought; rounds between which no
other page moves are alike, and are jumped together.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from g10sim.hardware.memory import Residency
from g10sim.hardware.recency import Run
from g10sim.records import Location


class RotatingFlow(Protocol):
    """What a flow of transfers says about itself; ``progress`` is less than a page that has moved already."""

    run: Run
    victim: Run | None
    source: Location
    rate: int
    progress: int


def cycles_to_page(flow: RotatingFlow, page_work: int) -> int:
    """Return the cycles until the next page of a flow has moved."""
    return -(-((flow.progress // page_work + 1) * page_work - flow.progress) // flow.rate)


def is_rotation(victim: Run, others: Collection[RotatingFlow], memory: Residency) -> bool:
    """Tell whether a flow that pushes out what it has brought last will again, whatever the others do."""
    return (
        victim.tensor not in memory.needed
        and not victim.rate
        and memory.recency.is_scanned_to_end(victim)
        and not memory.space.notes_arrivals
        and not any(other.victim is victim for other in others)
    )


def rounds_of(
    flow: RotatingFlow, others: Collection[RotatingFlow], page_work: int, room_pages: int | None
) -> int:
    """Return how many rounds of a rotation are alike: before another page moves, or what moves is used up.

    ``room_pages`` is the room where the victims go; None: it does not fill.
    """
    assert flow.victim is not None
    if not 0 <= flow.progress < flow.rate <= page_work:
        return 0
    pages = flow.victim.count
    rounds = flow.run.count // pages - 1
    if room_pages is not None:
        rounds = min(rounds, (room_pages - len(others)) // pages - 1)
    waits = [cycles_to_page(other, page_work) for other in others if other.rate]
    if waits:
        rounds = min(rounds, (flow.progress + flow.rate * (min(waits) - 1)) // (pages * page_work))
    return max(0, rounds)
