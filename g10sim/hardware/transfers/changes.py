"""The next change of transfers: a run, a victim or the room that flows use is used up.

Room that others make before it is needed does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import chain
from math import lcm
from operator import itemgetter
from typing import Final, TypeAlias

from g10sim.hardware.counts import GPU
from g10sim.hardware.flash.pool import FlashPool
from g10sim.hardware.pools import Frames, Pages, Pool
from g10sim.hardware.runs import Run
from g10sim.hardware.transfers.flows import Flow, Sites
from g10sim.records import Location

_Room: TypeAlias = Run | Pages
_Rooms: TypeAlias = dict[_Room, list[Flow]]
"""Flows by what they use up: a victim, empty pages of a GPU, or those of a tier."""
_MOST: Final = 8
"""Times that a flow may be as fast as another for both to be looked at in step."""
_PARTS: Final = lcm(*range(1, _MOST + 1))


class NextChange:
    """Counts the cycles until flows at constant rates change.

    ``page_work`` is what a page takes, in bytes times hertz. Where copies wait for the host, tiers that are
    emptied and filled go on page by page.
    """

    def __init__(self, pools: dict[Location, Pool], page_work: int, sites: Sites, *, is_staged: bool) -> None:
        self._pools, self._page_work, self._sites = pools, page_work, sites
        self._is_staged = is_staged
        self.last: Flow | None = None
        """Flow that needs the room of others, which go ahead of it."""
        self._earliest: dict[int, int] = {}
        self._coming: list[tuple[int, int]] = []
        self._making_room: set[int] = set()
        self._filling: dict[int, list[Flow]] = {}

    def forget(self, gpu: int) -> None:
        """Expect nothing of a GPU."""
        self._earliest.pop(gpu, None)
        self._making_room.discard(gpu)
        self._filling.pop(gpu, None)

    def expect(self, gpus: Iterable[int], now: int) -> None:
        """Note that flows or rates of GPUs are new, and the earliest cycles at which they may change.

        Time that passes changes nothing about these, as long as no evictions make room for arrivals.
        """
        for gpu in gpus:
            self.forget(gpu)
            own = self._flows_on(gpu)
            soonest, rooms = self._rooms_of(own)
            if soonest is None:
                continue
            shared = (now + self._cycles_together(users, _pages(room)) for room, users in rooms.items())
            self._earliest[gpu] = min([now + soonest, *shared])
            heappush(self._coming, (self._earliest[gpu], gpu))
            needs_room = any(flow.source is not GPU and flow.victim is None for flow in own)
            if needs_room and any(flow.source is GPU for flow in own):
                self._making_room.add(gpu)
            if filling := [flow for flow in own if flow.filled is not None and flow.rate]:
                self._filling[gpu] = filling

    def changing(self, now: int) -> list[int]:
        """Return the GPUs whose flows may have changed by themselves."""
        found = []
        while (gpu := self._pop(now)) is not None:
            found.append(gpu)
        self._push(found)
        return found

    def _pop(self, last: int | None) -> int | None:
        """Take the GPU off the heap whose flows may change first, if they may by some cycle (None: ever)."""
        coming = self._coming
        while coming and (last is None or coming[0][0] <= last):
            cycle, gpu = heappop(coming)
            if self._earliest.get(gpu) == cycle and (not coming or coming[0] != (cycle, gpu)):
                return gpu
        return None

    def _push(self, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            heappush(self._coming, (self._earliest[gpu], gpu))

    def _flows_on(self, gpu: int) -> list[Flow]:
        return [flow for site in self._sites.on_gpu[gpu] for flow in site.flows]

    def of_all(self, now: int) -> int | None:
        """Cycles until a flow's run, its victim, or the room it uses is used up.

        Of several GPUs, only those are looked at that may be the first.
        """
        self.last = None
        if (alone := self._sites.alone) is not None:
            return self._of(alone.flows) if alone.flows else None
        soonest, makers, looked = None, self._making_room, []
        if makers:
            soonest = self._of(
                [flow for site in self._sites.by_job.values() if site.gpu in makers for flow in site.flows]
            )
        while (gpu := self._pop(None if soonest is None else now + soonest - 1)) is not None:
            looked.append(gpu)
            if gpu not in makers and (cycles := self._of(self._flows_on(gpu))) is not None:
                soonest = _sooner(soonest, self._sites.on_gpu[gpu][0].until + cycles - now)
        self._push(looked)
        filling: dict[Pool, list[Flow]] = {}
        for flow in chain.from_iterable(self._filling.values()):
            if flow.filled is not None:
                filling.setdefault(flow.filled, []).append(flow)
        for pool, users in filling.items():
            if soonest is None or self._cycles_together(users, pool.free) < soonest:
                soonest = _sooner(soonest, self._cycles_for_all(users, pool.free))
        return soonest

    def _of(self, flows: list[Flow]) -> int | None:
        """Cycles until something that these flows use is used up."""
        if len(flows) == 1:
            (flow,) = flows
            pages = min(flow.run.count, max(flow.room, flow.progress // self._page_work + 1))
            return self.cycles_for(flow, pages) if flow.rate else None
        soonest, rooms = self._rooms_of(flows)
        refilled = self._refilled_rooms(rooms, flows)
        for room, users in rooms.items():
            if room in refilled:
                # Arrivals take turns in the eviction order, with parts as large as those that merge there.
                pages = max(self._merging(users), 1)
                cycles = min(self.cycles_for(flow, min(flow.run.count, pages)) for flow in users)
            elif users[0].run.count > (pages := _pages(room)) or len(users) > 1:
                cycles = self._cycles_for_all(users, pages)
            else:
                continue  # the run is used up first
            if soonest is None or cycles < soonest:
                soonest = cycles
        return soonest

    def _rooms_of(self, flows: list[Flow]) -> tuple[int | None, _Rooms]:
        """Return the cycles until a run is used up, and the rooms that flows use."""
        soonest: int | None = None
        rooms: _Rooms = {}
        for flow in flows:
            if not flow.rate:
                continue
            cycles = self.cycles_for(flow, flow.run.count)
            if soonest is None or cycles < soonest:
                soonest = cycles
            if flow.victim is not None:
                rooms.setdefault(flow.victim, []).append(flow)
            elif flow.source is not GPU and not flow.follows:
                rooms.setdefault(flow.lane.site.memory.frames, []).append(flow)
            if flow.filled is not None:
                rooms.setdefault(flow.filled, []).append(flow)
        return soonest, rooms

    @staticmethod
    def _merging(users: list[Flow]) -> int:
        """Return how many pages of each of several arrivals, or of one flow, may change place at once."""
        first, memory = users[0], users[0].lane.site.memory
        if len(users) > 1:
            return memory.recency.merge_pages
        return first.run.count if first.source is GPU else memory.recency.merging(first.run.tensor)

    def _refilled_rooms(self, rooms: _Rooms, flows: list[Flow]) -> Collection[_Room]:
        """Return the rooms that are always made before their users need them: of GPUs, or of one tier.

        It is a tier alone: that those who make room go on is known only while they need no such room.
        """
        leaving = [flow for flow in flows if flow.source is GPU]
        if not leaving:
            return ()
        for flow in leaving:
            if flow.run.tensor in flow.lane.site.memory.needed:
                return ()  # the running kernel's pages fault again
        found: list[_Room] = []
        for room in sorted(rooms, key=_pages):
            users = rooms[room]
            if isinstance(room, Frames) and self._is_refilled(users, leaving):
                found.append(room)
            elif isinstance(room, Pool) and not found and self._is_drained(room, users, flows):
                self.last = users[0]
                return [room]
        return found

    def _is_refilled(self, users: list[Flow], leaving: list[Flow]) -> bool:
        """Return whether planned evictions always have made room when a page of the arrivals needs some.

        False where it counts that pages come one by one: for the eviction order of one arrival, or for where
        others go, as a full tier gets room.
        """
        site = users[0].lane.site
        if len(site.neighbours) > 1:
            return False
        own = [flow for flow in leaving if flow.lane.site is site]
        ways = ((flow.target, wish) for lane, wish in site.evictions for flow in own if flow.lane is lane)
        diverted = {wish for target, wish in ways if target is not wish}
        for flow in users:
            if flow.source and (flow.source in diverted or not self._pools[flow.source].free):
                return False
        if not self._always_leave_room(own, users, site.memory.frames.free):
            return False
        return len(users) > 1 or self._merging(users) > 1

    def _is_drained(self, pool: Pool, users: list[Flow], flows: list[Flow]) -> bool:
        """Return whether arrivals have always left room in a tier when its only eviction needs some."""
        flow = users[0]
        if len(users) > 1 or self._sites.alone is None or self._is_staged or flow.source is not GPU:
            return False
        emptying = [other for other in flows if other.source is flow.target and not other.follows]
        if isinstance(pool, FlashPool) or any(other.victim is not None for other in emptying):
            return False
        return self._always_leave_room(emptying, [flow], pool.free)

    def _always_leave_room(self, emptying: list[Flow], filling: list[Flow], free: int) -> bool:
        """Return whether flows empty pages as fast as others fill them, and a page stays free at any time.

        After t cycles each has moved (progress + rate t) / work pages less a part of one. Such parts of two
        that are equally fast keep their difference, up to a page; those of other arrivals are left out.
        """
        if sum([one.rate for one in emptying]) < sum([one.rate for one in filling]):
            return False
        work = self._page_work
        moved = sum([one.progress for one in emptying]) - sum([one.progress for one in filling])
        if free * work + moved > len(emptying) * (work - 1):
            return True
        pace, work = min([one.rate for one in [*emptying, *filling] if one.rate], default=1), work * _PARTS
        out, into = self._in_step(emptying, pace), self._in_step(filling, pace)
        least = free * work + sum([progress for _, progress in out]) - sum([progress for _, progress in into])
        for rate, progress in sorted(into, key=itemgetter(1), reverse=True):
            ahead = {(twin[1] - progress) % work: twin for twin in out if twin[0] == rate}
            if ahead:
                least -= min(ahead)
                out.remove(ahead[min(ahead)])
        return least > len(out) * (work - 1)

    def _in_step(self, flows: list[Flow], pace: int) -> list[tuple[int, int]]:
        """Return rates and progress, in ``_PARTS``; a flow n times as fast as a pace stands for n with that.

        What it moves is what these do: the floor of n x is the sum of the floors of x + k / n for k from 0 to
        n - 1 (Hermite's identity).
        """
        found = []
        for flow in flows:
            many = flow.rate // pace if flow.rate % pace == 0 and flow.rate <= _MOST * pace else 1
            parts = [(flow.progress + part * self._page_work) * _PARTS // many for part in range(many)]
            found += [(flow.rate // many, part) for part in parts]
        return found

    def cycles_for(self, flow: Flow, pages: int) -> int:
        """Return the cycles until a flow has moved that many pages, at least one."""
        return max(1, -(-(pages * self._page_work - flow.progress) // flow.rate))

    def _cycles_for_all(self, flows: list[Flow], pages: int) -> int:
        """Cycles until flows together have moved that many pages, but at least one page."""
        if len(flows) == 1:
            return self.cycles_for(flows[0], max(pages, flows[0].progress // self._page_work + 1))
        first = min([self.cycles_for(flow, flow.progress // self._page_work + 1) for flow in flows])
        return max(first, self._cycles_together(flows, pages))

    def _cycles_together(self, flows: list[Flow], pages: int) -> int:
        """Cycles until what flows have moved adds up to that many pages, parts of pages included."""
        rate = sum([flow.rate for flow in flows])
        progress = sum([flow.progress for flow in flows])
        return -(-(pages * self._page_work - progress) // rate)

    def in_turn(self, flows: list[Flow]) -> list[Flow]:
        """Return flows in the order in which their pages change place: the last needs the room others leave.

        Others may need the room that it leaves, and come again behind it.
        """
        if self.last not in flows:
            return flows
        others = [flow for flow in flows if flow is not self.last]
        return [*others, self.last, *others]


def _pages(room: _Room) -> int:
    """Return the pages of a victim, or the empty ones."""
    return room.count if isinstance(room, Run) else room.free


def _sooner(one: int | None, other: int) -> int:
    """Return the smaller of two numbers of cycles; None stands for never."""
    return other if one is None else min(one, other)
