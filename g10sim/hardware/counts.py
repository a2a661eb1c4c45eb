"""Pages of one job's tensors by place: integers per tensor, and one commit of pages."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.hardware.recency import Recency
from g10sim.hardware.runs import Queues, Run
from g10sim.records import Location, Tiers


@dataclass(slots=True)
class Traffic:
    """Pages that crossed a GPU's link, by the place at the other end, and demanded pages.

    In bytes, what kernels read and wrote where it lies.
    """

    moved_in: list[int]
    moved_out: list[int]
    faults: int = 0
    read_in_place: int = 0
    written_in_place: int = 0

    def snapshot(self) -> Traffic:
        """Return the counts so far."""
        return replace(self, moved_in=self.moved_in.copy(), moved_out=self.moved_out.copy())


NONE: Final = Location.NONE
GPU: Final = Location.GPU


class Counts:
    """Counts of one job's pages with respect to one GPU, and how they change.

    ``sizes`` are tensors in pages. ``pages[place][tensor]`` are those of a tensor at a place and not in
    transfer: ``absent`` without contents, ``idle`` on the GPU, further ones in memory tiers, whose ``pools``
    jobs share; ``moving`` are in a queue, wherever they lie. Together they are the tensor's size; ``leaving``
    are the pages in queues to be evicted, of tensors that have any there. Nobody wants what ``discarded``
    tensors hold; ``discarded_pages`` of them are idle all the same. ``frames``
    are the GPU's pages, of which this job has ``filled`` some. ``needed`` is the running (or waiting)
    kernel's working set; what of it lies in the tiers that ``in_place`` names for tensors is used there and
    does not come in. Tensors that are ``storing`` are on their way from host memory to another tier, or
    leave the GPU after a collective; ``pageable`` ones are not pinned in host memory, others when they cross
    first, if the job ``pins``. ``copies`` names the tier that all pages of a tensor on the GPU came from: it
    has them still where nothing has written them, as nothing does of ``frozen`` ones. Where the job
    ``keeps_copies``, ``copied`` counts the pages of any tensor that came from there and that nothing has
    written since. All of it changes only while the ``door`` is open.
    """

    notes_arrivals = False
    """True if ``arrived`` wants to know what has arrived."""
    refaults = True
    """True if the running kernel's pages that leave fault again."""

    def __init__(
        self, sizes: Sequence[int], frames: Frames, page_bytes: int, pools: Sequence[Pool], door: Door
    ) -> None:
        self.sizes = list(sizes)
        self.page_bytes = page_bytes
        self.frames = frames
        self.filled = 0
        self.pools = {pool.tier.place: pool for pool in pools}
        self.tiers = tuple(self.pools)
        self.origins = (*reversed(self.tiers), NONE)
        self.pages = [list(sizes), *([0] * len(sizes) for _ in range(1 + len(pools)))]
        self.absent, self.idle = self.pages[NONE], self.pages[GPU]
        self.moving = [0] * len(sizes)
        self.leaving: dict[int, int] = {}
        self.discarded: set[int] = set()
        self.discarded_pages = 0
        self.copies: list[Location | None] = [None] * len(sizes)
        self.copied = [0] * len(sizes)
        self.recency = Recency(len(sizes), frames.clock)
        self.queues = Queues(len(self.pages))
        self.traffic = Traffic([0] * len(self.pages), [0] * len(self.pages))
        self.needed: frozenset[int] = frozenset()
        self.in_place: dict[int, Location] = {}
        self.storing: frozenset[int] = frozenset()
        self.frozen: frozenset[int] = frozenset()
        self.pageable: frozenset[int] = frozenset()
        self.pins = self.keeps_copies = False
        self.door = door

    @property
    def kinds(self) -> Tiers:
        """Return the kinds of the memory tiers by their names."""
        return {pool.tier.name: pool.tier.kind for pool in self.pools.values()}

    def describe(
        self,
        frozen: frozenset[int],
        pageable: frozenset[int] = frozenset(),
        *,
        pins: bool = False,
        keeps_copies: bool = False,
    ) -> None:
        """Say before time starts which tensors are frozen or pageable, and whether the job pins others.

        Whether it ``keeps_copies`` of those that are not frozen, too.
        """
        self.frozen, self.pageable = frozen, pageable
        self.pins, self.keeps_copies = pins, keeps_copies

    def written(self, tensors: Iterable[int]) -> None:
        """Note that a kernel has written tensors: what tiers have of them is outdated."""
        self.door.enter()
        for tensor in tensors:
            self.copies[tensor], self.copied[tensor] = None, 0

    def lies(self) -> array[int]:
        """Return the pages of every tensor at every place, then those in transfer."""
        return array("q", chain(*self.pages, self.moving))

    @property
    def awaits_needed(self) -> bool:
        """Return whether pages of the working set are in transfer."""
        return any(self.moving[tensor] for tensor in self.needed)

    def take(self, count: int) -> None:
        """Fill empty pages of the GPU; a negative count empties some."""
        self.door.enter()
        self.frames.free -= count
        self.filled += count

    def commit(
        self,
        queue: deque[Run],
        run: Run,
        count: int,
        source: Location,
        target: Location,
        victim: Run | None = None,
        owner: Counts | None = None,
        before: Iterable[Run] = (),
    ) -> None:
        """Let pages of a queued run arrive from ``source``, or leave for ``target`` where that is the GPU.

        Arrivals take empty pages, or the room of as many pages of a ``victim``, which go to ``target``, as
        all pages of victims ``before`` it do; these lie in this memory unless they have another ``owner``.
        """
        self.door.enter()
        tensor = run.tensor
        run.count -= count
        if run.is_empty:
            self.traffic.moved_in[source] += count
        elif source is GPU:
            self.moving[tensor] -= count
            self._stop_leaving(tensor, count)
            self.frames.free += count
            self.filled -= count
            self._put(tensor, count, target)
        else:
            self.moving[tensor] -= count
            self.filled += count
            self._add(tensor, count, source)
            if victim is None:
                self.frames.free -= count
            else:
                there = owner or self
                for gone in before:
                    count -= gone.count
                    there._make_way(gone, gone.count, target)
                there._make_way(victim, count, target)
        if not run.count and queue and queue[0] is run:
            queue.popleft()

    def _stop_leaving(self, tensor: int, count: int) -> None:
        """Count pages out of those in queues to be evicted."""
        left = self.leaving.pop(tensor) - count
        if left:
            self.leaving[tensor] = left

    def _make_way(self, victim: Run, count: int, target: Location) -> None:
        """Let pages in the eviction order leave the GPU."""
        tensor = victim.tensor
        kept = self.kept_in(tensor, count) if self.copies[tensor] and not target else None
        victim.count -= count
        self.idle[tensor] -= count
        if tensor in self.discarded:
            self.discarded_pages -= count
        self.filled -= count
        if self.keeps_copies:
            self._forget_copies(tensor, count if kept else 0)
        if kept:
            self._put(tensor, count, kept, is_copied=False)
        elif target:
            self._put(tensor, count, target)
        else:
            self.absent[tensor] += count

    def kept_in(self, tensor: int, count: int, wish: Location = NONE) -> Location | None:
        """Return the tier that has kept its copy of unchanged pages of a tensor, and room for that many.

        None as well where the pages are copied to a faster tier, the one where they are wished, that has room
        for the whole tensor next to those whose copies it has kept: they come back from there sooner, and are
        clean from then on.
        """
        tier = self.copies[tensor] if self.keeps_copies or tensor in self.frozen else None
        pool = self.pools[tier] if tier else None
        if pool is None or not pool.keeps_copies or pool.free < count or self.clean_pages(tensor) < count:
            return None
        if wish and self.tiers.index(wish) < self.tiers.index(pool.tier.place):
            kept = range(len(self.sizes)) if self.keeps_copies else self.frozen
            theirs = (other for other in kept if self.copies[other] is wish)
            lent = sum(self.sizes[other] - self.pages[wish][other] for other in (*theirs, tensor))
            return None if self.pools[wish].free >= lent else tier
        return tier

    def clean_pages(self, tensor: int) -> int:
        """Return the pages on the GPU that their tier has unchanged, if it has kept its copies at all."""
        return self.copied[tensor] if self.keeps_copies else self.idle[tensor]

    def _forget_copies(self, tensor: int, count: int) -> None:
        """Count out clean pages that have left; others have left while there were others."""
        self.copied[tensor] = min(self.copied[tensor] - count, self.idle[tensor])

    def arrive(self, tensor: int, count: int, source: Location) -> None:
        """Add pages that came from elsewhere (or were just allocated) to the recent end."""
        self.door.enter()
        self._add(tensor, count, source)

    def _add(self, tensor: int, count: int, source: Location) -> None:
        if source:
            self.pools[source].fetch(self, tensor, count)
            self.traffic.moved_in[source] += count
        if self.copies[tensor] is not source and not self.keeps_copies:
            self.copies[tensor] = None if self.idle[tensor] else source
        elif self.keeps_copies and source:
            self.copied[tensor] = count + (self.copied[tensor] if self.copies[tensor] is source else 0)
            self.copies[tensor] = source
        self.idle[tensor] += count  # as in _count_idle, without a call for each move
        if tensor in self.discarded:
            self.discarded_pages += count
        self.recency.append(tensor, count)
        if self.notes_arrivals:
            self.arrived(tensor, source)

    def _count_idle(self, tensor: int, count: int) -> None:
        """Count idle pages in; fewer than none, out."""
        self.idle[tensor] += count
        if tensor in self.discarded:
            self.discarded_pages += count

    def arrived(self, tensor: int, source: Location) -> None:
        """Do nothing: nobody waits for all of a tensor."""

    def _put(self, tensor: int, count: int, target: Location, *, is_copied: bool = True) -> None:
        """Put pages that left the GPU where they went; the running kernel's may fault again from there."""
        if target and is_copied:
            self.pools[target].store(self, tensor, count)
            self.traffic.moved_out[target] += count
        elif target:
            self.pools[target].place(self, tensor, count)
        if not target or tensor not in self.needed or not self.refaults:
            self.pages[target][tensor] += count
            return
        self.moving[tensor] += count
        queue = self.queues.fault[target]
        if queue and queue[-1].tensor == tensor:
            queue[-1].count += count
        else:
            queue.append(Run(tensor, count))

    def touch(self, *tensors: int) -> None:
        """Make resident pages of tensors the most recent ones, one tensor after another."""
        self.door.enter()
        idle = self.idle
        self.recency.renew([(tensor, idle[tensor]) for tensor in tensors if idle[tensor]])

    def reclaim(self, tensors: Sequence[int]) -> None:
        """Let what was discarded of tensors be used again, as their most recent pages."""
        if self.discarded.isdisjoint(tensors):
            return
        found = [tensor for tensor in tensors if tensor in self.discarded]
        self.discarded.difference_update(found)
        self.discarded_pages -= sum(map(self.idle.__getitem__, found))
        self.touch(*found)

    def send(self, run: Run, target: Location) -> None:
        """Queue pages that are here to leave."""
        self.door.enter()
        self._count_idle(run.tensor, -run.count)
        self.moving[run.tensor] += run.count
        self.leaving[run.tensor] = self.leaving.get(run.tensor, 0) + run.count
        if self.idle[run.tensor]:
            self.recency.take(run.tensor, run.count)
        else:
            self.recency.remove(run.tensor)
        self.queues.evict[target].append(run)

    def return_clean(self, tensor: int, count: int, target: Location) -> None:
        """Put pages back where a copy of them has been all the time."""
        self.door.enter()
        self._count_idle(tensor, -count)
        if self.keeps_copies:
            self._forget_copies(tensor, count)
        self.recency.take(tensor, count)
        self.take(-count)
        self.pools[target].place(self, tensor, count)
        self.pools[target].note_peak()
        self.pages[target][tensor] += count

    def discard(self, tensor: int, *, but_for_gpu: bool = False) -> None:
        """Forget a tensor's contents; its pages in transfer are not touched."""
        self.door.enter()
        self.copied[tensor] = 0
        if not but_for_gpu and (count := self.idle[tensor]):
            self.absent[tensor] += count
            self._count_idle(tensor, -count)
            self.recency.remove(tensor)
            self.take(-count)
        for place in self.tiers:
            if count := self.pages[place][tensor]:
                self.absent[tensor] += count
                self.pages[place][tensor] = 0
                self.pools[place].drop(self, tensor, count)

    def pass_on(self, tensor: int) -> None:
        """Put what memory tiers hold of a tensor into the last of them."""
        self.door.enter()
        last = self.tiers[-1]
        for place in self.tiers[:-1]:
            count = self.pages[place][tensor]
            self.pages[place][tensor] = 0
            self.pools[place].drop(self, tensor, count)
            self.pages[last][tensor] += count
            self.pools[last].store(self, tensor, count)
            self.pools[last].note_peak()

    def allocate_in(self, place: Location, tensor: int) -> None:
        """Give pages without contents room in a memory tier, as far as it has any."""
        self.door.enter()
        count = min(self.absent[tensor], self.pools[place].free)
        if count:
            self.pools[place].store(self, tensor, count)
            self.pools[place].note_peak()
            self.absent[tensor] -= count
            self.pages[place][tensor] += count

    def carry_over(self, tensor: int, count: int, source: Location, target: Location) -> None:
        """Let pages come from one tier to another, which has kept room for them."""
        self.door.enter()
        self.pools[source].fetch(self, tensor, count)
        self.pages[source][tensor] -= count
        self.pages[target][tensor] += count

    def begin_store(self, tensor: int) -> None:
        """Note that a tensor is on its way from host memory to another tier, or waits before it leaves."""
        self.door.enter()
        self.storing |= {tensor}

    def end_store(self, tensor: int) -> None:
        """Note that it has left host memory, stays, or may leave the GPU now."""
        self.door.enter()
        self.storing -= {tensor}

    def store_in(self, target: Location, tensor: int, count: int, source: Location) -> None:
        """Let pages go from one tier to another that has room for them."""
        self.door.enter()
        self.pools[target].store(self, tensor, count)
        self.pools[target].note_peak()
        self.carry_over(tensor, count, source, target)

    def cancel(self, tensor: int) -> None:
        """Take a tensor's pages out of every queue; they stay where they lie."""
        self.door.enter()
        if self.moving[tensor] > self.leaving.get(tensor, 0):
            for queues in (self.queues.prefetch, self.queues.fault):
                for place in self.origins:
                    self.pages[place][tensor] += self._removed(queues[place], tensor)
        if tensor in self.leaving:
            self.cancel_eviction(tensor)

    def cancel_eviction(self, tensor: int) -> None:
        """Keep what is still here of a tensor that was to be evicted."""
        self.door.enter()
        if tensor in self.leaving:
            kept = sum(self._removed(self.queues.evict[place], tensor) for place in self.tiers)
            self._stop_leaving(tensor, kept)
            self.copies[tensor] = self.copies[tensor] if self.keeps_copies else None
            self._count_idle(tensor, kept)
            self.recency.append(tensor, kept)

    def _removed(self, queue: deque[Run], tensor: int) -> int:
        count = sum(run.count for run in queue if run.tensor == tensor and not run.is_empty)
        if count:
            kept = [run for run in queue if run.tensor != tensor or run.is_empty]
            queue.clear()
            queue.extend(kept)
            self.moving[tensor] -= count
        return count
