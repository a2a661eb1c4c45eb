"""Rotations: a prefetch that pushes out the latest pages of its own tensor, run after run.

Where a scan for victims has come to the end of the eviction order, what arrives is the only victim left for
the pages that follow it. Each round exchanges as many pages as the last one brought. Rounds are alike, and
are jumped together, as long as no other page moves but those that go by: they come in for victims of their
own, and the scan passes them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from g10sim.hardware.memory import Residency
from g10sim.hardware.recency import Run
from g10sim.records import Location


class RotatingFlow(Protocol):
    """A flow of transfers as rotations see it; ``progress`` is less than a page that has moved already."""

    run: Run
    victim: Run | None
    source: Location
    target: Location
    follows: bool
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


def goes_by(other: RotatingFlow, memory: Residency) -> bool:
    """Tell whether a flow that is served before a rotation brings in pages that this leaves alone.

    They become more recent than the pages that rotate, and in the next round less recent; the scan passes
    them. Their own victims are dropped.
    """
    if other.victim is None or other.target or other.source == Location.GPU or other.follows:
        return False
    return other.run.tensor in memory.protected and other.victim.tensor not in memory.needed


def rounds_of(
    flow: RotatingFlow,
    others: Collection[RotatingFlow],
    page_work: int,
    room_pages: int | None,
    memory: Residency | None,
) -> int:
    """Return how many rounds of a rotation are alike: before another page moves, or what moves is used up.

    ``room_pages`` is the room where the victims go; None: it does not fill. Pages of a single other flow that
    goes by do not count; without ``memory`` none does.
    """
    assert flow.victim is not None
    if not 0 <= flow.progress < flow.rate <= page_work:
        return 0
    pages = flow.victim.count
    rounds = flow.run.count // pages - 1
    if room_pages is not None:
        rounds = min(rounds, (room_pages - len(others)) // pages - 1)
    waits = [cycles_to_page(other, page_work) for other in others if other.rate]
    for other in others if waits and len(others) == 1 and room_pages is None else ():
        if memory is not None and other.victim is not None and goes_by(other, memory):
            pages_left = min(other.run.count, other.victim.count)
            waits = [max(*waits, (pages_left * page_work - other.progress) // other.rate)]
    if waits:
        rounds = min(rounds, (flow.progress + flow.rate * (min(waits) - 1)) // (pages * page_work))
    return max(0, rounds)
