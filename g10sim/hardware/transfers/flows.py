"""Pages on the move: the head of a queue, the queues of a job, and the job with its memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import count as counter
from operator import attrgetter
from typing import Final

from g10sim.hardware.counts import GPU, NONE
from g10sim.hardware.links import Link, Share, Topology
from g10sim.hardware.memory import Residency
from g10sim.hardware.recency import MERGE_PAGES
from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.interface import Due, Observer, VictimRule, report
from g10sim.records import Location, StallReason

# In bytes and relative to GPU memory, merging is as fine with large pages and in small memories as elsewhere.
_MERGE_BYTES: Final = MERGE_PAGES * 4096
_MERGE_SHARE: Final = 64
_order = attrgetter("order")
# Ranks of flows, those that are served first ahead.
DEMAND: Final = 0
EVICT: Final = 1
PREFETCH: Final = 2


class Flow(Share):
    """Pages of one run on the move, and the victims that make room for them.

    A flow that ``follows`` takes the room that planned evictions make, no faster than they make it. The
    victims belong to the ``owner``: the same job, or another on the same GPU. ``filled`` is the pool that
    they fill, if any: not where arrivals empty what victims fill.
    """

    __slots__ = (
        "filled",
        "follows",
        "lane",
        "owner",
        "progress",
        "rank",
        "run",
        "source",
        "target",
        "victim",
    )

    def __init__(
        self,
        lane: Lane,
        links: list[Link],
        rank: int,
        target: Location = NONE,
        victim: Run | None = None,
        owner: Site | None = None,
    ) -> None:
        run, source = lane.queue[0], lane.source
        super().__init__(links, run.rate)
        self.lane, self.run, self.source = lane, run, source
        self.victim, self.target, self.rank = victim, target, rank
        self.owner = owner if owner is not None else lane.site
        self.filled = lane.site.memory.pools[target] if target and target is not source else None
        self.progress = lane.carry
        self.follows = False

    @property
    def room(self) -> int:
        """Pages that move until its run, its victim, or the room that they fill is used up."""
        pages, victim, pool = self.run.count, self.victim, self.filled
        if victim is not None:
            pages = min(pages, victim.count)
        elif self.source is not GPU:
            pages = min(pages, self.lane.site.memory.frames.free)
        return pages if pool is None else min(pages, pool.free)

    @property
    def is_held_up(self) -> bool:
        """Return whether its victim's way, not its own, limits demanded pages."""
        link = self.bottleneck
        return link is not None and self.rank == DEMAND and link not in self.lane.links

    def report(self, observer: Observer, pages: int, times: tuple[int, int]) -> None:
        """Tell of pages that have moved between two cycles."""
        site, other = self.lane.site, self.owner
        moved = [(site.job, site.gpu, self.run.tensor)]
        moved += [(other.job, other.gpu, self.victim.tensor)] if self.victim is not None else []
        report(observer, moved, (self.source, self.target), times, pages, demanded=self.rank == DEMAND)


class Lane:
    """A queue of one job, where its pages lie, and the links that they cross on their way in.

    ``carry`` is the part of a page that has already moved (bytes times hertz). ``exchanges`` have for every
    place where victims go the links that arrivals and these cross, the rate of the victims', and whether
    their copies wait first.
    """

    __slots__ = ("carry", "exchanges", "gpu", "links", "queue", "site", "source")

    def __init__(self, queue: deque[Run], site: Site, source: Location, links: list[Link]) -> None:
        self.gpu, self.queue, self.site, self.source, self.links = site.gpu, queue, site, source, links
        self.carry = 0
        self.exchanges: dict[Location, tuple[list[Link], int, bool]] = {}


class Site:
    """One job with its memory on the GPU that it runs on; its copies may need buffers in host memory.

    Where ``copies_wait``, for such buffers or before each one that crosses a link, links do not say how fast
    they are.

    Its ``flows`` are kept as long as nothing that they follow from changes, unless it is ``fickle``; they
    cross ``links``. What has moved is counted ``until`` a cycle. ``neighbours`` are all sites on its GPU.
    """

    def __init__(
        self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due, topology: Topology
    ) -> None:
        self.job, self.gpu, self.memory, self.victims, self.due = job, gpu, memory, victims, due
        share = memory.frames.capacity_pages // _MERGE_SHARE
        memory.recency.merge_pages = min(MERGE_PAGES, _MERGE_BYTES // memory.page_bytes, share)
        self.is_buffered = memory.pins or bool(memory.pageable)
        self.copies_wait = self.is_buffered or any(topology.per_copy(gpu, place) for place in memory.tiers)
        queues = memory.queues
        self.arrivals = [
            (Lane(queues.fault[place], self, place, links), Lane(queues.prefetch[place], self, place, links))
            for place, links in ((place, topology.inward(gpu, place)) for place in memory.origins)
        ]
        leaving = reversed(memory.tiers)
        self.evictions = [(Lane(queues.evict[place], self, GPU, []), place) for place in leaving]
        self.flows: list[Flow] = []
        self.neighbours: list[Site] = []
        self.links: frozenset[Link] = frozenset()
        self.had_room = self.is_busy = False
        self.busy_cycles = self.until = self.order = 0
        self.is_fickle = self.is_buffered or victims.asks_policy or memory.keeps_copies or bool(memory.frozen)

    def begin(self, now: int) -> None:
        """Let flows move at the rates that they have; pages cross the GPU's link, unless they are new."""
        self.until, self.is_busy = now, False
        for flow in self.flows:
            if flow.rate and (flow.source or flow.target):
                self.is_busy = True

    def bottleneck(self, *, is_alone: bool) -> StallReason | None:
        """Return whether eviction, or others on a shared link, slow the demanded pages of a job."""
        for flow in self.flows:
            link = flow.bottleneck
            if flow.is_held_up:
                return StallReason.EVICTION
            if is_alone or link is None or flow.rank != DEMAND or flow.rate >= link.capacity:
                continue
            if link.shared or len(self.neighbours) > 1:
                return StallReason.LINK_CONTENTION
        return None

    def busy_until(self, now: int) -> int:
        """Return the cycles up to ``now`` during which pages crossed the GPU's link."""
        return self.busy_cycles + now - self.until if self.is_busy else self.busy_cycles

    def moves_apart(self) -> bool:
        """Return whether others see nothing of what moves, and it does not matter in how many parts it comes.

        Tiers stay as full as they are, and the one flow's pages join the last run of the eviction order.
        """
        if len(self.flows) != 1:
            return not self.flows
        (flow,) = self.flows
        takes_own = flow.victim is not None and flow.victim.tensor == flow.run.tensor
        return flow.source is flow.target and not takes_own and self.memory.joins_last(flow.run.tensor)

    def keep(self) -> bool:
        """Keep flows that are new; return whether they may be others by themselves.

        What is held up, or comes back to the fault queues, is looked at again each time, and so are jobs that
        share a GPU.
        """
        flows, self.had_room = self.flows, bool(self.memory.frames.free)
        return (
            self.is_fickle
            or len(self.neighbours) > 1
            or self.memory.queues.count > len(flows)
            or any(flow.victim is not None and flow.victim.tensor in self.memory.needed for flow in flows)
        )


class Sites:
    """The sites of all jobs ``by_job``, which are looked at in the order in which they came.

    Jobs that are ``stale`` may have other flows than were made. Those in ``news`` have others, or other
    rates, than when somebody asked. What jobs move that are ``together`` is counted at each change; what
    others move may wait.
    """

    def __init__(self) -> None:
        self.by_job: dict[int, Site] = {}
        self.alone: Site | None = None
        """The site of the only job, where there is one job."""
        self.on_gpu: dict[int, list[Site]] = {}
        self.stale, self.news, self.together = set[int](), set[int](), set[int]()
        self._crossing = defaultdict[Link, dict[int, Site]](dict)
        self._orders = counter()

    def add(self, site: Site) -> None:
        """Let a job come."""
        self.by_job[site.job] = site
        site.order, site.neighbours = next(self._orders), self.on_gpu.setdefault(site.gpu, [])
        site.neighbours.append(site)
        self._look_for_one()

    def remove(self, job: int) -> Site:
        """Let a job go; returns its site."""
        site = self.by_job.pop(job)
        site.neighbours.remove(site)
        self._cross(site, ())
        for jobs in (self.stale, self.news, self.together):
            jobs.discard(job)
        self._look_for_one()
        return site

    def keep(self, site: Site) -> None:
        """Keep the flows of a job that are new, and the links that they cross."""
        if site.keep():
            self.stale.add(site.job)
        else:
            self.stale.discard(site.job)
        self._cross(site, {link for flow in site.flows for link in flow.links})

    def _cross(self, site: Site, links: Collection[Link]) -> None:
        for link in site.links.symmetric_difference(links):
            if link in site.links:
                del self._crossing[link][site.job]
            else:
                self._crossing[link][site.job] = site
        site.links = frozenset(links)

    def connected(self, some: Iterable[Site]) -> list[Site]:
        """Return jobs and all whose flows share links with theirs, directly or through others, in order."""
        found = {site.job: site for site in some}
        left = list(found.values())
        while left:
            for link in left.pop().links:
                new = [site for job, site in self._crossing[link].items() if job not in found]
                found.update((site.job, site) for site in new)
                left += new
        return sorted(found.values(), key=_order)

    def flows(self) -> Iterator[Flow]:
        """Yield the flows of all jobs."""
        return (flow for site in self.by_job.values() for flow in site.flows)

    def _look_for_one(self) -> None:
        self.alone = next(iter(self.by_job.values())) if len(self.by_job) == 1 else None

    def in_order(self, jobs: Iterable[int]) -> list[Site]:
        """Return the sites of some jobs in order."""
        return sorted(map(self.by_job.__getitem__, jobs), key=_order)
