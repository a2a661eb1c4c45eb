"""GPU memory in which every tensor is one block: it is there as a whole, or it has no space."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from g10sim.errors import InvariantError
from g10sim.hardware.allocators.interface import Allocator
from g10sim.hardware.host_buffers import HostBuffers, StagedRun, slower
from g10sim.hardware.memory import GpuMemory, Pool
from g10sim.hardware.placement import FitRule, PlannedAddresses
from g10sim.hardware.recency import Run
from g10sim.hardware.shared import Frames
from g10sim.records import ContiguousRecord, Location

_BUFFER = -1

CopyRate = Callable[[int, Location, bool], int]
"""Fastest rate in bytes/second of a copy of so many pages from or to a place; True for one that leaves."""


class ContiguousMemory(GpuMemory):
    """Residency of one job's tensors where whole tensors move and each needs consecutive pages.

    Space is taken when a fetch starts or a tensor without contents is allocated, and given back when an
    eviction has completed or a tensor is discarded. What finds no room waits, first come first served.
    ``rules`` say for each tensor where its block goes; a tensor without a rule needs none of its own.
    A tensor that leaves may be ``held``: kernels up to a given one still read it, and its space is not
    given back before that one has ended. ``frames`` are the GPU's pages where other jobs use them, too;
    ``space`` takes its own from them. Where space ``returns_between_kernels`` only, what has left
    while a kernel ran keeps its block until the kernel has ended.
    Beyond space, the counts mean the same as in paged memory: ``free`` pages are those without contents,
    whether or not somebody's block covers them.
    """

    moves_whole_tensors = True

    def __init__(
        self,
        pages: Sequence[int],
        page_bytes: int,
        host: Pool,
        flash: Pool,
        *,
        space: Allocator,
        rules: Sequence[FitRule | None],
        copy_rate: CopyRate,
        recalls: bool,
        buffers: HostBuffers,
        returns_between_kernels: bool = False,
        frames: Frames | None = None,
    ) -> None:
        super().__init__(pages, space.capacity_pages, page_bytes, host, flash)
        self.space = space
        self.waiting: deque[int] = deque()
        self.buffers = buffers
        self.scratch_pages = 0
        self.largest_hole_at_peak = space.largest_hole_pages
        self._rules, self._copy_rate, self._recalls = tuple(rules), copy_rate, recalls
        self._returns_between_kernels = returns_between_kernels
        self._frames = frames
        self._leaving: dict[int, None] = {}
        self._stored: set[int] = set()
        self._held: dict[int, int] = {}
        self._condemned: set[int] = set()

    @property
    def used(self) -> int:
        """GPU pages that belong to somebody, with or without contents."""
        return self.space.used_pages

    @property
    def held(self) -> Container[int]:
        """Tensors on their way out (or copied) that kernels may still read."""
        return self._held

    @property
    def waits_for_space(self) -> bool:
        """Whether a tensor waits for a block."""
        return bool(self.waiting)

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest block that could be allocated."""
        return self.space.largest_hole_pages

    def note_peak(self) -> None:
        """Remember the largest number of GPU pages that belong to somebody, and the largest hole then."""
        if self.space.used_pages > self.peak_used:
            self.peak_used = self.space.used_pages
            self.largest_hole_at_peak = self.space.largest_hole_pages

    @property
    def peak_used_by_all(self) -> int:
        """Most pages of the GPU in use since peaks were restarted, by whichever job."""
        return self.peak_used if self._frames is None else self._frames.peak(id(self))

    @property
    def pages_of_others(self) -> int:
        """GPU pages that other jobs have."""
        return 0 if self._frames is None else self._frames.used - self.space.used_pages

    def restart_peaks(self) -> None:
        """Begin to look for peaks anew, and with the first of every tensor's planned addresses."""
        if self._frames is not None:
            self._frames.watch(id(self))
        self.peak_used = 0
        self.note_peak()
        self.space.restart()
        self.buffers.watch()
        for rule in self._rules:
            if isinstance(rule, PlannedAddresses):
                rule.restart()

    def contiguous_figures(self) -> ContiguousRecord:
        """Return what the allocator needed and how far it was in pieces since peaks were restarted."""
        page = self.page_bytes
        return ContiguousRecord(
            reserved_gpu_bytes=self.space.reserved_pages * page,
            largest_hole_bytes=self.largest_hole_at_peak * page,
            peak_pinned_bytes=self.buffers.peak_bytes,
        )

    def reserve(self, pages: int, rule: FitRule) -> bool:
        """Set a block aside for scratch space; False where there is no room."""
        return self.space.allocate(_BUFFER, pages, rule)

    def give_up_reserved(self) -> None:
        """Give back what was set aside."""
        self.space.release(_BUFFER)

    def needs_space(self, tensor: int) -> bool:
        """Whether a tensor has a block of its own when it is on the GPU."""
        return self._rules[tensor] is not None

    def is_usable(self, tensor: int) -> bool:
        """Whether a kernel may use a tensor: it is all here, or leaves and may be used until it has left."""
        here = self.idle[tensor] == self.pages[tensor]
        return here or tensor in self._held or (tensor in self._leaving and not self._recalls)

    def place(self, tensor: int, location: Location) -> None:
        """Put a tensor without contents somewhere before time starts: on flash where the GPU has no room."""
        if location is Location.GPU and not self._allocate(tensor):
            location = Location.FLASH
        super().place(tensor, location)

    def request_prefetch(self, tensor: int) -> None:
        """Ask for space for a tensor that has none; what it holds elsewhere follows when it gets it.

        A tensor that is leaving stays, where such tensors are recalled.
        """
        if tensor in self._leaving:
            if self._recalls:
                self._held.pop(tensor, None)
                self.cancel_eviction(tensor)
        elif tensor not in self.space and tensor not in self.waiting and self.needs_space(tensor):
            self.waiting.append(tensor)
            self.settle()

    def demand(self, tensor: int, rate: Callable[[int, Location], int] | None = None) -> None:
        """Ask for a tensor that a kernel waits for; it takes its turn."""
        if tensor not in self._held:
            self.request_prefetch(tensor)

    def request_eviction(self, tensor: int, target: Location) -> None:
        """Queue a tensor to go to host memory or flash, if it is here as a whole."""
        self.copy_out(tensor, target)

    def copy_out(
        self,
        tensor: int,
        target: Location,
        *,
        until: int | None = None,
        density: float | None = None,
        is_clean: bool = False,
    ) -> None:
        """Queue a tensor to leave, if it is here as a whole and the host (if that is the target) admits it.

        Kernels up to ``until`` may read it meanwhile. With a ``density`` it is compressed in host memory.
        A clean one is in host memory already: its space is all that is at stake.
        """
        count = self.idle[tensor]
        if not count or count != self.pages[tensor] or (is_clean and self.host_pool.free < count):
            return
        run = StagedRun(tensor, count, self._copy_rate(count, target, True))
        if target is Location.HOST:
            admission = self.buffers.admit(tensor, count, density)
            if admission is None:
                return
            run.ready_at, run.rate = admission.ready_at, slower(run.rate, admission.limit)
        self.idle[tensor] = 0
        self.recency.remove(tensor)
        self._leaving[tensor] = None
        if until is not None:
            self._held[tensor] = until
        if is_clean:
            self.free += count
            self.host_pool.take(count)
            self.host[tensor] = count
        else:
            self.moving[tensor] += count
            queues = self.queues
            (queues.evict_flash if target is Location.FLASH else queues.evict_host).append(run)

    def arriving(self) -> frozenset[int]:
        """Return the tensors that wait for space to come in, or are on their way in."""
        return super().arriving().union(self.waiting)

    def drop_compression(self) -> None:
        """Leave tensors in host memory as they are whose compression has not begun."""
        self.buffers.drop_waiting()

    def end_kernel(self, kernel: int) -> None:
        """Let go of what was held for a kernel that has ended, and take the space back of what has left."""
        for tensor in [tensor for tensor, until in self._held.items() if until <= kernel]:
            del self._held[tensor]
        self._take_back()
        self.settle()

    def withdraw_requests(self, but_for: Container[int]) -> None:
        """Forget who waits for space, except some."""
        self.waiting = deque(tensor for tensor in self.waiting if tensor in but_for)
        self.settle()

    def deposit(self, tensor: int, count: int, target: Location) -> None:
        """Put pages that left the GPU where they went."""
        pool, counts = self.flash_pool, self.flash
        if target is Location.HOST:
            pool, counts = self.host_pool, self.host
            self.traffic.host_out += count
        else:
            self.traffic.flash_out += count
        pool.store(self, tensor, count)
        counts[tensor] += count

    def arrive(self, tensor: int, count: int, source: Location) -> None:
        """Add pages that came from elsewhere; when all have, the host's buffer is not needed any more."""
        super().arrive(tensor, count, source)
        if source is Location.HOST and not self.moving[tensor]:
            self.buffers.release(tensor)

    def settle(self) -> None:
        """Take back the space of what has left, then give space to those who wait for it."""
        for tensor in self._leaving:
            if not self.moving[tensor] and tensor not in self._stored:
                self._stored.add(tensor)
                if self.host[tensor] == self.pages[tensor]:
                    self.buffers.stored(tensor)
                else:
                    self.buffers.release(tensor)
        if not self._returns_between_kernels:
            self._take_back()
        while self.waiting and self._allocate(self.waiting[0]):
            self._fill(self.waiting.popleft())

    def _take_back(self) -> None:
        gone = [tensor for tensor in self._leaving if not self.moving[tensor] and tensor not in self._held]
        for tensor in gone:
            self._stay(tensor)
            self.space.release(tensor)
            if tensor in self._condemned:
                self._condemned.remove(tensor)
                super().discard(tensor)

    def _stay(self, tensor: int) -> None:
        """Note that a tensor is not leaving, or has left."""
        del self._leaving[tensor]
        self._stored.discard(tensor)

    def _allocate(self, tensor: int) -> bool:
        rule = self._rules[tensor]
        return rule is not None and self.space.allocate(tensor, self.pages[tensor], rule)

    def _fill(self, tensor: int) -> None:
        """Set the copies going that a tensor's new block waits for; new contents are there at once."""
        queues = self.queues
        for queue, counts, place in (
            (queues.prefetch_flash, self.flash, Location.FLASH),
            (queues.prefetch_host, self.host, Location.HOST),
        ):
            count = counts[tensor]
            if count:
                counts[tensor] = 0
                self.moving[tensor] += count
                run: Run = Run(tensor, count, self._copy_rate(count, place, False))
                if place is Location.HOST:
                    run = self.buffers.fetch(tensor, count, run.rate)
                queue.append(run)
        count = self.absent[tensor]
        if count:
            self.absent[tensor] = 0
            self.free -= count
            self.arrive(tensor, count, Location.NONE)
        self.note_peak()

    def discard(self, tensor: int) -> None:
        """Forget a tensor's contents and take its space back; one that leaves unrecalled goes first."""
        if tensor in self._leaving:
            self._condemned.add(tensor)
            return
        super().discard(tensor)
        self.buffers.release(tensor)
        self.space.release(tensor)

    def cancel(self, tensor: int) -> None:
        """Take a tensor out of every queue: copies on their way in or (if recalled) out are called off."""
        if tensor in self.waiting:
            self.waiting.remove(tensor)
        if tensor not in self._leaving or self._recalls:
            self._held.pop(tensor, None)
            super().cancel(tensor)
            if tensor in self._leaving:
                self.cancel_eviction(tensor)

    def cancel_eviction(self, tensor: int) -> None:
        """Keep a tensor that was to be evicted: until all of it is copied, all of it is still here.

        One that is held stays usable as it leaves, and goes on leaving.
        """
        if tensor not in self._leaving or tensor in self._held:
            return
        self._stay(tensor)
        super().cancel_eviction(tensor)
        copied = self.host[tensor] + self.flash[tensor]
        self.host_pool.free += self.host[tensor]
        self.flash_pool.drop(self, tensor, self.flash[tensor])
        self.host[tensor] = self.flash[tensor] = 0
        if copied:
            self.free -= copied
            super().arrive(tensor, copied, Location.NONE)
        self.buffers.release(tensor)

    def check(self) -> None:
        """Check that exactly the tensors with contents here, or on their way, have their blocks.

        Raises InvariantError.
        """
        self.space.check()
        blocks = self.space.blocks
        for tensor, pages in enumerate(self.pages):
            block = blocks.get(tensor)
            has_block = bool(self.idle[tensor] or self.moving[tensor] or tensor in self._leaving)
            if (block is not None) != has_block:
                raise InvariantError(f"tensor {tensor}: its pages and its block of GPU memory disagree")
            if block is not None and block.pages < pages:
                raise InvariantError(f"tensor {tensor}: a block of {block.pages} for {pages} pages")
