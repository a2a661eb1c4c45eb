"""GPU memory in which every tensor is one block: it is there as a whole, or it has no space."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Container, Hashable, MutableMapping, Sequence

from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.layout import Blocks
from g10sim.hardware.gpu_memory.placement import FitRule
from g10sim.hardware.host_memory.host_buffers import StagedRun, index_owner, slower
from g10sim.hardware.memory import AT_ONCE, Departure, Rate, Residency
from g10sim.hardware.pools import Door, Frames, Pool
from g10sim.hardware.runs import EmptyRun, Run
from g10sim.records import ContiguousRecord, Location


class Contiguous(Residency):
    """Every tensor is one block of consecutive pages: it is there as a whole, or it has no space.

    Space is taken when a fetch starts or a tensor without contents is allocated, and given back when an
    eviction has completed or a tensor is discarded. Requests that do not fit wait in FIFO order. A tensor
    that leaves may be ``held``: kernels up to a given one still read it, and its space is not given back
    before that one has ended. ``whole`` are the tensors of which all is here and stays. Counts mean the same
    as in paged memory: free frames are those without contents, whether or not a block covers them.
    """

    notes_arrivals = True
    refaults = False

    def __init__(self, page_bytes: int, pools: Sequence[Pool], door: Door, blocks: Blocks) -> None:
        super().__init__(blocks.sizes, Frames(blocks.allocator.capacity_pages), page_bytes, pools, door)
        self.blocks, self.buffers = blocks, blocks.buffers
        self._staged, self._recalls = blocks.staged, blocks.recalls
        self.held: MutableMapping[int, int] = {}
        self.waiting: deque[int] = deque()
        self.whole = set[int]()
        self._read_again = set[int]()
        self._leaving: dict[int, None] = {}
        self._copied_out = set[int]()
        self._stored = set[int]()
        self._condemned = set[int]()
        self._settled = -1
        self._hole_at_peak = self.largest_hole_pages

    @property
    def used_pages(self) -> int:
        """GPU pages that belong to somebody, with or without contents."""
        return self.blocks.allocator.used_pages

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest block that could be allocated."""
        return self.blocks.allocator.largest_hole_pages

    def order(self) -> array[int]:
        """Return what lies on the GPU by address."""
        return self.blocks.allocator.layout()

    def state(self, now: int) -> tuple[Hashable, ...] | None:
        """Return what waits for a block or leaves, too, and the buffers in host memory; None: not known."""
        pages, buffers = super().state(now), self.buffers.state()
        if pages is None or buffers is None:
            return None
        marks = self.held.items(), self._stored, self._condemned, self._read_again
        queues = tuple(self.waiting), tuple(self._leaving)
        return *pages, *queues, *(tuple(sorted(marked)) for marked in marks), buffers

    def note_peak(self) -> None:
        """Remember the most GPU pages that belong to somebody, the largest hole then, and pages of tiers."""
        allocator = self.blocks.allocator
        if allocator.used_pages > self._peak_used:
            self._peak_used, self._hole_at_peak = allocator.used_pages, allocator.largest_hole_pages
        self._note_tiers()

    @property
    def peaks(self) -> tuple[int, int]:
        """Most pages of the GPU that belonged to somebody since peaks were restarted: this job, and all."""
        frames = self.blocks.allocator.frames
        return self._peak_used, self._peak_used if frames is None else frames.peak(id(self))

    def restart_peaks(self) -> None:
        """Begin to look for peaks again, and with the first of every tensor's planned addresses."""
        frames, self._peak_used = self.blocks.allocator.frames, 0
        if frames is not None:
            frames.watch(id(self))
        self.note_peak()
        self.blocks.restart()

    def figures(self) -> ContiguousRecord:
        """Return what the allocator needed and how far it was in pieces since peaks were restarted."""
        mean, page = self.blocks.mean_pages(), self.page_bytes
        return ContiguousRecord(
            reserved_gpu_bytes=self.blocks.allocator.reserved_pages * page,
            largest_hole_bytes=self._hole_at_peak * page,
            peak_pinned_bytes=self.buffers.peak_bytes,
            mean_gpu_bytes=(self._peak_used if mean is None else mean) * page,
        )

    def reserve_scratch(self, rule: FitRule) -> bool:
        """Set a block aside for scratch space, if there is to be any; False where there is no room."""
        self.door.enter()
        return self.blocks.reserve_scratch(rule)

    def give_up_scratch(self) -> None:
        """Give back what was set aside."""
        self.door.enter()
        self.blocks.release()

    def is_usable(self, tensor: int) -> bool:
        """Return whether a kernel may use a tensor: it is here, or leaves but is usable until it has left."""
        if self.idle[tensor] == self.sizes[tensor] or tensor in self.held:
            return True
        return tensor in self._leaving and not self._recalls and not self._is_read_again(tensor)

    def _is_read_again(self, tensor: int) -> bool:
        return tensor in self._read_again and any(
            run.tensor == tensor and run.is_empty for queue in self.queues.prefetch for run in queue
        )

    def place(self, tensor: int, location: Location) -> None:
        """Put a tensor somewhere before time starts: into the last tier with room instead of a full GPU."""
        if location == Location.GPU and self.blocks.allocate(tensor):
            self.whole.add(tensor)
        elif location == Location.GPU:
            tiers, pools, pages = self.tiers, self.pools, self.absent[tensor]
            location = next((tier for tier in reversed(tiers) if pools[tier].free >= pages), tiers[-1])
        super().place(tensor, location)

    def request_prefetch(self, tensor: int) -> None:
        """Ask for space for a tensor that has none; what it holds elsewhere follows when it gets it.

        A tensor that is leaving stays, where such tensors are recalled; elsewhere it leaves all the same.
        """
        self.door.enter()
        if tensor in self._leaving:
            if self._recalls:
                self.held.pop(tensor, None)
                self.cancel_eviction(tensor)
            elif tensor not in self.blocks.weights:
                self._read_in_vain(tensor)
        elif tensor not in self.waiting and self.blocks.is_missing(tensor):
            self.waiting.append(tensor)
            self.settle()

    def _read_in_vain(self, tensor: int) -> None:
        """Read all of a tensor that is leaving, while it leaves; kernels that need it wait for that.

        Afterwards it counts as stored in the last tier.
        """
        targets = (place for place in self.tiers for run in self.queues.evict[place] if run.tensor == tensor)
        target = next(targets, None)
        if target is not None and tensor not in self._read_again:
            pages = self.sizes[tensor]
            self._read_again.add(tensor)
            run = EmptyRun(tensor, pages, self.blocks.copy_rate(pages, target, False))
            self.queues.prefetch[target].append(run)

    def demand(self, tensor: int, rate: Rate | None = None) -> None:
        """Ask for a tensor that a kernel waits for; it takes its turn."""
        if not self.is_asked_for(tensor):
            self.request_prefetch(tensor)

    def is_asked_for(self, tensor: int) -> bool:
        """Return whether a tensor has its space, waits for it, or may be used until it has left."""
        if tensor in self._leaving:
            return tensor in self.held or not self._recalls
        return tensor in self.waiting or not self.blocks.is_missing(tensor)

    def request_eviction(self, tensor: int, target: Location, how: Departure = AT_ONCE) -> None:
        """Queue a tensor to leave, if it is all here and the host (if that is the target) admits it.

        Kernels up to ``until`` may read it meanwhile. With a ``density`` it is compressed in host memory.
        A clean one is in host memory already: its space is all that is at stake.
        """
        self.door.enter()
        count, is_clean = self.idle[tensor], how.is_clean
        if kept := self.kept_in(tensor, count, target):
            target, is_clean = kept, True
        if not count or count != self.sizes[tensor] or (is_clean and self.pools[target].free < count):
            return
        run = StagedRun(tensor, count, self.blocks.copy_rate(count, target, True))
        if target == self._staged:
            admission = self.buffers.admit(tensor, count, how.density)
            if admission is None:
                return
            run.ready_at, run.rate = admission.ready_at, slower(run.rate, admission.limit)
        self._leaving[tensor] = None
        self.whole.discard(tensor)
        if how.until is not None:
            self.held[tensor] = how.until
        if is_clean:
            self.return_clean(tensor, count, target)
            self._copied_out.add(tensor)
        else:
            self.send(run, target)

    def drop_compression(self) -> None:
        """Leave tensors in host memory as they are whose compression has not begun."""
        self.door.enter()
        self.buffers.drop_waiting()

    def end_kernel(self, kernel: int) -> None:
        """Let go of what was held for a kernel that has ended, and take the space back of what has left."""
        self.door.enter()
        for tensor in [tensor for tensor, until in self.held.items() if until <= kernel]:
            del self.held[tensor]
        self._take_back()
        self.settle()

    def withdraw_requests(self, but_for: Container[int]) -> None:
        """Drop waiting requests for space, except those of some tensors."""
        self.door.enter()
        self.waiting = deque(tensor for tensor in self.waiting if tensor in but_for)
        self.settle()

    def arrived(self, tensor: int, source: Location) -> None:
        """Note a tensor that has all arrived, and give up its buffer unless the host keeps the copy."""
        if self.idle[tensor] == self.sizes[tensor]:
            self.whole.add(tensor)
        has_come = source and source == self._staged and not self.moving[tensor]
        if has_come and tensor not in self.frozen:
            self.buffers.release(tensor)
        if tensor in self.blocks.expanded and not self.moving[tensor]:
            self.blocks.release(index_owner(tensor))

    def _put(self, tensor: int, count: int, target: Location, *, is_copied: bool = True) -> None:
        super()._put(tensor, count, target, is_copied=is_copied)
        if tensor in self._leaving and not self.moving[tensor]:
            self._copied_out.add(tensor)

    @property
    def is_settled(self) -> bool:
        """Return whether no space waits to be given that transfers, or other jobs, may have made."""
        return self.door.changes == self._settled or not (self._leaving or self.waiting)

    def settle(self) -> None:
        """Take back the space of what has left, then give space to those who wait for it."""
        if self.is_settled:
            return
        door = self.door
        for tensor in self._in_order(self._copied_out - self._stored):
            door.enter()
            self._stored.add(tensor)
            in_host = 0 if self._staged is None else self.pages[self._staged][tensor]
            if in_host < self.sizes[tensor]:
                self.buffers.release(tensor)
            if in_host:
                self.buffers.stored(tensor, in_host)
        if not self.blocks.returns_between_kernels:
            self._take_back()
        while self.waiting and self.blocks.allocate(self.waiting[0]):
            door.enter()
            self._fill(self.waiting.popleft())
        self._settled = door.changes

    def _take_back(self) -> None:
        for tensor in self._in_order(self._copied_out - self.held.keys()):
            self.door.enter()
            self._stay(tensor)
            self.blocks.release(tensor)
            if tensor in self._read_again:
                self._read_again.remove(tensor)
                self.pass_on(tensor)
            if tensor in self._condemned:
                self._condemned.remove(tensor)
                super().discard(tensor)
            else:
                self.blocks.keep_index(tensor)

    def _in_order(self, some: set[int]) -> Collection[int]:
        """Return some of the tensors that leave in the order in which they were asked to."""
        return some if len(some) < 2 else [tensor for tensor in self._leaving if tensor in some]

    def _stay(self, tensor: int) -> None:
        """Note that a tensor is not leaving, or has left."""
        del self._leaving[tensor]
        self._stored.discard(tensor)
        self._copied_out.discard(tensor)

    def _fill(self, tensor: int) -> None:
        """Set the copies going that a tensor's new block waits for; new contents are there at once."""
        for place in reversed(self.tiers):
            count = self.pages[place][tensor]
            if count:
                self.pages[place][tensor] = 0
                self.moving[tensor] += count
                run: Run = Run(tensor, count, self.blocks.copy_rate(count, place, False))
                if place == self._staged:
                    run = self.buffers.fetch(tensor, count, run.rate)
                self.queues.prefetch[place].append(run)
        self._allocate(tensor)
        self.note_peak()

    def discard(self, tensor: int, *, but_for_gpu: bool = False) -> None:
        """Forget a tensor's contents and take its space back; one that leaves unrecalled goes first.

        Copies on their way in are called off.
        """
        self.door.enter()
        if tensor in self._leaving:
            self._condemned.add(tensor)
            return
        super().cancel(tensor)
        self.whole.discard(tensor)
        super().discard(tensor)
        self.buffers.release(tensor)
        self.blocks.release(tensor)
        self.blocks.release(index_owner(tensor))

    def cancel(self, tensor: int) -> None:
        """Take a tensor out of every queue: copies on their way in or (if recalled) out are called off."""
        self.door.enter()
        if tensor in self.waiting:
            self.waiting.remove(tensor)
        if tensor not in self._leaving:
            super().cancel(tensor)
        elif self._recalls:
            self.held.pop(tensor, None)
            self.cancel_eviction(tensor)

    def cancel_eviction(self, tensor: int) -> None:
        """Keep a tensor that was to be evicted: until all of it is copied, all of it is still here.

        One that is held stays usable as it leaves, and goes on leaving.
        """
        self.door.enter()
        if tensor not in self._leaving or tensor in self.held:
            return
        self._stay(tensor)
        self._condemned.discard(tensor)
        super().cancel_eviction(tensor)
        if self.idle[tensor] == self.sizes[tensor]:
            self.whole.add(tensor)
        copied = 0
        for place in self.tiers:
            copied += self.pages[place][tensor]
            self.pools[place].drop(self, tensor, self.pages[place][tensor])
            self.pages[place][tensor] = 0
        if copied:
            self.take(copied)
            self.arrive(tensor, copied, Location.NONE)
        self.buffers.release(tensor)

    def check(self) -> None:
        """Check that exactly the tensors with contents here, or on their way, have their blocks.

        Raises InvariantError.
        """
        self.blocks.allocator.check()
        blocks = self.blocks.allocator.blocks
        for tensor in range(len(self.sizes)):
            block, pages = blocks.get(tensor), self.blocks.pages(tensor)
            has_block = bool(self.idle[tensor] or self.moving[tensor] or tensor in self._leaving)
            if (block is not None) != has_block:
                raise InvariantError(f"tensor {tensor}: its pages and its block of GPU memory disagree")
            if (tensor in self.whole) != (self.idle[tensor] == pages):
                raise InvariantError(f"tensor {tensor}: counts as whole, or not, unlike its pages")
            if block is not None and block.pages < pages:
                raise InvariantError(f"tensor {tensor}: a block of {block.pages} for {pages} pages")
