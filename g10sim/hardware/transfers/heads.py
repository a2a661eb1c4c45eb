"""Flows of a job: the heads of its queues, each with the victims that make room for it and its own limit."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from g10sim.config.system import SystemSpec
from g10sim.hardware.counts import GPU, NONE
from g10sim.hardware.faults import demand_rate, fault_batches, one_after_another
from g10sim.hardware.host_memory.host_buffers import slower
from g10sim.hardware.host_memory.pinned import PinnedCopies
from g10sim.hardware.links import Link, Topology, bandwidth_of, take_links
from g10sim.hardware.pools import Pool
from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.flows import DEMAND, EVICT, PREFETCH, Flow, Lane, Site
from g10sim.hardware.transfers.rates import Rates
from g10sim.hardware.transfers.staging import Staging
from g10sim.records import Location

_KEPT: Final = 4096
"""Rates of page faults that are kept: most faults are of whole tensors, whose sizes recur."""


class Heads:
    """Makes flows; pages of all jobs on a GPU make room for each other."""

    def __init__(
        self, system: SystemSpec, topology: Topology, pools: dict[Location, Pool], staging: Staging | None
    ) -> None:
        self.topology, self._pools, self._staging = topology, pools, staging
        self._page_bytes, self._fault = system.gpu.page_size, system.page_fault
        self.page_work = system.gpu.page_size * system.gpu.clock
        """A page, in what a cycle carries of a byte a second."""
        self._latencies = {tier.place: tier.latency for tier in system.all_tiers}
        tiers = tuple(pools)
        # A full tier's pages go to slower tiers, then to faster ones.
        self._spills = {tier: (*tiers[n:], *reversed(tiers[:n])) for n, tier in enumerate(tiers)}
        self._nearest = tiers[0]
        self._host = next((tier.place for tier in system.all_tiers if tier.name == "host"), None)
        pinned = system.host.pinned
        self.pinned = None if pinned is None else PinnedCopies(pinned)
        self._rate_of_faults = lru_cache(_KEPT)(self._faulting)

    def demanded_rate(self, site: Site, tensor: int, pages: int, place: Location) -> int:
        """Return the most bytes/second at which demanded pages of a tensor come from a place."""
        pinning, slow = self._buffer(site, tensor, place) if site.is_buffered else (0, 0)
        return self._rate_of_faults(site.gpu, pages, place, pinning, slow)

    def _faulting(self, gpu: int, pages: int, place: Location, pinning: int, slow: int) -> int:
        """Return the rate of demanded pages whose buffer takes a time to pin, and is ``slow`` if pageable."""
        latency = self._fault.latency + self._latencies.get(place, 0) + self.topology.per_copy(gpu, place)
        bandwidth = slower(bandwidth_of(self.topology.inward(gpu, place)), slow)
        size = pages * self._page_bytes
        batches = fault_batches(size, self._page_bytes, self._fault)
        return demand_rate(size, bandwidth, latency + pinning // batches, batches)

    def of_site(self, site: Site) -> list[Flow]:
        """Return the flows of a job."""
        if not site.memory.queues.busy:
            return []
        flows = self._evictions(site)
        evicting = bool(flows)
        for lane, later in site.arrivals:
            first = lane if lane.queue else later
            if first.queue:
                is_needed = first is lane or first.queue[0].tensor in site.memory.needed
                flow = self.arrival(first, DEMAND if is_needed else PREFETCH, evicting=evicting)
                if flow is not None:
                    flows.append(flow)
        if not flows and site.memory.awaits_needed:
            found = [self.arrival(later, DEMAND) for _, later in site.arrivals if later.queue]
            flows = [flow for flow in found if flow is not None]
        if self._staging is not None:
            return [flow for flow in flows if self._staging.is_ready(flow.run)]
        return flows

    def _evictions(self, site: Site) -> list[Flow]:
        flows = []
        for lane, wish in site.evictions:
            if not lane.queue or (target := self._destination(GPU, wish)) is None:
                continue
            run, links = lane.queue[0], self.topology.outward(site.gpu, target)
            if site.copies_wait:
                run.rate = self._rate_toward(site, run, target, links)
            links = self._staged(site, run.tensor, target, links) if site.is_buffered else links
            flows.append(Flow(lane, links, EVICT, target))
            if self._staging is not None and target is not wish:
                flows[-1].limit = self._staging.diverted_rate(flows[-1].limit, target)
        return flows

    def _rate_toward(self, owner: Site, run: Run, place: Location, links: list[Link]) -> int:
        """Return the most bytes/second of what leaves for a place, known since it began to do so; 0: any."""
        if run.rate and run.toward in (None, place):
            return run.rate
        run.toward = place
        return self._rate_of(owner, run, place, links)

    def _rate_of(self, site: Site, run: Run, place: Location, links: list[Link]) -> int:
        """Most bytes/second of a copy between the GPU and a place that has its links to itself; 0: any."""
        pinning, slow = self._buffer(site, run.tensor, place) if site.is_buffered else (0, 0)
        wait = self.topology.per_copy(site.gpu, place) + pinning
        if not wait and not slow:
            return 0
        bandwidth = slower(bandwidth_of(links), slow)
        return demand_rate(run.count * self._page_bytes, bandwidth, wait, 1) if wait else bandwidth

    def _staged(self, site: Site, tensor: int, place: Location, links: list[Link]) -> list[Link]:
        """Return the links of a copy; pages of pageable memory are written to a buffer and read, too."""
        if self.pinned is None or not self._buffer(site, tensor, place)[1]:
            return links
        return [*links, *self.topology.memory(site.gpu) * 2]

    def _buffer(self, site: Site, tensor: int, place: Location) -> tuple[int, int]:
        """Return the picoseconds until a tensor's buffer is pinned, and bytes/second if it is pageable."""
        memory, pinned = site.memory, self.pinned
        if pinned is None or place is not self._host:
            return 0, 0
        if tensor in memory.pageable:
            return 0, pinned.pageable_bandwidth
        size = memory.sizes[tensor] * self._page_bytes
        pinning = pinned.admit(site.job, tensor, size) if memory.pins else 0
        return (0, pinned.pageable_bandwidth) if pinning is None else (pinning, 0)

    def arrival(self, lane: Lane, rank: int, *, evicting: bool = False) -> Flow | None:
        """Return the flow of the run that is next in a queue; None: nobody makes room for it.

        Where planned evictions of the job are ``evicting`` pages, prefetches follow these.
        """
        site, run, links = lane.site, lane.queue[0], lane.links
        if site.copies_wait and not run.rate:
            run.rate = self._rate_of(site, run, lane.source, links)
        if site.is_buffered:
            links = self._staged(site, run.tensor, lane.source, links)
        follows = evicting and rank == PREFETCH
        if follows or site.memory.frames.free:
            flow = Flow(lane, links, rank)
            flow.follows = follows and not site.memory.frames.free
            return flow
        victim, owner = self._victim(site, demanded=rank == DEMAND)
        # Pages that the kernel needs wait for a planned eviction's room instead of pushing each other out.
        if victim is None or (evicting and victim.tensor in owner.memory.needed):
            return None
        if rank == PREFETCH and owner is site and site.victims.spares(run.tensor, victim.tensor):
            return None
        is_kept = owner.is_fickle and owner.memory.kept_in(victim.tensor, victim.count)
        if is_kept or owner.victims.is_worthless(victim.tensor):
            return Flow(lane, links, rank, NONE, victim, owner)
        target = self._destination(lane.source, self._nearest)
        return None if target is None else self._exchange(lane, links, rank, target, victim, owner)

    def _exchange(
        self, lane: Lane, links: list[Link], rank: int, target: Location, victim: Run, owner: Site
    ) -> Flow:
        """Return the flow of pages that come in while a victim leaves, before them or at the same time."""
        is_plain, outward = links is lane.links and not owner.is_buffered, self.topology.outward
        together, bandwidth, waits = lane.exchanges.get(target) or self._links_with(lane, target)
        is_limited = waits or not is_plain
        victim.rate = self._rate_toward(owner, victim, target, outward(lane.gpu, target)) if is_limited else 0
        if not is_plain:
            together = [*links, *self._staged(owner, victim.tensor, target, outward(lane.gpu, target))]
        flow = Flow(lane, together, rank, target, victim, owner)
        if flow.limit and self._fault.eviction == "serial":
            flow.limit = one_after_another(flow.limit, victim.rate or bandwidth)
        else:
            flow.limit = slower(flow.limit, victim.rate)
        return flow

    def _links_with(self, lane: Lane, target: Location) -> tuple[list[Link], int, bool]:
        """Return the links of arrivals and victims, the rate of these, and whether their copies wait."""
        outward = self.topology.outward(lane.gpu, target)
        waits = self.topology.per_copy(lane.gpu, target) > 0
        found = lane.exchanges[target] = [*lane.links, *outward], bandwidth_of(outward), waits
        return found

    def _victim(self, site: Site, *, demanded: bool) -> tuple[Run | None, Site]:
        """Return who makes room on a full GPU, and whose it is: the oldest of all jobs' own choices."""
        if len(site.neighbours) == 1:
            return site.victims.choose(site.memory, demanded), site
        best, owner = None, site
        for neighbour in site.neighbours:
            run = neighbour.victims.choose(neighbour.memory, demanded)
            if run is not None and (best is None or run.stamp < best.stamp):
                best, owner = run, neighbour
        return best, owner

    def alike(self, flow: Flow, most: int) -> tuple[list[Run], int]:
        """Return the victims that a flow uses up one after another, at one rate, and their pages that leave.

        It is the only flow; what comes is, or joins, the last run of the eviction order. All but the last
        leave whole, and that one, too, where ``most`` pages are fewer than may come; otherwise some of it
        stay. None where victims may be chosen otherwise meanwhile: for a prefetch that is demanded only as
        nothing else can move.
        """
        site, run, pool, found = flow.lane.site, flow.run, flow.filled, list[Run]()
        memory, rule, demanded = site.memory, site.victims, flow.rank == DEMAND
        is_fixed = not demanded or run.tensor in memory.needed
        if not is_fixed or site.is_fickle or site.copies_wait or not memory.joins_last(run.tensor):
            return found, 0
        coming = run.count if pool is None else min(run.count, pool.free)
        left = total = min(most, coming)
        for victim in rule.upcoming(memory, demanded):
            tensor = victim.tensor
            too_many = victim.count > left if most < coming else victim.count == left
            if left <= 0 or too_many or tensor == run.tensor:
                break
            if tensor in memory.needed or rule.is_worthless(tensor) == bool(flow.target):
                break
            if not demanded and rule.spares(run.tensor, tensor):
                break
            found.append(victim)
            left -= victim.count
        return found, total - max(0, left)

    def is_alone(self, site: Site) -> bool:
        """Return whether a job has one flow, and nothing else waits to move, nor is pinned before it does.

        What is next would be pinned too early: whoever waits may call it off.
        """
        pins = site.memory.pins and self.pinned is not None
        return len(site.flows) == 1 and site.memory.queues.count == 1 and not pins

    def _destination(self, source: Location, wish: Location) -> Location | None:
        """Return where leaving pages find room, or the room that arrivals from ``source`` leave."""
        for place in self._spills[wish]:
            if self._pools[place].free or place is source:
                return place
        return None


class Reached(NamedTuple):
    """The cycle that a flow has reached, after a number of ``changes``.

    ``left`` are the cycles until the next change; None: there is none, or flows have still to be made.
    """

    now: int
    changes: int
    left: int | None
    is_made: bool


def go_on(site: Site, heads: Heads, rates: Rates, now: int, end: int, *, is_watched: bool) -> Reached:
    """Move what ``is_alone``, whose rate is that of its links, from change to change up to the cycle ``end``.

    Most changes of a kernel that waits for page faults are of this kind. They are the same as those that
    ``FluidTransfers`` makes of any number of flows.

    Ends at the first change after which something else may move. If it ``is_watched``, by the kernel that
    waits, then also where that may have what it waits for, or wait for another reason.
    """
    memory, flow, changes, page_work = site.memory, site.flows[0], 0, heads.page_work
    lane, queue = flow.lane, flow.lane.queue
    is_fault, is_held_up = queue is memory.queues.fault[lane.source], flow.is_held_up
    while True:
        run, victim, progress, rate, room = flow.run, flow.victim, flow.progress, flow.rate, flow.room
        most = min(run.count, max(room, progress // page_work + 1))
        left = max(1, -(-(most * page_work - progress) // rate)) if rate else None
        if left is None or now + left > end:
            return Reached(now, changes, left, is_made=True)
        before: list[Run] = []
        if victim is not None and 0 < victim.count < run.count and progress < page_work > rate:
            alike, pages = heads.alike(flow, (progress + rate * (end - now)) // page_work)
            if len(alike) > 1:
                *before, victim = alike
                room, left = pages, -(-(pages * page_work - progress) // rate)
        now, changes, site.until = now + left, changes + 1 + len(before), now + left
        site.busy_cycles += left if site.is_busy else 0
        progress += rate * left
        pages = min(progress // page_work, room)
        progress -= pages * page_work
        memory.commit(queue, run, pages, flow.source, flow.target, victim, memory, before)
        if before and victim is not None and victim.count:
            # As after each of them: the eviction order goes on to the last.
            site.victims.choose(memory, flow.rank == DEMAND)
        memory.note_peak()
        if memory.notes_arrivals:
            memory.reorder()
        lane.carry = min(progress, page_work) if queue else 0
        # The running kernel's pages that leave fault again, from another queue.
        leaver = run if flow.source is GPU else victim
        if not queue or (leaver is not None and leaver.tensor in memory.needed):
            return Reached(now, changes, None, is_made=False)
        rank, found = flow.rank, _next(site, lane, heads, is_fault=is_fault)
        if found is None or not rates.follow_from_links(site.flows):
            return Reached(now, changes, None, is_made=found is None)
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
        take_links(flow)
    site.begin(site.until)
    return site.flows[0] if site.flows else None
