"""Transfers as flows at constant rates between changes (any number of GPUs on a tree of links).

Each queue's first run flows at a rate that its links allow: demanded pages first, planned evictions
next, prefetches last; flows of equal rank share max-min fair. When GPU memory is full, pages that come in
push out as many victims, and such a flow needs both directions. Something changes when a run or a victim
is used up or a memory becomes full; between changes whole pages are counted from rate times time, and the
part of a page that has moved is carried over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import count as counter
from typing import TypeAlias

from g10sim.config.system import SystemSpec
from g10sim.errors import InvariantError
from g10sim.hardware.compression import Work
from g10sim.hardware.door import Door
from g10sim.hardware.faults import demand_rate, fault_batches, one_after_another
from g10sim.hardware.flash.pool import FlashPool, SsdPort
from g10sim.hardware.links import Link, Share, Topology, share_alone, share_in_order, share_max_min
from g10sim.hardware.memory import Pool, Residency
from g10sim.hardware.recency import MERGE_PAGES, Run
from g10sim.hardware.rotation import is_rotation, rounds_of
from g10sim.hardware.staging import Staging
from g10sim.hardware.transfers import Due, Observer, VictimRule, report, restart_choice, spill_order
from g10sim.records import Location, StallReason

_NONE, _GPU = Location.NONE, Location.GPU
_DEMAND, _EVICT, _PREFETCH = range(3)
_Place: TypeAlias = tuple[str, int | str]
_Rooms: TypeAlias = "dict[_Place, tuple[int, list[_Flow]]]"

# In bytes and relative to GPU memory, merging is as fine with large pages and in small memories as elsewhere.
_MERGE_BYTES = MERGE_PAGES * 4096
_MERGE_SHARE = 64


class _Flow(Share):
    """Pages of one run on the move, and the victims that make room for them.

    A flow that ``follows`` takes the room that planned evictions make, no faster than they make it. The
    victims belong to the ``owner``: the same job, or another on the same GPU.
    """

    __slots__ = ("follows", "lane", "owner", "progress", "rank", "run", "source", "target", "victim")

    def __init__(
        self,
        lane: _Lane,
        source: Location,
        victim: Run | None,
        target: Location,
        links: list[Link],
        rank: int,
        owner: _Site | None = None,
    ) -> None:
        run = lane.queue[0]
        super().__init__(links, run.rate)
        self.lane, self.run, self.source = lane, run, source
        self.victim, self.target, self.rank = victim, target, rank
        self.owner = owner if owner is not None else lane.site
        self.progress = lane.carry
        self.follows = False


class _Lane:
    """A queue of one job; ``carry`` is the part of a page that has already moved (bytes times hertz)."""

    __slots__ = ("carry", "gpu", "queue", "site")

    def __init__(self, queue: deque[Run], site: _Site) -> None:
        self.gpu, self.queue, self.site = site.gpu, queue, site
        self.carry = 0


class _Site:
    """One job with its memory on the GPU that it runs on."""

    def __init__(
        self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due | None = None
    ) -> None:
        self.job, self.gpu, self.memory, self.victims, self.due = job, gpu, memory, victims, due
        queues = memory.queues
        self.arrivals = [
            (_Lane(queues.fault[place], self), _Lane(queues.prefetch[place], self), place)
            for place in memory.origins
        ]
        self.evictions = [(_Lane(queues.evict[place], self), place) for place in reversed(memory.tiers)]


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
        self._pageable_bandwidth = (pinned.pageable_bandwidth if pinned else None) or 0
        ports = self.topology.ports
        self._ssds = [SsdPort(pool, *ports[pool.tier.place]) for pool in pools if isinstance(pool, FlashPool)]
        self._observer = observer
        self._sites: dict[int, _Site] = {}
        self._on_gpu: dict[int, list[_Site]] = {}
        self._busy: dict[int, int] = {}
        self._messages: list[Message] = []
        self._service, self._clock = system.pcie.service, system.gpu.clock
        self._orders, self._gpus = counter(1), system.gpu.count
        self._turns = [0] * system.gpu.count
        self._flows: list[_Flow] | None = []
        self._now = 0
        self._left: int | None = None
        self._left_at = -1
        self._rotating: _Flow | None = None
        self._last: _Flow | None = None
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
        self._sites[job] = site = _Site(job, gpu, memory, victims, due)
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
            bandwidth = self.topology.path_bandwidth(site.gpu, place)
            bandwidth = min(bandwidth, self._pageable_rate(site, tensor, place) or bandwidth)
            size = pages * self._page_bytes
            batches = fault_batches(size, self._page_bytes, self._fault)
            return demand_rate(size, bandwidth, latency, batches)

        site.memory.demand(tensor, rate)

    def link_use(self, gpu: int) -> float:
        """Return how much of both directions of a GPU's link copies fill now, from 0 to 1."""
        own = self.topology.own(gpu)
        copies: list[Share] = [*self._current(), *(one for one in self._messages if not one.is_access)]
        used = sum(copy.rate for copy in copies for link in own if link in copy.links)
        return used / sum(link.capacity for link in own)

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job crossed its GPU's link."""
        return self._busy.get(job, 0)

    def bottleneck(self, job: int) -> StallReason | None:
        """Tell whether eviction, or others on a shared link, slow a job's demanded pages."""
        for flow in self._current():
            site, link = flow.lane.site, flow.bottleneck
            if site.job == job and flow.rank == _DEMAND and link is not None:
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
            elif left is not None and (wait := self._wait(left, now)) is not None:
                self._move(flows, wait)
                self.settle()
                self._flows = None
                self.events += 1
            else:
                self._move(flows, now - self._now)
        if self._staging is not None:
            self._staging.advance(now)

    def _wait(self, left: int, now: int) -> int | None:
        """Return the cycles until something has changed, or the last round of a rotation ends, by then."""
        flow = self._rotating
        if self._now + left <= now or flow is None or flow.victim is None:
            return left if self._now + left <= now else None
        work = flow.victim.count * self._page_work
        rounds = (flow.progress + flow.rate * (now - self._now)) // work
        return -(-(rounds * work - flow.progress) // flow.rate) if rounds else None

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

    def _current(self) -> list[_Flow]:
        if self._flows is None:
            self._flows = self._make_flows()
            self._changes = self._door.changes
            self._left_at = -1
        elif self._changes != self._door.changes:
            raise InvariantError("links were not shared anew after memory had changed")
        return self._flows

    def _make_flows(self) -> list[_Flow]:
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

    def _share_links(self, flows: list[_Flow]) -> None:
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
        self._share([flow for flow in flows if flow.rank == _DEMAND])
        messages = [message for message in self._messages if not message.is_access]
        self._share([flow for flow in flows if flow.rank == _EVICT], messages)
        prefetches = [flow for flow in flows if flow.rank == _PREFETCH]
        self._limit_followers(flows, [flow for flow in prefetches if flow.follows])
        self._share(prefetches)
        for access in accesses:
            access.take_more()

    def _serve_kernels(self, accesses: Sequence[Message], flows: list[_Flow]) -> None:
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

    def _split_directions(self, flows: list[_Flow]) -> None:
        """Share what limits both directions of a link evenly: ranks order the copies of one direction."""
        share_max_min([*flows, *self._messages])
        shares = self.topology.full_directions(rounding=len(flows) + len(self._messages))
        self._free_links()
        for link, used in shares:
            link.left = min(link.left, used)

    def _share(self, flows: list[_Flow], messages: Sequence[Message] = ()) -> None:
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

    def _turns_of(self, flows: list[_Flow]) -> list[int]:
        """Return when the turns of flows come; those of one GPU that are due at the same cycle keep order."""
        orders = [self._order(flow) for flow in flows]
        if self._service == "first_come":
            return orders
        due = [(flow.lane.gpu, order // self._gpus) for order, flow in zip(orders, flows, strict=True)]
        turns: dict[tuple[int, int], list[int]] = {}
        for order, key in sorted(zip(orders, due, strict=True), reverse=True):
            turns.setdefault(key, []).append(order)
        return [turns[key].pop() for key in due]

    def _order(self, flow: _Flow) -> int:
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
    def _limit_followers(flows: list[_Flow], followers: list[_Flow]) -> None:
        """Share the rate of each job's planned evictions among its prefetches that wait for their room."""
        for flow in followers:
            site = flow.lane.site
            emptied = sum(other.rate for other in flows if other.rank == _EVICT and other.lane.site is site)
            rivals = sum(other.lane.site is site for other in followers)
            flow.limit = max(1, emptied // rivals)

    def _site_flows(self, site: _Site) -> list[_Flow]:
        flows = self._evictions(site)
        evicting = bool(flows)
        for lane, later, source in site.arrivals:
            if lane.queue:
                self._add_arrival(flows, lane, source, _DEMAND, evicting)
            elif later.queue:
                needed = later.queue[0].tensor in site.memory.needed
                self._add_arrival(flows, later, source, _DEMAND if needed else _PREFETCH, evicting)
        if not flows and any(site.memory.moving[tensor] for tensor in site.memory.needed):
            for _, later, source in site.arrivals:
                if later.queue:
                    self._add_arrival(flows, later, source, _DEMAND, evicting)
        if self._staging is not None:
            return [flow for flow in flows if self._staging.is_ready(flow.run)]
        return flows

    def _evictions(self, site: _Site) -> list[_Flow]:
        flows = []
        for lane, wish in site.evictions:
            if lane.queue:
                target = self._destination(_GPU, wish)
                if target is None:
                    continue
                links = self.topology.outward(site.gpu, target)
                self._start_copy(lane, target, links, inward=False)
                flows.append(_Flow(lane, _GPU, None, target, links, _EVICT))
                if self._staging is not None and target != wish:
                    flows[-1].limit = self._staging.diverted_rate(flows[-1].limit, target)
        return flows

    def _start_copy(self, lane: _Lane, place: Location, links: list[Link], *, inward: bool) -> None:
        """Limit the rate of a copy that is next in its queue, where links make it wait before it moves."""
        run, wait = lane.queue[0], self.topology.per_copy(lane.gpu, place, inward=inward)
        slow = self._pageable_rate(lane.site, run.tensor, place)
        if (wait or slow) and not run.rate:
            run.rate = self._copy_rate(run.count, links, wait, slow)

    def _pageable_rate(self, site: _Site, tensor: int, place: Location) -> int:
        """Most bytes/second of a tensor between the GPU and a place, whose memory may be pageable; 0: any."""
        is_pageable = tensor in site.memory.pageable and place == self._host
        return self._pageable_bandwidth if is_pageable else 0

    def _copy_rate(self, pages: int, links: list[Link], wait_ps: int, slow: int) -> int:
        """Rate of a copy that has its links to itself, after a wait, and no more than ``slow``, if any."""
        bandwidth = min(link.capacity for link in links)
        bandwidth = min(bandwidth, slow or bandwidth)
        return demand_rate(pages * self._page_bytes, bandwidth, wait_ps, 1) if wait_ps else bandwidth

    def _add_arrival(
        self, flows: list[_Flow], lane: _Lane, source: Location, rank: int, evicting: bool
    ) -> None:
        site, links = lane.site, self.topology.inward(lane.gpu, source)
        self._start_copy(lane, source, links, inward=True)
        if site.memory.frames.free:
            flows.append(_Flow(lane, source, None, _NONE, links, rank))
            return
        if evicting and rank == _PREFETCH:
            flows.append(_Flow(lane, source, None, _NONE, links, rank))
            flows[-1].follows = True
            return
        victim, owner = self._victim(site, demanded=rank == _DEMAND)
        # Pages that the kernel needs wait for a planned eviction's room instead of pushing each other out.
        if victim is None or (evicting and victim.tensor in owner.memory.needed):
            return
        target: Location | None = _NONE
        if not owner.victims.is_worthless(victim.tensor):
            target = self._destination(source, self._nearest)
        if target is None:
            return
        outward = self.topology.outward(lane.gpu, target)
        flows.append(_Flow(lane, source, victim, target, [*links, *outward], rank, owner))
        if target:
            flows[-1].limit = self._limit_with_victim(flows[-1].limit, victim, owner, target, outward)

    def _limit_with_victim(
        self, limit: int, victim: Run, owner: _Site, target: Location, outward: list[Link]
    ) -> int:
        """Return the limit of pages that come in while a victim leaves, before them or at the same time."""
        wait = self.topology.per_copy(owner.gpu, target, inward=False)
        slow = self._pageable_rate(owner, victim.tensor, target)
        if (wait or slow) and not victim.rate:
            victim.rate = self._copy_rate(victim.count, outward, wait, slow)
        if limit and self._fault.eviction == "serial":
            return one_after_another(limit, victim.rate or min(link.capacity for link in outward))
        return min(limit or victim.rate, victim.rate) if wait or slow else limit

    def _victim(self, site: _Site, *, demanded: bool) -> tuple[Run | None, _Site]:
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
                self._left_at, self._left = self._now, self._cycles_of_rotation(flows)
                if self._left is None:
                    self._left = self._cycles_to_change(flows)
            return self._left
        self._rotating = None
        soonest = self._cycles_to_change(flows)
        changes = [soonest, *(ssd.cycles_to_change() for ssd in self._ssds)]
        changes += [-(-message.work // message.rate) for message in self._messages if message.rate]
        if self._staging is not None:
            changes += [self._staging.cycles_until(run, self._now) for run in self._staged_heads()]
            if self._staging.next_event is not None:
                changes.append(max(1, self._staging.next_event - self._now))
        return min((change for change in changes if change is not None), default=None)

    def _cycles_of_rotation(self, flows: list[_Flow]) -> int | None:
        """Cycles of all rounds of a rotation that are alike; None without two of them."""
        self._rotating = None
        if self._observer is not None:
            return None
        for flow in flows:
            if flow.victim is None or flow.victim.tensor != flow.run.tensor:
                continue
            site, others = flow.lane.site, [other for other in flows if other is not flow]
            if site.victims.asks_policy or len(self._on_gpu[site.gpu]) > 1:
                continue
            if is_rotation(flow.victim, others, site.memory):
                pool = self._filled_by(flow)
                rounds = rounds_of(flow, others, self._page_work, None if pool is None else pool.free)
                if rounds > 1:
                    self._rotating = flow
                    return self._cycles_for(flow, rounds * flow.victim.count)
        return None

    def _staged_heads(self) -> Iterable[Run]:
        """Yield the copies at the head of their queues that wait for the host."""
        for site in self._sites.values():
            queues = site.memory.queues
            for queue in (*queues.evict, *queues.prefetch):
                if queue and self._staging is not None and not self._staging.is_ready(queue[0]):
                    yield queue[0]

    def _cycles_to_change(self, flows: list[_Flow]) -> int | None:
        """Cycles until a flow's run, its victim, or the room it uses is used up."""
        if len(flows) == 1:
            return self._cycles_alone(flows[0])
        soonest: int | None = None
        rooms: _Rooms = {}
        for flow in flows:
            if not flow.rate:
                continue
            cycles = self._cycles_for(flow, flow.run.count)
            soonest = cycles if soonest is None else min(soonest, cycles)
            if flow.victim is not None:
                rooms.setdefault(("victim", id(flow.victim)), (flow.victim.count, []))[1].append(flow)
            elif flow.source != _GPU and not flow.follows:
                room = flow.lane.site.memory.frames.free
                rooms.setdefault(("gpu", flow.lane.gpu), (room, []))[1].append(flow)
            pool = self._filled_by(flow)
            if pool is not None:
                rooms.setdefault(("tier", pool.name), (pool.free, []))[1].append(flow)
        refilled = self._refilled_room(rooms, flows)
        for place, (room, users) in rooms.items():
            cycles = self._cycles_of_turn(users) if place == refilled else self._cycles_for_all(users, room)
            soonest = cycles if soonest is None else min(soonest, cycles)
        return soonest

    def _cycles_of_turn(self, users: list[_Flow]) -> int:
        """Cycles until something is used up, or one of several arrivals has a part of the eviction order.

        Such parts are as large as those that merge there.
        """
        merge = users[0].lane.site.memory.recency.merge_pages if len(users) > 1 else users[0].run.count
        return min(self._cycles_for(flow, min(flow.run.count, max(merge, 1))) for flow in users)

    def _refilled_room(self, rooms: _Rooms, flows: list[_Flow]) -> _Place | None:
        """Return the smallest room that is always made before its only user needs it.

        It is one room alone: that those who make it go on is known only while they need no such room.
        """
        self._last = None
        if self._observer is not None:
            return None
        for place, (_, users) in sorted(rooms.items(), key=lambda entry: entry[1][0]):
            if place[0] == "gpu" and self._is_refilled(users, flows):
                return place
            if place[0] == "tier" and len(users) == 1 and self._is_drained(users[0], flows):
                self._last = users[0]
                return place
        return None

    def _is_refilled(self, users: list[_Flow], flows: list[_Flow]) -> bool:
        """Tell whether planned evictions always have made room when a page of the arrivals needs some.

        False where it counts that pages come one by one: for the eviction order of one arrival, or for where
        others go, as a full tier gets room.
        """
        site, tiers = users[0].lane.site, [self._pools.get(flow.source) for flow in users]
        if len(self._on_gpu[site.gpu]) > 1 or any(tier and not tier.free for tier in tiers):
            return False
        leaving = [other for other in flows if other.source == _GPU and other.lane.site is site]
        if len(users) == 1 and not site.memory.recency.grows(users[0].run.tensor):
            return False
        return self._always_leave_room(leaving, users, site.memory.frames.free)

    def _is_drained(self, flow: _Flow, flows: list[_Flow]) -> bool:
        """Tell whether arrivals have always left room in a tier when a planned eviction needs some."""
        pool = self._filled_by(flow)
        if len(self._sites) > 1 or self._staging is not None or flow.source != _GPU:
            return False
        if pool is None or isinstance(pool, FlashPool):
            return False
        emptying = [other for other in flows if other.source == pool.tier.place and not other.follows]
        if any(other.victim is not None for other in emptying):
            return False
        return self._always_leave_room(emptying, [flow], pool.free)

    def _always_leave_room(self, emptying: Sequence[_Flow], filling: Sequence[_Flow], free: int) -> bool:
        """Tell whether flows empty pages as fast as others fill them, and a page stays free at any time.

        After t cycles each has moved (progress + rate t) / work pages less a part of one. Such parts of two
        that are equally fast keep their difference, up to a page; those of other arrivals are left out.
        """
        if sum(other.rate for other in emptying) < sum(other.rate for other in filling):
            return False
        work, alone = self._page_work, list(filling)
        least = free * work + sum(one.progress for one in emptying) - sum(one.progress for one in filling)
        for one in emptying:
            twin = next((other for other in alone if other.rate == one.rate), None)
            if twin is None:
                least -= work - 1
            else:
                alone.remove(twin)
                least -= (one.progress - twin.progress) % work
        return least > 0

    def _cycles_alone(self, flow: _Flow) -> int | None:
        """Cycles until something is used up where there is one flow, which has all room to itself."""
        if not flow.rate:
            return None
        soonest = self._cycles_for(flow, flow.run.count)
        rooms = [] if flow.victim is None else [flow.victim.count]
        if flow.victim is None and flow.source != _GPU and not flow.follows:
            rooms.append(flow.lane.site.memory.frames.free)
        pool = self._filled_by(flow)
        if pool is not None:
            rooms.append(pool.free)
        if not rooms or min(rooms) >= flow.run.count:
            return soonest
        pages = max(min(rooms), flow.progress // self._page_work + 1)
        return min(soonest, self._cycles_for(flow, pages))

    def _cycles_for(self, flow: _Flow, pages: int) -> int:
        return max(1, -(-(pages * self._page_work - flow.progress) // flow.rate))

    def _cycles_for_all(self, flows: list[_Flow], pages: int) -> int:
        """Cycles until flows together have moved so many pages, but at least one page."""
        rate = sum(flow.rate for flow in flows)
        progress = sum(flow.progress for flow in flows)
        first = min(self._cycles_for(flow, flow.progress // self._page_work + 1) for flow in flows)
        return max(first, -(-(pages * self._page_work - progress) // rate))

    def _move(self, flows: list[_Flow], cycles: int) -> None:
        start, self._now = self._now, self._now + cycles
        crossing = {flow.lane.site.job for flow in flows if flow.rate and _uses_link(flow)}
        for job in crossing:
            self._busy[job] += cycles
        for flow in flows:
            flow.progress += flow.rate * cycles
        for flow in self._in_turn(flows):
            if flow is self._rotating and flow.victim is not None and self._turn(flow, flow.victim):
                continue
            pages = self._whole_pages(flow)
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

    def _in_turn(self, flows: list[_Flow]) -> list[_Flow]:
        """Return flows in the order in which their pages change place: the last needs the room others leave.

        Others may need the room that it leaves, and come again behind it.
        """
        if self._last is None:
            return flows
        others = [flow for flow in flows if flow is not self._last]
        return [*others, self._last, *others]

    def _take_note(self) -> None:
        """Let memories and the host's workers follow what has moved."""
        for site in self._sites.values():
            site.memory.space.note_peak()
            if site.memory.space.reorder():
                self._flows = None
        if self._staging is not None:
            self._staging.advance(self._now)
        self._changes = self._door.changes

    def _whole_pages(self, flow: _Flow) -> int:
        pages = min(flow.progress // self._page_work, flow.run.count)
        if flow.victim is not None:
            pages = min(pages, flow.victim.count)
        elif flow.source != _GPU:
            pages = min(pages, flow.lane.site.memory.frames.free)
        pool = self._filled_by(flow)
        return pages if pool is None else min(pages, pool.free)

    def _filled_by(self, flow: _Flow) -> Pool | None:
        """Return the pool that a flow fills: it does not where its arrivals empty what its victims fill."""
        return None if flow.target == flow.source else self._pools.get(flow.target)

    def _turn(self, flow: _Flow, victim: Run) -> bool:
        """Carry out all rounds of a rotation that have ended; False: none has."""
        rounds = flow.progress // (victim.count * self._page_work)
        if not rounds:
            return False
        flow.progress -= rounds * victim.count * self._page_work
        flow.lane.site.memory.rotate(flow.run, victim, rounds, flow.source, flow.target)
        flow.lane.carry = flow.progress
        return True

    def _carry_out(self, flow: _Flow, pages: int, start: int) -> None:
        memory, owner = flow.lane.site.memory, flow.owner.memory
        memory.commit(flow.lane.queue, flow.run, pages, flow.source, flow.target, flow.victim, owner)
        if self._observer is not None:
            site, other = flow.lane.site, flow.owner
            moved = [(site.job, site.gpu, flow.run.tensor)]
            moved += [(other.job, other.gpu, flow.victim.tensor)] if flow.victim is not None else []
            ends, times = (flow.source, flow.target), (start, self._now)
            report(self._observer, moved, ends, times, pages, demanded=flow.rank == _DEMAND)


def _uses_link(flow: _Flow) -> bool:
    """Tell whether a flow crosses PCIe at all (mapping new pages does not)."""
    return bool(flow.source or flow.target)
