"""GPU memory in which every tensor is one block: it is there as a whole, or it has no space."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Container, Hashable, Mapping, Sequence

from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.allocators.space import Allocator
from g10sim.hardware.gpu_memory.placement import FitRule, PlannedAddresses
from g10sim.hardware.gpu_memory.space import Rate
from g10sim.hardware.host_memory.compression import Expanded, index_owner
from g10sim.hardware.host_memory.host_buffers import HostBuffers, StagedRun, slower
from g10sim.hardware.memory import Residency
from g10sim.hardware.pools import Frames
from g10sim.hardware.runs import EmptyRun, Run
from g10sim.records import ContiguousRecord, Location

_BUFFER = -1

CopyRate = Callable[[int, Location, bool], int]
"""Fastest rate in bytes/second of a copy of so many pages from or to a place; True for one that leaves."""


class Contiguous:
    """Every tensor is one block of consecutive pages: it is there as a whole, or it has no space.

    Space is taken when a fetch starts or a tensor without contents is allocated, and given back when an
    eviction has completed or a tensor is discarded. Requests that do not fit wait in FIFO order. ``rules``
    say for each tensor where its block goes; a tensor without a rule needs none of its own. A tensor that
    leaves may be ``held``: kernels up to a given one still read it, and its space is not given back before
    that one has ended. ``shared`` are the GPU's pages where other jobs use them, too; ``blocks`` takes its
    own from them. Where space ``returns_between_kernels`` only, what has left while a kernel ran keeps its
    block until the kernel has ended. ``buffers`` are those in the memory of the ``staged`` tier. Tensors that
    are ``expanded`` take more pages here than move, and leave an index behind. ``whole`` are the tensors of
    which all is here and stays. The residency's counts mean the same as in paged memory: free frames are
    those without contents, whether or not a block covers them.
    """

    notes_arrivals = True
    refaults = False

    def __init__(
        self,
        *,
        blocks: Allocator,
        rules: Sequence[FitRule | None],
        copy_rate: CopyRate,
        recalls: bool,
        weights: Container[int] = frozenset(),
        buffers: HostBuffers,
        staged: Location | None,
        returns_between_kernels: bool = False,
        expanded: Mapping[int, Expanded] | None = None,
        shared: Frames | None = None,
    ) -> None:
        self.blocks = blocks
        self.buffers, self._staged = buffers, staged
        self.held: dict[int, int] = {}
        self.waiting: deque[int] = deque()
        self.whole: set[int] = set()
        self.peak_used = 0
        self._page_cycles = self._counted_at = self._counted_from = 0
        self.scratch_pages = 0
        self.largest_hole_at_peak = blocks.largest_hole_pages
        self._rules, self._copy_rate, self._recalls = tuple(rules), copy_rate, recalls
        self._weights, self._read_again = weights, set[int]()
        self._returns_between_kernels = returns_between_kernels
        self._shared, self._expanded = shared, expanded or {}
        self._leaving: dict[int, None] = {}
        self._stored: set[int] = set()
        self._condemned: set[int] = set()
        self._settled = -1

    def serve(self, memory: Residency) -> None:
        """Place the tensors of a residency from now on."""
        self._memory = memory

    @property
    def used_pages(self) -> int:
        """GPU pages that belong to somebody, with or without contents."""
        return self.blocks.used_pages

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest block that could be allocated."""
        return self.blocks.largest_hole_pages

    def order(self) -> array[int]:
        """Return what lies on the GPU by address."""
        return self.blocks.layout()

    def state(self, now: int) -> Hashable:
        """Return what waits for a block or leaves, and the buffers in host memory; None: not known."""
        buffers = self.buffers.state()
        if buffers is None:
            return None
        marks = self.held.items(), self._stored, self._condemned, self._read_again
        queues = tuple(self.waiting), tuple(self._leaving)
        return *queues, *(tuple(sorted(marked)) for marked in marks), buffers

    def unmap(self) -> None:
        """Do nothing: the space of discarded tensors is free at once."""

    def merging(self, tensor: int) -> int:
        """Return how many pages of a tensor may arrive at once, for the same order as one by one makes."""
        return self._memory.recency.merging(tensor)

    def reorder(self) -> bool:
        """Change nothing: policies name what is evicted."""
        return False

    def note_peak(self) -> None:
        """Remember the largest number of GPU pages that belong to somebody, and the largest hole then."""
        if self.blocks.used_pages > self.peak_used:
            self.peak_used = self.blocks.used_pages
            self.largest_hole_at_peak = self.blocks.largest_hole_pages

    @property
    def peak_used_by_all(self) -> int:
        """Most pages of the GPU in use since peaks were restarted, by whichever job."""
        return self.peak_used if self._shared is None else self._shared.peak(id(self))

    @property
    def pages_of_others(self) -> int:
        """GPU pages that other jobs have."""
        return 0 if self._shared is None else self._shared.used - self.blocks.used_pages

    def restart_peaks(self) -> None:
        """Begin to look for peaks anew, and with the first of every tensor's planned addresses."""
        self._counted_at = self._counted_from = self.buffers.now
        self._page_cycles = 0
        if self._shared is not None:
            self._shared.watch(id(self))
        self.peak_used = 0
        self.note_peak()
        self.blocks.restart()
        self.buffers.watch()
        for rule in self._rules:
            if isinstance(rule, PlannedAddresses):
                rule.restart()

    def figures(self) -> ContiguousRecord:
        """Return what the allocator needed and how far it was in pieces since peaks were restarted."""
        page = self._memory.page_bytes
        self._count()
        cycles = self._counted_at - self._counted_from
        return ContiguousRecord(
            reserved_gpu_bytes=self.blocks.reserved_pages * page,
            largest_hole_bytes=self.largest_hole_at_peak * page,
            peak_pinned_bytes=self.buffers.peak_bytes,
            mean_gpu_bytes=(self._page_cycles / cycles if cycles else self.peak_used) * page,
        )

    def _count(self) -> None:
        """Add up the pages in use so far, each cycle for itself: called before their number changes."""
        now = self.buffers.now
        self._page_cycles += self.blocks.used_pages * (now - self._counted_at)
        self._counted_at = now

    def reserve(self, pages: int, rule: FitRule) -> bool:
        """Set a block aside for scratch space; False where there is no room."""
        self._memory.door.enter()
        self._count()
        return self.blocks.allocate(_BUFFER, pages, rule)

    def give_up_reserved(self) -> None:
        """Give back what was set aside."""
        self._memory.door.enter()
        self._count()
        self.blocks.release(_BUFFER)

    def needs_space(self, tensor: int) -> bool:
        """Tell whether a tensor has a block of its own when it is on the GPU."""
        return self._rules[tensor] is not None

    def is_usable(self, tensor: int) -> bool:
        """Tell whether a kernel may use a tensor: it is here, or leaves but is usable until it has left."""
        if self._memory.idle[tensor] == self._memory.sizes[tensor] or tensor in self.held:
            return True
        return tensor in self._leaving and not self._recalls and not self._is_read_again(tensor)

    def _is_read_again(self, tensor: int) -> bool:
        return tensor in self._read_again and any(
            run.tensor == tensor and run.is_empty for queue in self._memory.queues.prefetch for run in queue
        )

    def home(self, tensor: int, location: Location) -> Location:
        """Return where a tensor goes before time starts: the last tier with room instead of a full GPU."""
        if location == Location.GPU and not self._allocate(tensor):
            tiers, pools, pages = self._memory.tiers, self._memory.pools, self._memory.absent[tensor]
            return next((tier for tier in reversed(tiers) if pools[tier].free >= pages), tiers[-1])
        if location == Location.GPU:
            self.whole.add(tensor)
        return location

    def fetch(self, tensor: int) -> None:
        """Ask for space for a tensor that has none; what it holds elsewhere follows when it gets it.

        A tensor that is leaving stays, where such tensors are recalled; elsewhere it leaves all the same.
        """
        if tensor in self._leaving:
            if self._recalls:
                self.held.pop(tensor, None)
                self.keep(tensor)
            elif tensor not in self._weights:
                self._read_in_vain(tensor)
        elif tensor not in self.blocks and tensor not in self.waiting and self.needs_space(tensor):
            self.waiting.append(tensor)
            self.settle()

    def _read_in_vain(self, tensor: int) -> None:
        """Read all of a tensor that is leaving, while it leaves; kernels that need it wait for that.

        Afterwards it counts as stored in the last tier.
        """
        memory = self._memory
        targets = (
            place for place in memory.tiers for run in memory.queues.evict[place] if run.tensor == tensor
        )
        target = next(targets, None)
        if target is not None and tensor not in self._read_again:
            pages = memory.sizes[tensor]
            self._read_again.add(tensor)
            memory.queues.prefetch[target].append(
                EmptyRun(tensor, pages, self._copy_rate(pages, target, False))
            )

    def demand(self, tensor: int, rate: Rate | None) -> None:
        """Ask for a tensor that a kernel waits for; it takes its turn."""
        if tensor not in self.held and (self._recalls or tensor not in self._leaving):
            self.fetch(tensor)

    def evict(
        self,
        tensor: int,
        target: Location,
        *,
        until: int | None,
        density: float | None,
        is_clean: bool,
        pages: int | None,
    ) -> None:
        """Queue a tensor to leave, if it is all here and the host (if that is the target) admits it.

        Kernels up to ``until`` may read it meanwhile. With a ``density`` it is compressed in host memory.
        A clean one is in host memory already: its space is all that is at stake.
        """
        memory = self._memory
        count = memory.idle[tensor]
        if kept := memory.kept_in(tensor, count, target):
            target, is_clean = kept, True
        if not count or count != memory.sizes[tensor] or (is_clean and memory.pools[target].free < count):
            return
        run = StagedRun(tensor, count, self._copy_rate(count, target, True))
        if target == self._staged:
            admission = self.buffers.admit(tensor, count, density)
            if admission is None:
                return
            run.ready_at, run.rate = admission.ready_at, slower(run.rate, admission.limit)
        self._leaving[tensor] = None
        self.whole.discard(tensor)
        if until is not None:
            self.held[tensor] = until
        if is_clean:
            memory.idle[tensor] = 0
            memory.recency.remove(tensor)
            memory.take(-count)
            memory.pools[target].take(count)
            memory.pages[target][tensor] = count
        else:
            memory.send(run, target)

    def drop_compression(self) -> None:
        """Leave tensors in host memory as they are whose compression has not begun."""
        self._memory.door.enter()
        self.buffers.drop_waiting()

    def end_kernel(self, kernel: int) -> None:
        """Let go of what was held for a kernel that has ended, and take the space back of what has left."""
        self._memory.door.enter()
        for tensor in [tensor for tensor, until in self.held.items() if until <= kernel]:
            del self.held[tensor]
        self._take_back()
        self.settle()

    def withdraw_requests(self, but_for: Container[int]) -> None:
        """Drop waiting requests for space, except those of some tensors."""
        self._memory.door.enter()
        self.waiting = deque(tensor for tensor in self.waiting if tensor in but_for)
        self.settle()

    def arrived(self, tensor: int, source: Location) -> None:
        """Note a tensor that has all arrived, and give up its buffer unless the host keeps the copy."""
        if self._memory.idle[tensor] == self._memory.sizes[tensor]:
            self.whole.add(tensor)
        has_come = source and source == self._staged and not self._memory.moving[tensor]
        if has_come and tensor not in self._memory.frozen:
            self.buffers.release(tensor)
        if tensor in self._expanded and not self._memory.moving[tensor]:
            self._count()
            self.blocks.release(index_owner(tensor))

    def settle(self) -> None:
        """Take back the space of what has left, then give space to those who wait for it."""
        door = self._memory.door
        if door.changes == self._settled or not (self._leaving or self.waiting):
            return
        for tensor in self._leaving:
            if not self._memory.moving[tensor] and tensor not in self._stored:
                door.enter()
                self._stored.add(tensor)
                in_host = 0 if self._staged is None else self._memory.pages[self._staged][tensor]
                if in_host < self._memory.sizes[tensor]:
                    self.buffers.release(tensor)
                if in_host:
                    self.buffers.stored(tensor, in_host)
        if not self._returns_between_kernels:
            self._take_back()
        while self.waiting and self._allocate(self.waiting[0]):
            door.enter()
            self._fill(self.waiting.popleft())
        self._settled = door.changes

    def _take_back(self) -> None:
        gone = [
            tensor for tensor in self._leaving if not self._memory.moving[tensor] and tensor not in self.held
        ]
        for tensor in gone:
            self._memory.door.enter()
            self._stay(tensor)
            self._count()
            self.blocks.release(tensor)
            if tensor in self._read_again:
                self._read_again.remove(tensor)
                self._memory.pass_on(tensor)
            if tensor in self._condemned:
                self._condemned.remove(tensor)
                self._memory.forget(tensor)
            elif tensor in self._expanded:
                pages, rule = self._expanded[tensor].index_pages, self._rules[tensor]
                if pages and rule is not None:  # there is room: the tensor has just left it
                    self.blocks.allocate(index_owner(tensor), pages, rule)

    def _stay(self, tensor: int) -> None:
        """Note that a tensor is not leaving, or has left."""
        del self._leaving[tensor]
        self._stored.discard(tensor)

    def _allocate(self, tensor: int) -> bool:
        rule = self._rules[tensor]
        self._count()
        return rule is not None and self.blocks.allocate(tensor, self.block_pages(tensor), rule)

    def block_pages(self, tensor: int) -> int:
        """Pages of GPU memory that a tensor needs."""
        expanded = self._expanded.get(tensor)
        return self._memory.sizes[tensor] if expanded is None else expanded.block_pages

    def _fill(self, tensor: int) -> None:
        """Set the copies going that a tensor's new block waits for; new contents are there at once."""
        for place in reversed(self._memory.tiers):
            count = self._memory.pages[place][tensor]
            if count:
                self._memory.pages[place][tensor] = 0
                self._memory.moving[tensor] += count
                run: Run = Run(tensor, count, self._copy_rate(count, place, False))
                if place == self._staged:
                    run = self.buffers.fetch(tensor, count, run.rate)
                self._memory.queues.prefetch[place].append(run)
        count = self._memory.absent[tensor]
        if count:
            self._memory.absent[tensor] = 0
            self._memory.take(count)
            self._memory.arrive(tensor, count, Location.NONE)
        self.note_peak()

    def discard(self, tensor: int) -> None:
        """Forget a tensor's contents and take its space back; one that leaves unrecalled goes first."""
        if tensor in self._leaving:
            self._condemned.add(tensor)
            return
        self.whole.discard(tensor)
        self._memory.forget(tensor)
        self.buffers.release(tensor)
        self._count()
        self.blocks.release(tensor)
        self.blocks.release(index_owner(tensor))

    def cancel(self, tensor: int) -> None:
        """Take a tensor out of every queue: copies on their way in or (if recalled) out are called off."""
        if tensor in self.waiting:
            self.waiting.remove(tensor)
        if tensor not in self._leaving or self._recalls:
            self.held.pop(tensor, None)
            if tensor not in self._leaving:
                self._memory.withdraw(tensor)
            else:
                self.keep(tensor)

    def keep(self, tensor: int) -> None:
        """Keep a tensor that was to be evicted: until all of it is copied, all of it is still here.

        One that is held stays usable as it leaves, and goes on leaving.
        """
        if tensor not in self._leaving or tensor in self.held:
            return
        self._stay(tensor)
        self._memory.withdraw_eviction(tensor)
        if self._memory.idle[tensor] == self._memory.sizes[tensor]:
            self.whole.add(tensor)
        copied = 0
        for place in self._memory.tiers:
            copied += self._memory.pages[place][tensor]
            self._memory.pools[place].drop(self._memory, tensor, self._memory.pages[place][tensor])
            self._memory.pages[place][tensor] = 0
        if copied:
            self._memory.take(copied)
            self._memory.arrive(tensor, copied, Location.NONE)
        self.buffers.release(tensor)

    def check(self) -> None:
        """Check that exactly the tensors with contents here, or on their way, have their blocks.

        Raises InvariantError.
        """
        self.blocks.check()
        blocks = self.blocks.blocks
        for tensor in range(len(self._memory.sizes)):
            block, pages = blocks.get(tensor), self.block_pages(tensor)
            has_block = bool(
                self._memory.idle[tensor] or self._memory.moving[tensor] or tensor in self._leaving
            )
            if (block is not None) != has_block:
                raise InvariantError(f"tensor {tensor}: its pages and its block of GPU memory disagree")
            if (tensor in self.whole) != (self._memory.idle[tensor] == pages):
                raise InvariantError(f"tensor {tensor}: counts as whole, or not, unlike its pages")
            if block is not None and block.pages < pages:
                raise InvariantError(f"tensor {tensor}: a block of {block.pages} for {pages} pages")
