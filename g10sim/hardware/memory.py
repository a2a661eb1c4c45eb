"""Memory of one job on a GPU: what may be asked of it, and what kernels find. Any free pages will do."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from g10sim.errors import InvariantError
from g10sim.hardware.counts import GPU, NONE, Counts
from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.hardware.recency import ANY_NUMBER
from g10sim.hardware.runs import Run
from g10sim.records import ContiguousRecord, Location

Rate = Callable[[int, Location], int]


class Departure(NamedTuple):
    """Options of an eviction: see the move ``Evict``. No more than that many ``pages`` leave."""

    until: int | None = None
    density: float | None = None
    is_clean: bool = False
    pages: int | None = None


AT_ONCE: Final = Departure()


class Residency(Counts):
    """Memory in which pages come and go one by one (unified memory).

    A kernel also waits for the evictions of tensors that are ``awaited``, and for the arrival of
    ``awaited_arrivals``. Prefetches spare ``protected`` tensors. Where GPU memory ``is_mapped``, new tensors
    take free pages of it at once, in their turn.
    """

    held: Collection[int] = ()
    """Tensors on their way out that kernels may still read."""
    waiting: Collection[int] = ()
    """Tensors that wait for their own space."""

    protected: Container[int] = ()
    awaited: frozenset[int] = frozenset()
    awaited_arrivals: frozenset[int] = frozenset()
    is_mapped = False
    _peak_used = 0

    @property
    def used_pages(self) -> int:
        """GPU pages that belong to this job."""
        return self.filled

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest tensor that could be allocated."""
        return self.frames.free

    @property
    def peaks(self) -> tuple[int, int]:
        """Most pages of the GPU in use since peaks were restarted: by this job, and by all."""
        return self._peak_used, self.frames.peak(id(self))

    def order(self) -> array[int]:
        """Return what lies on the GPU in the order of evictions: tensor, pages, tensor, pages, and so on."""
        return self.recency.order()

    def stay_mapped(self) -> None:
        """Let new tensors take free pages of the GPU at once from now on."""
        self.is_mapped = True

    def state(self, now: int) -> tuple[Hashable, ...] | None:
        """Return all on which its future depends besides ``lies`` and the eviction order; None: not known."""
        queued = (tuple([run.state(now) for run in queue]) for queue in self.queues.all)
        storing = tuple(sorted(self.storing))
        return *queued, tuple(self.copies), tuple(self.copied), self.recency.latest(), storing

    @property
    def faults_from(self) -> Location | None:
        """Return the slowest place from which demanded pages have still to come, if any have."""
        for place in self.origins:
            if self.queues.fault[place]:
                return place
        return None

    @property
    def awaits(self) -> bool:
        """Return whether the next kernel is to wait for transfers of other data than its own."""
        return bool(self.awaited or self.awaited_arrivals)

    def evicting(self) -> Iterator[int]:
        """Yield the tensors that wait to be evicted or are on their way out."""
        return chain(self.leaving, self.storing)

    def arriving(self) -> Iterator[int]:
        """Yield the tensors that wait to come in, or are on their way in."""
        return chain((run.tensor for queue in self.queues.prefetch for run in queue), self.waiting)

    @property
    def has_joined(self) -> bool:
        """Return whether nothing that the next kernel is to wait for is under way."""
        if self.awaited and not self.awaited.isdisjoint(self.evicting()):
            return False
        return not self.awaited_arrivals or self.awaited_arrivals.isdisjoint(self.arriving())

    def await_transfers(self, tensors: frozenset[int] | None, *, evictions: bool, prefetches: bool) -> None:
        """Let the next kernel wait for what is under way of these tensors (None: of all)."""
        self.door.enter()
        if evictions:
            evicting = frozenset(self.evicting())
            self.awaited |= evicting if tensors is None else evicting & tensors
        if prefetches:
            arriving = frozenset(self.arriving())
            self.awaited_arrivals |= arriving if tensors is None else arriving & tensors

    def forget_awaited(self) -> None:
        """Let the next kernel wait for nothing but its data. Raises InvariantError if it has not waited."""
        self.door.enter()
        if not self.has_joined:
            raise InvariantError("a kernel goes on before the transfers that it was to wait for")
        self.awaited = self.awaited_arrivals = frozenset()

    def protect(self, tensors: Container[int]) -> None:
        """Let prefetches not push out pages of these tensors, and of no others."""
        self.door.enter()
        self.protected = tensors
        self.recency.end_scan()

    def hold(self, tensors: frozenset[int]) -> None:
        """Keep a kernel's working set on the GPU from now on, and no other."""
        self.door.enter()
        self.needed = tensors

    def use_in_place(self, tensor: int, tier: Location) -> None:
        """Let the running kernel use what a tier has of a tensor where it lies."""
        self.door.enter()
        self.in_place[tensor] = tier

    def bring_in(self) -> None:
        """Let the next kernel use nothing where it lies."""
        if self.in_place:
            self.door.enter()
            self.in_place = {}

    def used_in_place(self, tensor: int) -> int:
        """Return the pages of a tensor that the running kernel uses where they lie."""
        tier = self.in_place.get(tensor)
        return 0 if tier is None else self.pages[tier][tensor]

    def is_usable(self, tensor: int) -> bool:
        """Return whether a kernel can use a tensor."""
        return self.idle[tensor] + self.used_in_place(tensor) == self.sizes[tensor]

    @property
    def is_settled(self) -> bool:
        """Return whether no room waits to be used that transfers, or other jobs, may have made."""
        return True

    def settle(self) -> None:
        """Use room that transfers, or other jobs, have made: here the next transfer takes any."""

    def end_kernel(self, kernel: int) -> None:
        """Note that a kernel has ended, for which nothing is held here."""

    def reorder(self) -> bool:
        """Order evictions again after arrivals; return True if that changed anything."""
        return False

    def place(self, tensor: int, location: Location) -> None:
        """Put a tensor without contents somewhere before time starts. Raises CapacityError."""
        self.door.enter()
        count = self.absent[tensor]
        self.absent[tensor] = 0
        if location is GPU:
            self.take(count)
            self.recency.append(tensor, count)
        else:
            self.pools[location].place(self, tensor, count)
        self.pages[location][tensor] += count

    def demand(self, tensor: int, rate: Rate | None = None) -> None:
        """Ask for what a kernel waits for; ``rate`` gives (pages, place) a limit in bytes/second."""
        self._enqueue(self.queues.fault, tensor, rate)

    def request_prefetch(self, tensor: int) -> None:
        """Ask for what is elsewhere to come in, and for what has no contents to be allocated."""
        self._enqueue(self.queues.prefetch, tensor)

    def request_eviction(self, tensor: int, target: Location, how: Departure = AT_ONCE) -> None:
        """Ask for a tensor's resident pages to go to a memory tier.

        Clean ones that came from there are there at once, if there is room. Raises InvariantError for what
        only whole tensors can do.
        """
        self.door.enter()
        if how.until is not None or how.density is not None:
            raise InvariantError(f"tensor {tensor}: pages that leave cannot be read or compressed")
        count, is_clean = self.idle[tensor], how.is_clean
        if how.pages is not None:
            count = min(how.pages, count)
        if kept := self.kept_in(tensor, 1, target):
            target, is_clean = kept, True
        if is_clean and self.copies[tensor] is target:
            clean = min(count, self.clean_pages(tensor))
            if gone := min(clean, self.pools[target].free):
                self.return_clean(tensor, gone, target)
            count -= clean
        if count:
            self.send(Run(tensor, count), target)

    def joins_last(self, tensor: int) -> bool:
        """Return whether any number of pages that arrive are, or join, the last run of the eviction order."""
        return not self.idle[tensor] or self.recency.merging(tensor) == ANY_NUMBER

    def note_peak(self) -> None:
        """Remember the largest number of pages in use: of the GPU, by this job and by all, and of tiers."""
        frames = self.frames
        if self.filled > self._peak_used:
            self._peak_used = self.filled
        if frames.capacity_pages - frames.free > frames.least_peak:
            frames.note_peak()
        self._note_tiers()

    def _note_tiers(self) -> None:
        for pool in self.pools.values():
            if pool.capacity_pages - pool.free > pool.least_peak:
                pool.note_peak()

    def restart_peaks(self) -> None:
        """Begin to look for peaks again."""
        self.frames.watch(id(self))
        self._peak_used = self.filled

    def figures(self) -> ContiguousRecord | None:
        """Return what an allocator of consecutive pages needed, where there is one."""
        return None

    def check(self) -> None:
        """Check what contents take of the GPU. Raises InvariantError."""

    def _enqueue(self, queues: Sequence[deque[Run]], tensor: int, rate: Rate | None = None) -> None:
        """Queue a tensor's pages that are not here, by where they are."""
        if self.idle[tensor] == self.sizes[tensor]:
            return
        self.door.enter()
        stays = self.in_place.get(tensor)
        if self.is_mapped and not (self.queues.fault[NONE] or self.queues.prefetch[NONE]):
            self._allocate(tensor)  # nobody asked for any before
        for place in self.origins:
            count = self.pages[place][tensor]
            if count and place is not stays:
                self.pages[place][tensor] = 0
                self.moving[tensor] += count
                queues[place].append(Run(tensor, count, rate(count, place) if rate else 0))

    def _allocate(self, tensor: int) -> None:
        """Give pages without contents free pages of the GPU at once, as far as there are any."""
        count = min(self.absent[tensor], self.frames.free)
        if not count:
            return
        self.absent[tensor] -= count
        self.take(count)
        self._add(tensor, count, NONE)
        self.note_peak()


class Mapped(Residency):
    """Memory whose driver orders evictions by chunks: what arrives takes its chunk along.

    ``chunks`` are the ranges that lie in one together. Source: the root chunks of 2 MiB of NVIDIA's open
    driver (open-gpu-kernel-modules, uvm_pmm_gpu.c): a chunk becomes the most recent when pages of it become
    resident, and chunks of discarded pages are evicted before all others.
    """

    notes_arrivals = True

    def __init__(
        self,
        sizes: Sequence[int],
        frames: Frames,
        page_bytes: int,
        pools: Sequence[Pool],
        door: Door,
        chunks: Sequence[range] = (),
    ) -> None:
        super().__init__(sizes, frames, page_bytes, pools, door)
        self._in_chunks = frozenset(chain.from_iterable(chunks))
        self._arrived: dict[int, None] = {}
        self.recency.join_chunks(chunks)

    def discard(self, tensor: int, *, but_for_gpu: bool = True) -> None:
        """Forget contents: pages on the GPU are the next to go; pages in transfer are not touched."""
        super().discard(tensor, but_for_gpu=but_for_gpu)
        if but_for_gpu and tensor not in self.discarded:
            self.discarded.add(tensor)
            self.discarded_pages += self.idle[tensor]
        self.recency.retire(tensor)

    def arrived(self, tensor: int, source: Location) -> None:
        """Remember what has arrived: transfers under way hold on to the order as it is."""
        if tensor in self._in_chunks:
            self._arrived[tensor] = None

    def joins_last(self, tensor: int) -> bool:
        """Return whether any number of pages join the last run: each takes its chunk along."""
        return tensor not in self._in_chunks and super().joins_last(tensor)

    def reorder(self) -> bool:
        """Make what else is in the chunks as recent as what has arrived."""
        if not self._arrived:
            return False
        self.door.enter()
        self.recency.renew_around(self._arrived, self.idle)
        self._arrived.clear()
        return True
