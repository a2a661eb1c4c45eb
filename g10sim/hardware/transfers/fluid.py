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
from itertools import chain
from operator import attrgetter

from g10sim.config.ssd import SsdSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import InvariantError
from g10sim.hardware.flash.pool import CachedPort, FlashPool, SsdPort
from g10sim.hardware.host_memory.host_buffers import Work
from g10sim.hardware.links import Link, Message, Share, Topology
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.changes import NextChange
from g10sim.hardware.transfers.flows import Site, Sites
from g10sim.hardware.transfers.heads import Heads, go_on
from g10sim.hardware.transfers.interface import Due, Observer, Transfers, VictimRule
from g10sim.hardware.transfers.rates import Rates
from g10sim.hardware.transfers.staging import Staging
from g10sim.records import Location, StallReason

_is_settled = attrgetter("memory.is_settled")


class FluidTransfers(Transfers):
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
        self._staging = staging
        self.topology = staging.topology if staging is not None else Topology(system)
        if staging is not None and system.host.memory_bandwidth is not None:
            staging.share_memory(self._carry)
        self._pools = {pool.tier.place: pool for pool in pools}
        ports = self.topology.ports
        self._caches = [
            CachedPort(tier.place, tier.drive, port, system.gpu.clock)
            for tier in system.all_tiers
            if isinstance(tier.drive, SsdSpec) and tier.drive.cached_bytes
            if (port := ports[tier.place][1]) is not None
        ]
        self._ssds: list[SsdPort | CachedPort] = [
            SsdPort(pool, *ports[pool.tier.place]) for pool in pools if isinstance(pool, FlashPool)
        ]
        self._ssds += self._caches
        self._observer = observer
        self._sites = Sites()
        self._messages: list[Message] = []
        self._clock = system.gpu.clock
        self._heads = Heads(system, self.topology, self._pools, staging)
        self._page_work = self._heads.page_work
        self._rates = Rates(self.topology, system.pcie.service, system.gpu.count, self._ssds)
        self._is_shared = False
        """True while every flow has the rate that its links allow."""
        self._full: list[bool] = []
        self._shared_by_all = True
        self._counts_late = observer is None and staging is None and not self._ssds
        self._now = self._changes = self.events = 0
        self._is_plain = observer is None and staging is None and self._ssds == self._caches
        """True if nothing but queues, memories, links and caches decides what moves, and nobody is told."""
        self._left: int | None = None
        self._left_at = -1
        self._next = NextChange(self._pools, self._page_work, self._sites, is_staged=staging is not None)

    def send(self, links: list[Link], size_bytes: int) -> Message:
        """Send bytes over links from now on, next to planned evictions and like them after demanded pages."""
        return self._post(Message(links, size_bytes * self._clock, self._rates.order_of_message(self._now)))

    def access(self, job: int, tier: Location, size_bytes: int, *, inward: bool) -> Message:
        """Let a job's running kernel read (``inward``) or write bytes in a memory tier from now on."""
        gpu, pool = self._sites.by_job[job].gpu, self._pools[tier]
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
        return self.use_host(work.gpu, work.moved_bytes, rate)

    def _post(self, message: Message) -> Message:
        if not message.is_done:
            self._messages.append(message)
            self.changed()
        return message

    def attach(self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due = None) -> None:
        """Serve a job's memory on a GPU from now on; ``due`` tells when it will need a tensor."""
        for ssd in self._ssds:
            ssd.begin()
        self._sites.add(Site(job, gpu, memory, victims, due, self.topology))
        self.changed()

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended."""
        self._next.forget(self._sites.remove(job).gpu)
        if self._staging is not None:
            self._staging.close(job)

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a job's tensor that is not on the GPU nor in transfer on the fault queues."""
        site = self._sites.by_job[job]
        site.memory.demand(tensor, partial(self._heads.demanded_rate, site, tensor))

    def link_use(self, gpu: int) -> float:
        """Return how much of both directions of a GPU's link copies fill now, from 0 to 1."""
        self._share()
        messages = [one for one in self._messages if not one.is_access]
        copies: list[Share] = [*self._sites.flows(), *messages]
        if not copies:
            return 0.0
        own = self.topology.own(gpu)
        used = sum(copy.rate for copy in copies for link in own if link in copy.links)
        return used / sum(link.capacity for link in own)

    def state(self, job: int) -> Hashable:
        """Return what of a job is on links now, beyond its queues, and of all GPUs.

        None, not known, where a drive's flash is in use, and while copies wait for their turn.
        """
        site = self._sites.by_job[job]
        in_turn = not self._rates.is_fair and site.memory.queues.busy
        if in_turn or any(isinstance(pool, FlashPool) and pool.used for pool in self._pools.values()):
            return None
        carried = [lane.carry for lane in (*chain(*site.arrivals), *(lane for lane, _ in site.evictions))]
        sent = [(message.work, message.limit, message.is_access) for message in self._messages]
        pinned = self._heads.pinned
        sent += [] if pinned is None else [(len(pinned), 0, False)]
        caches, turns = [cache.left for cache in self._caches], [turn % 2 for turn in self._rates.turns]
        return *carried, *sent, *turns, *caches, *site.memory.recency.limits()

    def cache_pages(self) -> list[int]:
        """Return the pages that each drive's cache still takes."""
        return [cache.left // self._page_work for cache in self._caches]

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job crossed its GPU's link."""
        site = self._sites.by_job.get(job)
        return 0 if site is None else site.busy_until(self._now)

    def bottleneck(self, job: int) -> StallReason | None:
        """Return whether eviction, or others on a shared link, slow a job's demanded pages."""
        self._share()
        site = self._sites.by_job.get(job)
        return None if site is None else site.bottleneck(is_alone=self._sites.alone is not None)

    def changed(self, jobs: Collection[int] = (), now: int | None = None, *, others: bool = True) -> None:
        """Let room be used, and forget the rates: queues, working sets or eviction orders were altered.

        Victims are chosen again for ``jobs``; ``others``: memories of other jobs were altered, too. Raises
        InvariantError unless transfers are at the cycle ``now``.
        """
        self._check_time(now)
        self.settle()
        self._is_shared = False
        for job in jobs:
            if (site := self._sites.by_job.get(job)) is not None:
                self._sites.stale.add(job)
                site.victims.restart()
                site.memory.recency.restart_scan()
        if others:
            self._sites.stale.update(self._sites.by_job)

    def news(self, jobs: Collection[int]) -> Collection[int]:
        """Return which jobs may have other queues, flows or rates than before, and count their moves."""
        if self._sites.alone is not None:
            return jobs
        stale = self._sites.stale
        if not self._is_shared and (len(stale) < len(jobs) or not stale.issuperset(jobs)):
            self._share()
        found = {job for job in stale | self._sites.news if job in jobs}
        self._sites.news -= found
        self._count(found)
        return found

    def count_moves(self) -> None:
        """Count what all jobs have moved up to now."""
        self._count(self._sites.by_job)

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

    def advance(self, now: int, jobs: Collection[int] | None = None) -> None:
        """Move everything up to the cycle ``now``, and count what moved of at least ``jobs`` (None: all)."""
        while self._now < now:
            self._go_on(now)
            if self._now == now:
                break
            left = self._until_change()
            if left is not None and self._now + left <= now:
                self._move(left)
                self.settle()
                self._is_shared = False
                self.events += 1
            elif left is None and not any(self._sites.flows()):
                for ssd in self._ssds:
                    ssd.advance(now - self._now)
                self._now = now
            else:
                self._move(now - self._now)
        if self._staging is not None:
            self._staging.advance(now)
        if self._sites.alone is None:
            self._count(self._sites.by_job if jobs is None else jobs)

    def follow(self, last: int, *, skips: bool) -> int | None:
        """Advance to a change; if it ``skips``, past those after it that nobody who waits can see."""
        since = self._now
        if skips:
            self._go_on(last, is_watched=True)
        if self._now == since:
            change = self.next_change()
            if change is None or change > last:
                return None
            self.advance(change, ())
        return self._now

    def _go_on(self, end: int, *, is_watched: bool = False) -> None:
        """Let time go on up to a cycle where the only job has no flow and nobody waits, or one flow alone."""
        if (site := self._sites.alone) is None or not self._is_plain or self._messages:
            return
        self._share()
        if not site.flows and not is_watched:
            self._now = end
        elif self._heads.is_alone(site) and self._rates.follow_from_links(site.flows):
            found = go_on(site, self._heads, self._rates, self._now, end, is_watched=is_watched)
            self._now, self._is_shared, self._changes = found.now, found.is_made, self._door.changes
            self.events += found.changes
            self._left, self._left_at = found.left, found.now if found.is_made else -1

    def settle(self) -> None:
        """Let every job use the room that transfers, or other jobs, have made."""
        if self._staging is None:
            return  # the next transfer takes any page
        sites = self._sites.by_job.values()
        while not all(map(_is_settled, sites)):  # what one job gives back is there for the others
            for site in sites:
                site.memory.settle()

    def _share(self) -> None:
        """Give every flow the rate that its links allow."""
        if not self._is_shared:
            self._make_flows()
            self._is_shared, self._changes, self._left_at = True, self._door.changes, -1
        elif self._changes != self._door.changes:
            raise InvariantError("links were not shared anew after memory had changed")

    def _make_flows(self) -> None:
        """Make the flows of jobs that may have others, and share what links these cross.

        The flows of a job without others are made each time. Raises InvariantError if room is left unused.
        """
        if self._staging is not None and not all(map(_is_settled, self._sites.by_job.values())):
            raise InvariantError("room in memory was not used after it was made")
        if (site := self._sites.alone) is not None:
            site.flows = self._heads.of_site(site)
            self._rates.share(site.flows, self._messages, self._now)
            site.begin(self._now)
            return
        sites = self._sites.by_job.values()
        full = [not pool.free for pool in self._pools.values()]
        is_else, self._full = full != self._full, full
        new = list(sites) if is_else else self._sites.in_order(self._sites.stale)
        before = self._sites.connected(new)
        self._count(site.job for site in new)
        for site in new:
            site.flows = self._heads.of_site(site)
            self._sites.keep(site)
        by_all = bool(self._messages) or not self._rates.are_separable
        is_for_all, self._shared_by_all = by_all or self._shared_by_all, by_all
        new = list(sites) if is_for_all else self._sites.connected(before)
        jobs = [site.job for site in new]
        self._count(jobs)
        self._rates.share([flow for site in new for flow in site.flows], self._messages, self._now)
        for site in new:
            site.begin(self._now)
        self._sites.news.update(jobs)
        self._sites.together.update(jobs)
        self._next.expect({site.gpu for site in new}, self._now)

    def _until_change(self) -> int | None:
        """Cycles until a flow or a drive changes or a message has arrived; None: nothing does."""
        self._share()
        if not self._ssds and not self._messages and self._staging is None:
            if self._left_at != self._now:
                self._left_at, self._left = self._now, self._next.of_all(self._now)
            return self._left
        changes = [self._next.of_all(self._now), *(ssd.cycles_to_change() for ssd in self._ssds)]
        changes += [-(-message.work // message.rate) for message in self._messages if message.rate]
        if self._staging is not None:
            waiting = chain.from_iterable(site.memory.queues.heads for site in self._sites.by_job.values())
            changes += self._staging.changes(waiting, self._now)
        return min((change for change in changes if change is not None), default=None)

    def _move(self, cycles: int) -> None:
        self._now += cycles
        moving: Collection[Site] = self._sites.by_job.values()
        if len(moving) > 1:
            gpus = self._next.changing(self._now)
            changing = [site.job for gpu in gpus for site in self._sites.on_gpu[gpu]]
            moving = self._sites.in_order(self._sites.together.union(changing))
        for site in moving:
            self._move_pages(site)
        if self._messages:
            for message in self._messages:
                message.work -= message.rate * cycles
            self._messages = [message for message in self._messages if not message.is_done]
        for ssd in self._ssds:
            ssd.advance(cycles)
        for site in moving:
            self._take_note(site)
        if self._staging is not None:
            self._staging.advance(self._now)
        self._changes = self._door.changes

    def _move_pages(self, site: Site) -> None:
        """Let whole pages of a job change place that have moved since this was last done."""
        start, flows, work = site.until, site.flows, self._page_work
        site.busy_cycles, site.until = site.busy_until(self._now), self._now
        for flow in flows:
            flow.progress += flow.rate * (self._now - start)
        for flow in self._next.in_turn(flows):
            pages = min(flow.progress // work, flow.room)
            flow.progress -= pages * work
            if flow.follows and flow.progress >= work:
                flow.progress = 0
            lane, run, victim = flow.lane, flow.run, flow.victim
            if pages:
                owner = flow.owner.memory
                site.memory.commit(lane.queue, run, pages, flow.source, flow.target, victim, owner)
                if self._observer is not None:
                    flow.report(self._observer, pages, (start, self._now))
            if not run.count or flow.progress > work or (victim is not None and not victim.count):
                self._sites.stale.add(site.job)
            lane.carry = min(flow.progress, work) if lane.queue else 0

    def _take_note(self, site: Site) -> None:
        """Let a job's memory follow what has moved."""
        if site.flows or site.memory.notes_arrivals:
            site.memory.note_peak()
            if site.memory.reorder():
                self._is_shared = False
                self._sites.stale.add(site.job)
            elif bool(site.memory.frames.free) != site.had_room:
                self._sites.stale.add(site.job)
        if self._counts_late and self._sites.alone is None:
            if site.job not in self._sites.stale and len(site.neighbours) == 1 and site.moves_apart():
                self._sites.together.discard(site.job)
            else:
                self._sites.together.add(site.job)

    def _count(self, jobs: Iterable[int]) -> None:
        """Count what has moved of jobs that move apart."""
        sites, together, now = self._sites.by_job, self._sites.together, self._now
        apart = [job for job in jobs if job in sites and job not in together]
        if late := [sites[job] for job in apart if sites[job].until < now]:
            door = self._door
            before, was_open, door.is_open = door.changes, door.is_open, True
            for site in late:
                self._move_pages(site)
                self._take_note(site)
            self._changes += door.changes - before
            door.is_open = was_open
