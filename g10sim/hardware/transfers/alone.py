"""The only flow of the only job: it goes on from change to change without a look at anything else.

Most changes of a kernel that waits for page faults are of this kind. They are the same as those that
``FluidTransfers`` makes of any number of flows.
"""

from __future__ import annotations

from typing import NamedTuple

from g10sim.hardware.counts import GPU
from g10sim.hardware.links import take_all
from g10sim.hardware.transfers.flows import DEMAND, PREFETCH, Flow, Lane, Site
from g10sim.hardware.transfers.heads import Heads


class Reached(NamedTuple):
    """The cycle that a flow has reached, after a number of ``changes``.

    ``left`` are the cycles until the next change; None: there is none, or flows have still to be made.
    """

    now: int
    changes: int
    left: int | None
    is_made: bool


def is_alone(site: Site) -> bool:
    """Return whether a job has one flow, and nothing else waits to move."""
    return len(site.flows) == 1 and site.memory.queues.count == 1


def go_on(site: Site, heads: Heads, page_work: int, now: int, end: int, *, is_watched: bool) -> Reached:
    """Move what ``is_alone``, whose rate is that of its links, from change to change up to the cycle ``end``.

    Ends at the first change after which something else may move. If it ``is_watched``, by the kernel that
    waits, then also where that may have what it waits for, or wait for another reason.
    """
    memory, flow, changes = site.memory, site.flows[0], 0
    lane, queue = flow.lane, flow.lane.queue
    is_fault, is_held_up = queue is memory.queues.fault[lane.source], flow.is_held_up
    while True:
        run, victim, filled, progress, rate = flow.run, flow.victim, flow.filled, flow.progress, flow.rate
        used = run if victim is None else victim
        room = run.count if run.count < used.count else used.count
        if used is run and flow.source is not GPU and memory.frames.free < room:
            room = memory.frames.free
        if filled is not None and filled.free < room:
            room = filled.free
        most = min(run.count, max(room, progress // page_work + 1))
        left = max(1, -(-(most * page_work - progress) // rate)) if rate else None
        if left is None or now + left > end:
            return Reached(now, changes, left, is_made=True)
        now, changes, site.until = now + left, changes + 1, now + left
        site.busy_cycles += left if site.is_busy else 0
        progress += rate * left
        pages = min(progress // page_work, room)
        progress -= pages * page_work
        memory.commit(queue, run, pages, flow.source, flow.target, victim)
        memory.note_peak()
        if memory.notes_arrivals:
            memory.reorder()
        lane.carry = min(progress, page_work) if queue else 0
        # The running kernel's pages that leave fault again, from another queue.
        if not queue or (used is victim and used.tensor in memory.needed):
            return Reached(now, changes, None, is_made=False)
        rank, found = flow.rank, _next(site, lane, heads, is_fault=is_fault)
        if found is None:
            return Reached(now, changes, None, is_made=True)
        flow, was_held_up, is_held_up = found, is_held_up, found.is_held_up
        has_come = not is_fault and not run.count and run.tensor in memory.needed
        if is_watched and (has_come or flow.rank != rank or is_held_up != was_held_up):
            end = now


def _next(site: Site, lane: Lane, heads: Heads, *, is_fault: bool) -> Flow | None:
    """Make the flow of the next run in the only queue that has any; None where nobody makes room for it."""
    memory = site.memory
    if lane.source is GPU:
        site.flows = heads.of_site(site)
    else:
        is_needed = is_fault or lane.queue[0].tensor in memory.needed
        found = heads.arrival(lane, DEMAND if is_needed else PREFETCH)
        if found is None and not is_needed and memory.awaits_needed:
            found = heads.arrival(lane, DEMAND)
        site.flows = [] if found is None else [found]
    for flow in site.flows:
        for link in flow.links:
            link.left = link.capacity
        take_all(flow)
    site.begin(site.until)
    return site.flows[0] if site.flows else None
