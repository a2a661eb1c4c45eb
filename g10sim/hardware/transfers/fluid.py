"""Transfers as flows at constant rates between changes (any number of GPUs on a tree of links).

Each queue's first run flows at a rate that its links allow: demanded pages first, planned evictions
next, prefetches last; flows of equal rank share max-min fair. When GPU memory is full, pages that come in
push out as many victims, and such a flow needs both directions. Something changes when a run or a victim
is used up or a memory becomes full; between changes whole pages are counted from rate times time, and the
part of a page that has moved is carried over.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from itertools import count as counter

from g10sim.config.system import SystemSpec
from g10sim.errors import InvariantError
from g10sim.hardware.door import Door
from g10sim.hardware.faults import demand_rate, fault_batches, one_after_another
from g10sim.hardware.flash.pool import FlashPool, SsdPort
from g10sim.hardware.host_memory.compression import Work
from g10sim.hardware.host_memory.pinned import PinnedCopies
from g10sim.hardware.links import Link, Share, Topology, share_alone, share_in_order, share_max_min
from g10sim.hardware.memory import Pool, Residency
from g10sim.hardware.recency import MERGE_PAGES
from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.changes import NextChange
from g10sim.hardware.transfers.flows import DEMAND, EVICT, PREFETCH, Flow, Lane, Site
from g10sim.hardware.transfers.interface import Due, Observer, VictimRule, report, restart_choice, spill_order
from g10sim.hardware.transfers.staging import Staging
from g10sim.records import Location, StallReason

_NONE, _GPU = Location.NONE, Location.GPU

# In bytes and relative to GPU memory, merging is as fine with large pages and in small memories as elsewhere.
_MERGE_BYTES = MERGE_PAGES * 4096
_MERGE_SHARE = 64


class Message(Share):
    """Bytes on their way between GPUs, or between a processor and memory, with which no pages move.

    An access is that of a running kernel to tensors where they lie, or of the host's workers to its memory.
    """

    __slots__ = ("is_access", "order", "work")

    def __init__(
        self, links: list[Link], work: int, order: int, limit: int = 0, *, is_access: bool = False
    ) -> None:
        super().__init__(links, limit)
        self.work, self.order, self.is_access = work, order, is_access

    @property
    def is_done(self) -> bool:
        """Tell whether all of it has arrived."""
        return self.work <= 0


class FluidTransfers:
    """Moves the pages in the queues of all GPUs."""

    def __init__(
        self,
        system: SystemSpec,
        pools: Sequence[Pool],
        observer: Observer | None = None,
        staging: Staging | None = None,
        door: Door | None = None,
    ) -> None:
        self._door = door or Door()
        self._changes = 0
        self._staging = staging
        self.topology = staging.topology if staging is not None else Topology(system)
        self._page_bytes = system.gpu.page_size
        self._page_work = system.gpu.page_size * system.gpu.clock
        if staging is not None and system.host.memory_bandwidth is not None:
            staging.share_memory(self._carry)
        self._fault = system.page_fault
        self._latencies = {tier.place: tier.latency for tier in system.all_tiers}
        self._pools = {pool.tier.place: pool for pool in pools}
        self._spills = {place: spill_order(tuple(self._pools), place) for place in self._pools}
        self._nearest = pools[0].tier.place
        self._host = next((tier.place for tier in system.all_tiers if tier.name == "host"), None)
        pinned = system.host.pinned
        self._pinned = None if pinned is None else PinnedCopies(pinned)
        ports = self.topology.ports
        self._ssds = [SsdPort(pool, *ports[pool.tier.place]) for pool in pools if isinstance(pool, FlashPool)]
        self._observer = observer
        self._sites: dict[int, Site] = {}
        self._on_gpu: dict[int, list[Site]] = {}
        self._busy: dict[int, int] = {}
        self._messages: list[Message] = []
        self._service, self._clock = system.pcie.service, system.gpu.clock
        self._orders, self._gpus = counter(1), system.gpu.count
        self._turns = [0] * system.gpu.count
        self._flows: list[Flow] | None = []
        self._now = 0
        self._left: int | None = None
        self._left_at = -1
        self._next = NextChange(
            self._pools,
            self._page_work,
            self._sites,
            self._on_gpu,
            is_observed=observer is not None,
            is_staged=staging is not None,
        )
        self.events = 0

    def send(self, links: list[Link], size_bytes: int) -> Message:
        """Send bytes over links from now on, beside planned evictions and like them after demanded pages."""
        order = self._now * self._gpus if self._service == "deadline" else next(self._orders)
        return self._post(Message(links, size_bytes * self._clock, order))

    def access(self, job: int, tier: Location, size_bytes: int, *, inward: bool) -> Message:
        """Let a job's running kernel read (``inward``) or write bytes in a memory tier from now on."""
        gpu, pool = self._sites[job].gpu, self._pools[tier]
        rates = pool.tier.kernel_access
        if rates is None:
            raise InvariantError(f"a kernel uses tensors in {pool.name} where they lie")
        limit = rates.read if inward else rates.write
        links = self.topology.inward(gpu, tier) if inward else self.topology.outward(gpu, tier)
        return self._post(Message(links, size_bytes * self._clock, 0, limit or 0, is_access=True))

    def use_host(self, gpu: int, size_bytes: int, limit: int) -> Message:
        """Let a kernel on the CPU of a GPU's socket use its memory from now on, at most at a rate, if any."""
        links = self.topology.memory(gpu)
        return self._post(Message(links, size_bytes * self._clock, 0, limit, is_access=True))

    def _carry(self, work: Work) -> Message:
        """Let what the host's workers read and write pass through its memory, as fast as they are at most."""
        rate = max(1, work.moved_bytes * self._clock // max(1, work.cycles))
        links = self.topology.memory(work.gpu)
        return self._post(Message(links, work.moved_bytes * self._clock, 0, rate, is_access=True))

    def _post(self, message: Message) -> Message:
        self._messages.append(message)
        self.changed()
        return message

    def attach(
        self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due | None = None
    ) -> None:
        """Serve a job's memory on a GPU from now on; ``due`` tells when it will need a tensor."""
        for ssd in self._ssds:
            ssd.begin()
        self._sites[job] = site = Site(job, gpu, memory, victims, due)
        self._on_gpu.setdefault(gpu, []).append(site)
        share = memory.frames.capacity_pages // _MERGE_SHARE
        memory.recency.merge_pages = min(MERGE_PAGES, _MERGE_BYTES // self._page_bytes, share)
        self._busy[job] = 0
        self.changed()

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended."""
        site = self._sites.pop(job)
        self._on_gpu[site.gpu].remove(site)
        if self._staging is not None:
            self._staging.close(job)

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a job's tensor that is not on the GPU nor in transfer on the fault queues."""
        site = self._sites[job]

        def rate(pages: int, place: Location) -> int:
            latency = self._fault.latency + self._latencies.get(place, 0)
            latency += self.topology.per_copy(site.gpu, place, inward=True)
            pinning, slow = self._buffer(site, tensor, place)
            bandwidth = self.topology.path_bandwidth(site.gpu, place)
            bandwidth = min(bandwidth, slow or bandwidth)
            size = pages * self._page_bytes
            batches = fault_batches(size, self._page_bytes, self._fault)
            return demand_rate(size, bandwidth, latency + pinning // batches, batches)

        site.memory.demand(tensor, rate)

    def link_use(self, gpu: int) -> float:
        """Return how much of both directions of a GPU's link copies fill now, from 0 to 1."""
        own = self.topology.own(gpu)
        copies: list[Share] = [*self._current(), *(one for one in self._messages if not one.is_access)]
        used = sum(copy.rate for copy in copies for link in own if link in copy.links)
        return used / sum(link.capacity for link in own)

    def state(self, job: int) -> Hashable:
        """Return what of a job is on links now, beyond its queues, and of all GPUs.

        None, not known, where a drive's flash is in use, which wears, and while copies wait for their turn.
        """
        site = self._sites[job]
        in_turn = self._service != "fair" and site.memory.queues.busy
        if in_turn or any(isinstance(pool, FlashPool) and pool.used for pool in self._pools.values()):
            return None
        lanes = (lane for first, second, _ in site.arrivals for lane in (first, second))
        carried = [lane.carry for lane in (*lanes, *(lane for lane, _ in site.evictions))]
        sent = [(message.work, message.limit, message.is_access) for message in self._messages]
        sent += [] if self._pinned is None else [(len(self._pinned), 0, False)]
        return *carried, *sent, *(turn % 2 for turn in self._turns)

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job crossed its GPU's link."""
        return self._busy.get(job, 0)

    def bottleneck(self, job: int) -> StallReason | None:
        """Tell whether eviction, or others on a shared link, slow a job's demanded pages."""
        for flow in self._current():
            site, link = flow.lane.site, flow.bottleneck
            if site.job == job and flow.rank == DEMAND and link is not None:
                if link not in self.topology.inward(site.gpu, flow.source):
                    return StallReason.EVICTION
                shared = link.shared or len(self._on_gpu[site.gpu]) > 1
                if shared and flow.rate < link.capacity and len(self._sites) > 1:
                    return StallReason.LINK_CONTENTION
        return None

    def changed(self, jobs: Collection[int] = (), now: int | None = None) -> None:
        """Let room be used, and forget the rates: queues, working sets or eviction orders were altered.

        Victims are chosen anew for ``jobs``. Raises InvariantError unless transfers are at the cycle ``now``.
        """
        self._check_time(now)
        self.settle()
        self._flows = None
        for job in jobs:
            if job in self._sites:
                restart_choice(self._sites[job].memory, self._sites[job].victims)

    def _check_time(self, now: int | None) -> None:
        if now is not None and self._now != now:
            raise InvariantError(f"memory was changed at cycle {now} with transfers at {self._now}")

    def next_change(self, now: int | None = None) -> int | None:
        """Cycle at which a run or a victim is used up or a memory is full, or None.

        Raises InvariantError unless transfers are at the cycle ``now``.
        """
        self._check_time(now)
        left = self._until_change()
        return None if left is None else self._now + left

    def advance(self, now: int) -> None:
        """Move everything that moves up to the cycle ``now``."""
        while self._now < now:
            flows, left = self._current(), self._until_change()
            if not flows and left is None:
                for ssd in self._ssds:
                    ssd.advance(now - self._now)
                self._now = now
            elif left is not None and self._now + left <= now:
                self._move(flows, left)
                self.settle()
                self._flows = None
                self.events += 1
            else:
                self._move(flows, now - self._now)
        if self._staging is not None:
            self._staging.advance(now)

    def settle(self) -> None:
        """Let every job use the room that transfers, or other jobs, have made."""
        if self._staging is None:
            return  # the next transfer takes any page
        sites = self._sites.values()
        for site in sites:
            site.memory.settle()
        if len(sites) > 1 and any(site.memory.space.waiting for site in sites):
            for site in sites:  # what one job gave back is there for those before it, too
                site.memory.settle()

    def _current(self) -> list[Flow]:
        if self._flows is None:
            self._flows = self._make_flows()
            self._changes = self._door.changes
            self._left_at = -1
        elif self._changes != self._door.changes:
            raise InvariantError("links were not shared anew after memory had changed")
        return self._flows

    def _make_flows(self) -> list[Flow]:
        sites = [site for site in self._sites.values() if site.memory.queues.busy]
        flows = [flow for site in sites for flow in self._site_flows(site)]
        if flows or self._messages:
            share = partial(self._share_links, flows)
            for ssd in self._ssds:
                share = partial(ssd.share, share)
            share()
        else:
            for ssd in self._ssds:
                ssd.rest()
        return flows

    def _share_links(self, flows: list[Flow]) -> None:
        """Give every flow its rate: demanded ones first, then planned evictions, then prefetches."""
        if len(flows) == 1 and self._service == "fair" and not self._messages and not self._ssds:
            share_alone(flows[0])
            return
        self._free_links()
        if self.topology.has_duplex and self._service == "fair":
            self._split_directions(flows)
        accesses = [message for message in self._messages if message.is_access]
        if accesses:
            self._serve_kernels(accesses, flows)
        self._share([flow for flow in flows if flow.rank == DEMAND])
        messages = [message for message in self._messages if not message.is_access]
        self._share([flow for flow in flows if flow.rank == EVICT], messages)
        prefetches = [flow for flow in flows if flow.rank == PREFETCH]
        self._limit_followers(flows, [flow for flow in prefetches if flow.follows])
        self._share(prefetches)
        for access in accesses:
            access.take_more()

    def _serve_kernels(self, accesses: Sequence[Message], flows: list[Flow]) -> None:
        """Give kernels that use memory where it lies their fair part beside copies of all ranks."""
        shares = [*flows, *self._messages]
        before = {link: link.left for share in shares for link in share.links}
        share_max_min(shares)
        for link, left in before.items():
            link.left = left
        for access in accesses:
            access.use_links()

    def _free_links(self) -> None:
        self.topology.reset()
        for ssd in self._ssds:
            ssd.limit()

    def _split_directions(self, flows: list[Flow]) -> None:
        """Share what limits both directions of a link evenly: ranks order the copies of one direction."""
        share_max_min([*flows, *self._messages])
        shares = self.topology.full_directions(rounding=len(flows) + len(self._messages))
        self._free_links()
        for link, used in shares:
            link.left = min(link.left, used)

    def _share(self, flows: list[Flow], messages: Sequence[Message] = ()) -> None:
        """Give flows of equal rank their rates, in the order or fairness that the links serve them in."""
        if self._service == "fair":
            share_max_min([*flows, *messages])
            return
        orders = self._turns_of(flows)
        ordered: list[tuple[int, int, Share]] = [
            (order, flow.lane.gpu, flow) for order, flow in zip(orders, flows, strict=True)
        ]
        ordered += [(message.order, -1, message) for message in messages]
        share_in_order([share for *_, share in sorted(ordered, key=lambda entry: entry[:2])])

    def _turns_of(self, flows: list[Flow]) -> list[int]:
        """Return when the turns of flows come; those of one GPU that are due at the same cycle keep order."""
        orders = [self._order(flow) for flow in flows]
        if self._service == "first_come":
            return orders
        due = [(flow.lane.gpu, order // self._gpus) for order, flow in zip(orders, flows, strict=True)]
        turns: dict[tuple[int, int], list[int]] = {}
        for order, key in sorted(zip(orders, due, strict=True), reverse=True):
            turns.setdefault(key, []).append(order)
        return [turns[key].pop() for key in due]

    def _order(self, flow: Flow) -> int:
        """Return when a flow's turn comes: by age, or by when its tensor is needed (what leaves: at once).

        Those that are needed at the same cycle take turns: the first of every GPU in the order of the GPUs,
        the second in the opposite order, and so on. So the turns of some GPUs are the same whoever else
        is there.
        """
        run, due, gpu = flow.run, flow.lane.site.due, flow.lane.gpu
        if not run.stamp:
            if self._service == "first_come":
                run.stamp = next(self._orders)
            else:
                arrives = due is not None and flow.source != _GPU
                cycle = max(1, due(run.tensor, self._now) if due is not None and arrives else self._now)
                run.stamp = cycle * self._gpus + (self._gpus - 1 - gpu if self._turns[gpu] % 2 else gpu)
                self._turns[gpu] += 1
        return run.stamp

    @staticmethod
    def _limit_followers(flows: list[Flow], followers: list[Flow]) -> None:
        """Share the rate of each job's planned evictions among its prefetches that wait for their room."""
        for flow in followers:
            site = flow.lane.site
            emptied = sum(other.rate for other in flows if other.rank == EVICT and other.lane.site is site)
            rivals = sum(other.lane.site is site for other in followers)
            flow.limit = max(1, emptied // rivals)

    def _site_flows(self, site: Site) -> list[Flow]:
        flows = self._evictions(site)
        evicting = bool(flows)
        for lane, later, source in site.arrivals:
            if lane.queue:
                self._add_arrival(flows, lane, source, DEMAND, evicting)
            elif later.queue:
                needed = later.queue[0].tensor in site.memory.needed
                self._add_arrival(flows, later, source, DEMAND if needed else PREFETCH, evicting)
        if not flows and any(site.memory.moving[tensor] for tensor in site.memory.needed):
            for _, later, source in site.arrivals:
                if later.queue:
                    self._add_arrival(flows, later, source, DEMAND, evicting)
        if self._staging is not None:
            return [flow for flow in flows if self._staging.is_ready(flow.run)]
        return flows

    def _evictions(self, site: Site) -> list[Flow]:
        flows = []
        for lane, wish in site.evictions:
            if lane.queue:
                target = self._destination(_GPU, wish)
                if target is None:
                    continue
                links = self.topology.outward(site.gpu, target)
                self._start_copy(lane, target, links, inward=False)
                links = self._staged(site, lane.queue[0].tensor, target, links)
                flows.append(Flow(lane, _GPU, None, target, links, EVICT, self._pools[target]))
                if self._staging is not None and target != wish:
                    flows[-1].limit = self._staging.diverted_rate(flows[-1].limit, target)
        return flows

    def _start_copy(self, lane: Lane, place: Location, links: list[Link], *, inward: bool) -> None:
        """Limit the rate of a copy that is next in its queue, where links make it wait before it moves."""
        run = lane.queue[0]
        if not run.rate:
            run.rate = self._rate_of(lane.site, run, place, links, inward=inward)

    def _rate_of(self, site: Site, run: Run, place: Location, links: list[Link], *, inward: bool) -> int:
        """Most bytes/second of a copy between the GPU and a place that has its links to itself; 0: any."""
        pinning, slow = self._buffer(site, run.tensor, place) if site.is_buffered else (0, 0)
        wait = self.topology.per_copy(site.gpu, place, inward=inward) + pinning
        return self._copy_rate(run.count, links, wait, slow) if wait or slow else 0

    def _staged(self, site: Site, tensor: int, place: Location, links: list[Link]) -> list[Link]:
        """Return the links of a copy: beside pageable memory, they are written to a buffer and read."""
        if not site.is_buffered or self._pinned is None or not self._buffer(site, tensor, place)[1]:
            return links
        return [*links, *self.topology.memory(site.gpu) * 2]

    def _buffer(self, site: Site, tensor: int, place: Location) -> tuple[int, int]:
        """Return the picoseconds until a tensor's buffer is pinned, and bytes/second if it is pageable."""
        memory, pinned = site.memory, self._pinned
        if pinned is None or place != self._host:
            return 0, 0
        if tensor in memory.pageable:
            return 0, pinned.pageable_bandwidth
        size = memory.sizes[tensor] * self._page_bytes
        pinning = pinned.admit(site.job, tensor, size) if memory.pins else 0
        return (0, pinned.pageable_bandwidth) if pinning is None else (pinning, 0)

    def _copy_rate(self, pages: int, links: list[Link], wait_ps: int, slow: int) -> int:
        """Rate of a copy that has its links to itself, after a wait, and no more than ``slow``, if any."""
        bandwidth = min(link.capacity for link in links)
        bandwidth = min(bandwidth, slow or bandwidth)
        return demand_rate(pages * self._page_bytes, bandwidth, wait_ps, 1) if wait_ps else bandwidth

    def _add_arrival(
        self, flows: list[Flow], lane: Lane, source: Location, rank: int, evicting: bool
    ) -> None:
        site, links = lane.site, self.topology.inward(lane.gpu, source)
        self._start_copy(lane, source, links, inward=True)
        links = self._staged(site, lane.queue[0].tensor, source, links)
        follows = evicting and rank == PREFETCH
        if follows or site.memory.frames.free:
            flows.append(Flow(lane, source, None, _NONE, links, rank, None))
            flows[-1].follows = follows and not site.memory.frames.free
            return
        victim, owner = self._victim(site, demanded=rank == DEMAND)
        # Pages that the kernel needs wait for a planned eviction's room instead of pushing each other out.
        if victim is None or (evicting and victim.tensor in owner.memory.needed):
            return
        if rank == PREFETCH and owner is site and site.victims.spares(lane.queue[0].tensor, victim.tensor):
            return
        if owner.memory.kept_in(victim.tensor, victim.count) or owner.victims.is_worthless(victim.tensor):
            flows.append(Flow(lane, source, victim, _NONE, links, rank, None, owner))
            return
        target = self._destination(source, self._nearest)
        if target is None:
            return
        outward = self.topology.outward(lane.gpu, target)
        limit = self._limit_with_victim(lane.queue[0].rate, victim, owner, target, outward)
        both = [*links, *self._staged(owner, victim.tensor, target, outward)]
        filled = None if target == source else self._pools[target]
        flows.append(Flow(lane, source, victim, target, both, rank, filled, owner))
        flows[-1].limit = limit

    def _limit_with_victim(
        self, limit: int, victim: Run, owner: Site, target: Location, outward: list[Link]
    ) -> int:
        """Return the limit of pages that come in while a victim leaves, before them or at the same time."""
        if not victim.rate:
            victim.rate = self._rate_of(owner, victim, target, outward, inward=False)
        if limit and self._fault.eviction == "serial":
            return one_after_another(limit, victim.rate or min(link.capacity for link in outward))
        return min(limit or victim.rate, victim.rate) if victim.rate else limit

    def _victim(self, site: Site, *, demanded: bool) -> tuple[Run | None, Site]:
        """Return who makes room on a full GPU, and whose it is: the oldest of all jobs' own choices."""
        neighbours = self._on_gpu[site.gpu]
        if len(neighbours) == 1:
            return site.victims.choose(site.memory, demanded), site
        best, owner = None, site
        for neighbour in neighbours:
            run = neighbour.victims.choose(neighbour.memory, demanded)
            if run is not None and (best is None or run.stamp < best.stamp):
                best, owner = run, neighbour
        return best, owner

    def _destination(self, source: Location, wish: Location) -> Location | None:
        """Return where leaving pages find room, or the room that arrivals from ``source`` leave."""
        for place in self._spills[wish]:
            if self._pools[place].free or place == source:
                return place
        return None

    def _until_change(self) -> int | None:
        """Cycles until a flow or a drive changes or a message has arrived; None: nothing does."""
        flows = self._current()
        if not self._ssds and not self._messages and self._staging is None:
            if self._left_at != self._now:
                self._left_at, self._left = self._now, self._next.of_all(flows)
            return self._left
        soonest = self._next.of_all(flows)
        changes = [soonest, *(ssd.cycles_to_change() for ssd in self._ssds)]
        changes += [-(-message.work // message.rate) for message in self._messages if message.rate]
        if self._staging is not None:
            changes += [self._staging.cycles_until(run, self._now) for run in self._staged_heads()]
            if self._staging.next_event is not None:
                changes.append(max(1, self._staging.next_event - self._now))
        return min((change for change in changes if change is not None), default=None)

    def _staged_heads(self) -> Iterable[Run]:
        """Yield the copies at the head of their queues that wait for the host."""
        for site in self._sites.values():
            queues = site.memory.queues
            for queue in (*queues.evict, *queues.prefetch):
                if queue and self._staging is not None and not self._staging.is_ready(queue[0]):
                    yield queue[0]

    def _move(self, flows: list[Flow], cycles: int) -> None:
        start, self._now = self._now, self._now + cycles
        crossing = {flow.lane.site.job for flow in flows if flow.rate and _uses_link(flow)}
        for job in crossing:
            self._busy[job] += cycles
        for flow in flows:
            flow.progress += flow.rate * cycles
        for flow in self._next.in_turn(flows):
            pages = self._next.whole_pages(flow)
            flow.progress -= pages * self._page_work
            if flow.follows and flow.progress >= self._page_work:
                flow.progress = 0
            if pages:
                self._carry_out(flow, pages, start)
            flow.lane.carry = min(flow.progress, self._page_work) if flow.lane.queue else 0
        if self._messages:
            for message in self._messages:
                message.work -= message.rate * cycles
            self._messages = [message for message in self._messages if not message.is_done]
        for ssd in self._ssds:
            ssd.advance(cycles)
        self._take_note()

    def _take_note(self) -> None:
        """Let memories and the host's workers follow what has moved."""
        for site in self._sites.values():
            site.memory.space.note_peak()
            if site.memory.space.reorder():
                self._flows = None
        if self._staging is not None:
            self._staging.advance(self._now)
        self._changes = self._door.changes

    def _carry_out(self, flow: Flow, pages: int, start: int) -> None:
        memory, owner = flow.lane.site.memory, flow.owner.memory
        memory.commit(flow.lane.queue, flow.run, pages, flow.source, flow.target, flow.victim, owner)
        if self._observer is not None:
            site, other = flow.lane.site, flow.owner
            moved = [(site.job, site.gpu, flow.run.tensor)]
            moved += [(other.job, other.gpu, flow.victim.tensor)] if flow.victim is not None else []
            ends, times = (flow.source, flow.target), (start, self._now)
            report(self._observer, moved, ends, times, pages, demanded=flow.rank == DEMAND)


def _uses_link(flow: Flow) -> bool:
    """Tell whether a flow crosses PCIe at all (mapping new pages does not)."""
    return bool(flow.source or flow.target)
