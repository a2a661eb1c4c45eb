"""Transfers as flows at constant rates between changes (any number of GPUs on a tree of links).

Each queue's first run flows at a rate that its links allow: demanded pages first, planned evictions
next, prefetches last; flows of equal rank share max-min fair. When GPU memory is full, pages that come in
push out as many victims, and such a flow needs both directions. Something changes when a run or a victim
is used up or a memory becomes full; between changes whole pages are counted from rate times time, and the
part of a page that has moved is carried over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count as counter

from g10sim.config.system import SystemSpec
from g10sim.hardware.faults import demand_rate
from g10sim.hardware.flash.pool import FlashPool
from g10sim.hardware.flash.port import SsdPort
from g10sim.hardware.links import Link, Share, Topology, share_in_order, share_max_min
from g10sim.hardware.memory import GpuMemory, Pool
from g10sim.hardware.recency import Run
from g10sim.hardware.transfers import Due, Observer, cause_of
from g10sim.hardware.victims import VictimRule
from g10sim.records import Location, StallReason

_NONE, _GPU, _HOST, _FLASH = Location.NONE, Location.GPU, Location.HOST, Location.FLASH
_DEMAND, _EVICT, _PREFETCH = range(3)


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
        self, job: int, gpu: int, memory: GpuMemory, victims: VictimRule, due: Due | None = None
    ) -> None:
        self.job, self.gpu, self.memory, self.victims, self.due = job, gpu, memory, victims, due
        queues = memory.queues
        self.faults = [
            (_Lane(queues.fault_flash, self), _FLASH),
            (_Lane(queues.fault_host, self), _HOST),
            (_Lane(queues.fault_absent, self), _NONE),
        ]
        self.prefetches = [
            (_Lane(queues.prefetch_flash, self), _FLASH),
            (_Lane(queues.prefetch_host, self), _HOST),
            (_Lane(queues.prefetch_absent, self), _NONE),
        ]
        self.evictions = [
            (_Lane(queues.evict_flash, self), _FLASH),
            (_Lane(queues.evict_host, self), _HOST),
        ]


class Message(Share):
    """Bytes on their way between GPUs, or between a GPU and its host, that are not pages of any tensor."""

    __slots__ = ("order", "work")

    def __init__(self, links: list[Link], work: int, order: int) -> None:
        super().__init__(links, 0)
        self.work, self.order = work, order

    @property
    def is_done(self) -> bool:
        """Whether all of it has arrived."""
        return self.work <= 0


class FluidTransfers:
    """Moves the pages in the queues of all GPUs."""

    def __init__(
        self,
        system: SystemSpec,
        host: Pool,
        flash: Pool,
        observer: Observer | None = None,
        topology: Topology | None = None,
    ) -> None:
        self._topology = topology or Topology(system)
        self._page_bytes = system.gpu.page_size
        self._page_work = system.gpu.page_size * system.gpu.clock
        self._fault = system.page_fault
        self._flash_latency = system.ssd.latency + system.ssd.bounce_latency
        self._host, self._flash = host, flash
        self._ssd = SsdPort(flash, self._topology) if isinstance(flash, FlashPool) else None
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
        self.events = 0

    @property
    def topology(self) -> Topology:
        """The links that bytes cross."""
        return self._topology

    def send(self, links: list[Link], size_bytes: int) -> Message:
        """Send bytes over links from now on, beside planned evictions and like them after demanded pages."""
        order = self._now * self._gpus if self._service == "deadline" else next(self._orders)
        message = Message(links, size_bytes * self._clock, order)
        self._messages.append(message)
        self.changed()
        return message

    def attach(
        self, job: int, gpu: int, memory: GpuMemory, victims: VictimRule, due: Due | None = None
    ) -> None:
        """Serve a job's memory on a GPU from now on; ``due`` tells when it will need a tensor."""
        if self._ssd is not None:
            self._ssd.begin()
        self._sites[job] = site = _Site(job, gpu, memory, victims, due)
        self._on_gpu.setdefault(gpu, []).append(site)
        self._busy[job] = 0
        self.changed()

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended."""
        site = self._sites.pop(job)
        self._on_gpu[site.gpu].remove(site)
        self.changed()

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a job's tensor that is not on the GPU nor in transfer on the fault queues."""
        site = self._sites[job]

        def rate(pages: int, place: Location) -> int:
            latency = self._fault.latency + (self._flash_latency if place is _FLASH else 0)
            bandwidth = self._topology.path_bandwidth(site.gpu, place)
            return demand_rate(pages * self._page_bytes, bandwidth, latency, self._fault.group)

        site.memory.demand(tensor, rate)

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job crossed its GPU's link."""
        return self._busy.get(job, 0)

    def bottleneck(self, job: int) -> StallReason | None:
        """Tell whether eviction, or others on a shared link, slow a job's demanded pages."""
        for flow in self._current():
            site, link = flow.lane.site, flow.bottleneck
            if site.job == job and flow.rank == _DEMAND and link is not None:
                if link not in self._topology.inward(site.gpu, flow.source):
                    return StallReason.EVICTION
                shared = link.shared or len(self._on_gpu[site.gpu]) > 1
                if shared and flow.rate < link.capacity and len(self._sites) > 1:
                    return StallReason.LINK_CONTENTION
        return None

    def changed(self) -> None:
        """Forget the rates: queues, working sets or eviction orders were altered."""
        self._flows = None

    def next_change(self) -> int | None:
        """Cycle at which a run or a victim is used up or a memory is full, or None."""
        left = self._cycles_left(self._current())
        return None if left is None else self._now + left

    def advance(self, now: int) -> None:
        """Move everything that moves up to the cycle ``now``."""
        while self._now < now:
            flows = self._current()
            left = self._cycles_left(flows)
            if not flows and left is None:
                if self._ssd is not None:
                    self._ssd.advance(now - self._now)
                self._now = now
                return
            if left is not None and self._now + left <= now:
                self._move(flows, left)
                self._settle()
                self._flows = None
                self.events += 1
            else:
                self._move(flows, now - self._now)

    def _settle(self) -> None:
        """Let every job use the room that transfers have made."""
        for site in self._sites.values():
            site.memory.settle()

    def _current(self) -> list[_Flow]:
        if self._flows is None:
            self._flows = self._make_flows()
        return self._flows

    def _make_flows(self) -> list[_Flow]:
        sites = [site for site in self._sites.values() if site.memory.queues.busy]
        flows = [flow for site in sites for flow in self._site_flows(site)]
        if flows or self._messages:
            if self._ssd is None:
                self._share_links(flows)
            else:
                self._ssd.share(lambda: self._share_links(flows))
        elif self._ssd is not None:
            self._ssd.rest()
        return flows

    def _share_links(self, flows: list[_Flow]) -> None:
        """Give every flow its rate: demanded ones first, then planned evictions, then prefetches."""
        self._topology.reset()
        if self._ssd is not None:
            self._ssd.limit()
        self._share([flow for flow in flows if flow.rank == _DEMAND])
        self._share([flow for flow in flows if flow.rank == _EVICT], self._messages)
        prefetches = [flow for flow in flows if flow.rank == _PREFETCH]
        self._limit_followers(flows, [flow for flow in prefetches if flow.follows])
        self._share(prefetches)

    def _share(self, flows: list[_Flow], messages: Sequence[Message] = ()) -> None:
        """Give flows of equal rank their rates, in the order or fairness that the links serve them in."""
        if self._service == "fair":
            share_max_min([*flows, *messages])
            return
        ordered: list[tuple[int, int, Share]] = [(self._order(flow), flow.lane.gpu, flow) for flow in flows]
        ordered += [(message.order, -1, message) for message in messages]
        share_in_order([share for *_, share in sorted(ordered, key=lambda entry: entry[:2])])

    def _order(self, flow: _Flow) -> int:
        """Return when a flow's turn comes: by age, or by when its tensor is needed (what leaves: at once).

        Of those that are needed at the same cycle, every GPU's first, second, third ... takes another turn.
        """
        run, due, gpu = flow.run, flow.lane.site.due, flow.lane.gpu
        if not run.stamp:
            if self._service == "first_come":
                run.stamp = next(self._orders)
            else:
                arrives = due is not None and flow.source is not _GPU
                cycle = max(1, due(run.tensor) if due is not None and arrives else self._now)
                run.stamp = cycle * self._gpus + (gpu - self._turns[gpu]) % self._gpus
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
        for (lane, source), (later, _) in zip(site.faults, site.prefetches, strict=True):
            if lane.queue:
                self._add_arrival(flows, lane, source, _DEMAND, evicting)
            elif later.queue:
                needed = later.queue[0].tensor in site.memory.needed
                self._add_arrival(flows, later, source, _DEMAND if needed else _PREFETCH, evicting)
        if not flows and any(site.memory.moving[tensor] for tensor in site.memory.needed):
            for lane, source in site.prefetches:
                if lane.queue:
                    self._add_arrival(flows, lane, source, _DEMAND, evicting)
        return flows

    def _evictions(self, site: _Site) -> list[_Flow]:
        flows = []
        for lane, wish in site.evictions:
            if lane.queue:
                target = self._destination(_GPU, wish)
                if target is None:
                    continue
                links = self._topology.outward(site.gpu, target)
                flows.append(_Flow(lane, _GPU, None, target, links, _EVICT))
        return flows

    def _add_arrival(
        self, flows: list[_Flow], lane: _Lane, source: Location, rank: int, evicting: bool
    ) -> None:
        site, links = lane.site, self._topology.inward(lane.gpu, source)
        if site.memory.free:
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
            target = self._destination(source, _HOST)
        if target is None:
            return
        links = [*links, *self._topology.outward(lane.gpu, target)]
        flows.append(_Flow(lane, source, victim, target, links, rank, owner))

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
        """Where leaving pages find room: host memory (if wished) or flash, or what arrivals leave empty."""
        if wish is _HOST and (self._host.free or source is _HOST):
            return _HOST
        if self._flash.free or source is _FLASH:
            return _FLASH
        return _HOST if self._host.free else None

    def _cycles_left(self, flows: list[_Flow]) -> int | None:
        """Cycles until a flow changes or a message has arrived."""
        change = self._cycles_to_change(flows)
        device = None if self._ssd is None else self._ssd.cycles_to_change()
        if device is not None:
            change = device if change is None else min(change, device)
        if not self._messages:
            return change
        ends = [-(-message.work // message.rate) for message in self._messages if message.rate]
        return min([*ends, *([] if change is None else [change])], default=None)

    def _cycles_to_change(self, flows: list[_Flow]) -> int | None:
        """Cycles until a flow's run, its victim, or the room it uses is used up."""
        soonest: int | None = None
        rooms: dict[tuple[str, int], tuple[int, list[_Flow]]] = {}
        for flow in flows:
            if not flow.rate:
                continue
            cycles = self._cycles_for(flow, flow.run.count)
            soonest = cycles if soonest is None else min(soonest, cycles)
            if flow.victim is not None:
                rooms.setdefault(("victim", id(flow.victim)), (flow.victim.count, []))[1].append(flow)
            elif flow.source is not _GPU and not flow.follows:
                room = flow.lane.site.memory.free
                rooms.setdefault(("gpu", flow.lane.gpu), (room, []))[1].append(flow)
            pool = self._filled_by(flow)
            if pool is not None:
                rooms.setdefault((pool.name, 0), (pool.free, []))[1].append(flow)
        for room, users in rooms.values():
            cycles = self._cycles_for_all(users, room)
            soonest = cycles if soonest is None else min(soonest, cycles)
        return soonest

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
        if self._ssd is not None:
            self._ssd.advance(cycles)
        for site in self._sites.values():
            site.memory.note_peak()

    def _whole_pages(self, flow: _Flow) -> int:
        pages = min(flow.progress // self._page_work, flow.run.count)
        if flow.victim is not None:
            pages = min(pages, flow.victim.count)
        elif flow.source is not _GPU:
            pages = min(pages, flow.lane.site.memory.free)
        pool = self._filled_by(flow)
        return pages if pool is None else min(pages, pool.free)

    def _filled_by(self, flow: _Flow) -> Pool | None:
        """Return the pool that a flow fills: it does not where its arrivals empty what its victims fill."""
        if flow.target is flow.source:
            return None
        return {_HOST: self._host, _FLASH: self._flash}.get(flow.target)

    def _carry_out(self, flow: _Flow, pages: int, start: int) -> None:
        memory, run, victim = flow.lane.site.memory, flow.run, flow.victim
        owner = flow.owner.memory
        run.count -= pages
        memory.moving[run.tensor] -= pages
        if flow.source is _GPU:
            memory.free += pages
            memory.deposit(run.tensor, pages, flow.target)
        else:
            memory.arrive(run.tensor, pages, flow.source)
            if victim is None:
                memory.free -= pages
            else:
                victim.count -= pages
                owner.idle[victim.tensor] -= pages
                memory.take_over(owner, pages)
                owner.deposit(victim.tensor, pages, flow.target)
        if not run.count and flow.lane.queue and flow.lane.queue[0] is run:
            flow.lane.queue.popleft()
        if self._observer is not None:
            self._report(flow, pages, start)

    def _report(self, flow: _Flow, pages: int, start: int) -> None:
        target = flow.target if flow.source is _GPU else _GPU
        self._tell(flow, flow.lane.site, flow.run.tensor, flow.source, target, pages, start)
        if flow.victim is not None:
            self._tell(flow, flow.owner, flow.victim.tensor, _GPU, flow.target, pages, start)

    def _tell(
        self,
        flow: _Flow,
        site: _Site,
        tensor: int,
        source: Location,
        target: Location,
        pages: int,
        start: int,
    ) -> None:
        if self._observer is not None:
            planned, demanded = flow.source is _GPU, flow.rank == _DEMAND
            cause = cause_of(source, planned=planned, demanded=demanded)
            self._observer(site.job, site.gpu, tensor, source, target, cause, start, self._now, pages)


def _uses_link(flow: _Flow) -> bool:
    """Whether a flow crosses PCIe at all (mapping new pages does not)."""
    return flow.source is not _NONE or flow.target is not _NONE
