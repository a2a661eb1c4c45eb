"""The documented model of paged memory a second time, slowly: every page by itself, event after event.

Written from docs/model.md for one job on a GPU with host memory and an SSD. It shares no code with the
simulator; all it takes from the package are the descriptions of trace, machine and behaviour.
"""

import math
from collections import deque
from dataclasses import dataclass, field

from slow_addresses import Own, Pooled, dying, touched
from slow_links import fair_rates, fault_batches, rates_in_order

DEMANDED, EVICTION, PREFETCH = range(3)
SECOND = 10**12
ALMOST = 1 - 1e-9


class StuckError(Exception):
    """A kernel waits indefinitely."""


class Page:
    """One page of a range: where it is, and whether it waits in a queue or is on a link."""

    __slots__ = ("moving", "number", "place")

    def __init__(self, number, place):
        self.number, self.place, self.moving = number, place, False


@dataclass
class Run:
    """Pages of one range that were queued together; demanded ones come no faster than the limit."""

    number: int
    pages: deque
    limit: float = math.inf
    since: int = 0


@dataclass
class Queue:
    """Runs, first come first served, and the part of a page that has crossed already."""

    runs: deque = field(default_factory=deque)
    progress: float = 0.0


@dataclass
class Flow:
    """The head of a queue on its way: ``target`` is where it goes, or where victims of a range go."""

    queue: Queue
    rank: int
    links: tuple
    source: str
    limit: float = math.inf
    target: str = ""
    pushes_out: int | None = None
    follows: bool = False
    rate: float = 0.0
    arrived: list = field(default_factory=list)


class SlowModel:
    """Runs a trace; ``moves`` gives what a policy asks for when a kernel starts."""

    def __init__(self, trace, system, behaviour, moves=lambda kernel: (), *, drops_dead=False):
        self.trace, self.system, self.moves = trace, system, moves
        page = system.gpu.page_size
        self.page, self.clock = page, system.gpu.clock
        pooled = behaviour.addresses == "pooled"
        self.by_use = behaviour.recency == "use"
        self.releases = behaviour.dead_tensors == "released" and not pooled
        self.drops_dead = drops_dead or self.releases
        self.at = (
            Pooled(trace, page, system.page_fault.group, not self.by_use) if pooled else Own(trace, page)
        )
        self.pages = [[Page(i, "none") for _ in range(one.pages)] for i, one in enumerate(self.at.ranges)]
        drive = system.ssd
        self.free = {
            "gpu": system.gpu.memory // page,
            "host": system.host.memory // page,
            "ssd": drive.capacity // page,
        }
        pcie, rate = system.pcie.bandwidth, system.gpu.allocation_rate
        self.capacities = tuple(
            {
                "in": pcie,
                "out": pcie,
                "read": drive.read_bandwidth,
                "write": drive.write_bandwidth,
                "map": rate,
            }.items()
        )
        self.inward = {"ssd": ("in", "read"), "host": ("in",), "none": ("map",)}
        self.outward = {"ssd": ("out", "write"), "host": ("out",), "none": ()}
        self.latency = {"ssd": drive.latency, "host": 0, "none": 0}
        self.fair = system.pcie.service == "fair"
        self.order, self.flows = {}, None
        self.queues = {
            (kind, place): Queue()
            for kind in ("fault", "prefetch", "evict")
            for place in ("ssd", "host", "none")
        }
        self.needed, self.protected = set(), set()
        self._change()
        self.now, self.turns = 0.0, 0
        for tensor in trace.tensors:
            if tensor.persistent:
                for number in self.at.of(tensor.id):
                    pages = self.pages[number]
                    place = "host" if len(pages) <= self.free["host"] else "ssd"
                    for one in pages:
                        self._put(one, place)

    def run(self, iterations):
        """Simulate; returns cycles, faults and moved pages of every iteration."""
        results = []
        ends = dying(self.trace)
        for _ in range(iterations):
            self.moved = {(a, b): 0 for place in ("host", "ssd") for a, b in (("gpu", place), (place, "gpu"))}
            self.faults, start = 0, self.now
            for kernel in self.trace.kernels:
                self._kernel(kernel)
                if self.releases:
                    for tensor in ends[kernel.id]:
                        self._release(tensor)
                self.at.end(kernel.id)
            results.append({"cycles": self.now - start, "faults": self.faults, **self.moved})
        return results

    # A kernel

    def _kernel(self, kernel):
        self._change()
        self.protected = set()
        for number in self.at.start(kernel.id):
            self._use(number)
        mine = list(dict.fromkeys(number for tensor in touched(kernel) for number in self.at.of(tensor)))
        self.needed = set(mine)
        for number in mine:
            self._take_back(number, ("evict",))
        for move in self.moves(kernel.id):
            self._move(*move)
        if self.by_use:
            for number in mine:
                self._use(number)
        for number in mine:
            self._ask("fault", number)
        while any(one.moving or one.place != "gpu" for number in mine for one in self.pages[number]):
            self._step(None)
        self.now = float(math.ceil(self.now - 1e-6))
        self._change()
        end = self.now + kernel.duration * self.clock // self.trace.ticks_per_second
        while self.now < end:
            self._step(end)
        self._change()

    def _change(self):
        """A kernel changes what is wanted: let flows and victims be chosen anew."""
        self._settle()
        self.sought_in_vain = False

    def _settle(self):
        """Let what has arrived since the last change join the eviction order, and flows be chosen anew."""
        arrived = [one for flow in self.flows or () for one in flow.arrived]
        self.order.update(dict.fromkeys(arrived))
        for number in dict.fromkeys(n for one in arrived for n in self.at.ranges[one.number].neighbours):
            self._use(number)
        self.flows = None

    def _move(self, name, subject, target=None):
        if name == "protect":
            self.protected = {n for tensor in subject for n in self.at.open_to(tensor)} | self.needed
        elif name == "fetch":
            ranges = self.at.open_to(subject)
            for number in ranges:
                self._ask("prefetch", number)
            for number in [number for number in ranges if number in self.at.discarded]:
                self.at.discarded.remove(number)
                self._use(number)
        elif name == "free":
            self._free(subject)
        elif name == "evict":
            for number in self.at.of(subject):
                leaving = deque(self._idle(number, "gpu"))
                if leaving:
                    self._queue("evict", target, Run(number, leaving))

    def _free(self, tensor):
        """Nobody wants what a tensor held: with own addresses its pages are free, else the next to go."""
        for number in self.at.of(tensor):
            here = self._idle(number, "gpu")
            for one in [*self._idle(number, "host"), *self._idle(number, "ssd")]:
                self._put(one, "none")
            for one in here:
                del self.order[one]
                if not self.at.stays_mapped:
                    self._put(one, "none")
            if self.at.stays_mapped:
                self.order = {**dict.fromkeys(here), **self.order}
                self.at.discarded.add(number)

    def _idle(self, number, place):
        return [one for one in self.pages[number] if one.place == place and not one.moving]

    def _use(self, number):
        """Make a range's pages the most recent ones."""
        for one in self._idle(number, "gpu"):
            self.order.pop(one, None)
            self.order[one] = None

    def _ask(self, kind, number):
        """Queue the pages of a range that are not on the GPU, at the place where they are."""
        for place in ("ssd", "host", "none"):
            away = deque(self._idle(number, place))
            if away:
                limit = self._fault_limit(len(away), place) if kind == "fault" else math.inf
                self.faults += len(away) * (kind == "fault")
                self._queue(kind, place, Run(number, away, limit))

    def _queue(self, kind, place, run):
        for one in run.pages:
            one.moving = True
            self.order.pop(one, None)
        self.queues[kind, place].runs.append(run)

    def _fault_limit(self, pages, place):
        """Most bytes/second of demanded pages whose faults have to be handled."""
        fault, size = self.system.page_fault, pages * self.page
        leaf = max(1, min(fault.leaf, fault.group) // self.page)
        n = fault_batches(pages, math.ceil(fault.group / self.page), leaf, fault.batch, fault.threshold)
        waiting = n * (fault.latency + self.latency[place]) / SECOND
        capacities = dict(self.capacities)
        return size / (waiting + size / min(capacities[link] for link in self.inward[place]))

    def _take_back(self, number, kinds):
        """Take a range's pages out of queues; they stay where they are."""
        for (kind, _), queue in self.queues.items():
            if kind in kinds:
                for run in [run for run in queue.runs if run.number == number]:
                    queue.runs.remove(run)
                    for one in run.pages:
                        one.moving = False
                        if one.place == "gpu":
                            self.order[one] = None

    def _release(self, tensor):
        for number in self.at.of(tensor):
            self._take_back(number, ("fault", "prefetch", "evict"))
            for one in self.pages[number]:
                self.order.pop(one, None)
                self._put(one, "none")

    def _put(self, one, place):
        """Count a page at another place."""
        if one.place != "none":
            self.free[one.place] += 1
        if place != "none":
            self.free[place] -= 1
        one.place = place

    # Transfers

    def _flows(self):
        flows = []
        for wish in ("ssd", "host"):
            queue, target = self.queues["evict", wish], self._room("gpu", wish)
            if queue.runs and target:
                flows.append(Flow(queue, EVICTION, self.outward[target], "gpu", target=target))
        evicting = bool(flows)
        for source in ("ssd", "host", "none"):
            faults, prefetches = self.queues["fault", source], self.queues["prefetch", source]
            if faults.runs:
                self._add(flows, faults, source, DEMANDED, evicting)
            elif prefetches.runs:
                wanted = prefetches.runs[0].number in self.needed
                self._add(flows, prefetches, source, DEMANDED if wanted else PREFETCH, evicting)
        if not flows and any(one.moving for number in self.needed for one in self.pages[number]):
            for source in ("ssd", "host", "none"):
                if self.queues["prefetch", source].runs:
                    self._add(flows, self.queues["prefetch", source], source, DEMANDED, evicting)
        return flows

    def _add(self, flows, queue, source, rank, evicting):
        """Let the head of a queue flow to the GPU, if it finds room or a victim there."""
        flow = Flow(queue, rank, self.inward[source], source, queue.runs[0].limit)
        if not self.free["gpu"] and evicting and rank == PREFETCH:
            flow.follows = True
        elif not self.free["gpu"]:
            victim = self._victim(rank)
            if victim is None:
                self.sought_in_vain |= rank == PREFETCH and bool(self.protected)
                return
            if rank == PREFETCH and self.at.is_one(queue.runs[0].number, victim.number):
                return
            flow.pushes_out = number = victim.number
            dead = (self.drops_dead and self.at.is_dead(number)) or number in self.at.discarded
            flow.target = "none" if dead else self._room(source, "host")
            if not flow.target:
                return
            flow.links += self.outward[flow.target]
            if flow.target != "none" and self.system.page_fault.eviction == "serial":
                out = min(dict(self.capacities)[link] for link in self.outward[flow.target])
                flow.limit = flow.limit if math.isinf(flow.limit) else flow.limit * out / (flow.limit + out)
        flows.append(flow)

    def _victim(self, rank):
        """The oldest page that may go; prefetches that found none look again when a kernel starts or ends."""
        spared = self.protected if rank == PREFETCH and self.protected else self.needed
        if rank == PREFETCH and self.sought_in_vain:
            return None
        return next((one for one in self.order if one.number not in spared), None)

    def _room(self, source, wish):
        """Return where pages go: as wished, to a slower or a faster tier, or to where room becomes free."""
        for place in (wish, "ssd", "host"):
            if self.free[place] or place == source:
                return place
        return ""

    def _share(self, flows):
        ranks = [[flow for flow in flows if flow.rank == rank] for rank in (DEMANDED, EVICTION, PREFETCH)]
        if not self.fair:
            for flow in flows:
                if not flow.queue.runs[0].since:
                    self.turns += 1
                    flow.queue.runs[0].since = self.turns
            ranks = [sorted(rank, key=lambda flow: flow.queue.runs[0].since) for rank in ranks]
        share = fair_rates if self.fair else rates_in_order
        for _ in range(2):  # the second time with what evictions let prefetches follow with
            rates = share(self.capacities, tuple(tuple((f.links, f.limit) for f in rank) for rank in ranks))
            for rank, given in zip(ranks, rates, strict=True):
                for flow, rate in zip(rank, given, strict=True):
                    flow.rate = rate
            followers = [flow for flow in flows if flow.follows]
            if not followers:
                break
            for flow in followers:
                flow.limit = sum(flow.rate for flow in ranks[EVICTION]) / len(followers)

    def _step(self, end):
        """Go on to the next page that arrives or leaves, or to ``end``."""
        if self.flows is None:
            self.flows = self._flows()
            self._share(self.flows)
        work = self.page * self.clock
        moving = [flow for flow in self.flows if flow.rate > 0 and not self._waits_for_room(flow)]
        cycles = min(((1 - flow.queue.progress) * work / flow.rate for flow in moving), default=math.inf)
        if end is not None:
            cycles = min(cycles, end - self.now)
        if math.isinf(cycles):
            raise StuckError(f"cycle {self.now}")
        self.now += cycles
        for flow in self.flows:
            flow.queue.progress = min(1.0, flow.queue.progress + flow.rate * cycles / work)
        crossed = [
            flow for flow in self.flows if flow.queue.progress >= ALMOST and not self._waits_for_room(flow)
        ]
        go_on = [self._commit(flow) for flow in crossed]
        if not all(go_on):
            self._settle()

    def _waits_for_room(self, flow):
        return flow.follows and flow.queue.progress >= ALMOST and not self.free["gpu"]

    def _commit(self, flow):
        """Let a page that has crossed arrive, or leave; returns whether all flows go on as before."""
        if not self._may_go_on(flow):
            return False
        flow.queue.progress = 0.0
        run = flow.queue.runs[0]
        one = run.pages.popleft()
        one.moving = False
        if flow.source == "gpu":
            self._leave(one, flow.target)
        else:
            self._arrive(one, None if flow.pushes_out is None else self._victim(flow.rank), flow.target)
            flow.arrived.append(one)
        if not run.pages:
            flow.queue.runs.popleft()
        return bool(run.pages) and (flow.follows or self._may_go_on(flow))

    def _may_go_on(self, flow):
        """Tell whether a flow still has the room, or the victims, that it was given."""
        if flow.target not in ("", "none", flow.source) and not self.free[flow.target]:
            return False
        if flow.pushes_out is not None:
            victim = self._victim(flow.rank)
            return victim is not None and victim.number == flow.pushes_out
        return flow.source == "gpu" or self.free["gpu"] > 0

    def _arrive(self, one, victim, target):
        """Let a page arrive, and its victim leave."""
        if one.place != "none":
            self.moved[one.place, "gpu"] += 1
            self._put(one, "none")
        if victim is not None:
            del self.order[victim]
            self._leave(victim, target)
        self._put(one, "gpu")

    def _leave(self, one, target):
        if target != "none":
            self.moved["gpu", target] += 1
        self._put(one, target)
