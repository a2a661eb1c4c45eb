"""Placement in GPU memory: in any free pages, or (see ``contiguous``) in consecutive ones."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from g10sim.errors import InvariantError
from g10sim.hardware.runs import Run
from g10sim.records import Location

if TYPE_CHECKING:
    from g10sim.hardware.gpu_memory.contiguous import Contiguous
    from g10sim.hardware.memory import Residency

Space: TypeAlias = "Paged | Contiguous"
"""The placement of one job's tensors in GPU memory: how they come in, leave, and are counted."""

Rate: TypeAlias = Callable[[int, Location], int]


class Paged:
    """Any free pages will do: pages come and go one by one (unified memory)."""

    held: Collection[int] = ()
    """Tensors on their way out that kernels may still read."""
    waiting: Collection[int] = ()
    """Tensors that wait for space of their own."""
    notes_arrivals = False
    """True if it wants to know what has arrived."""
    refaults = True
    """True if the running kernel's pages that leave fault again."""
    peak_used = 0
    """Most pages in use since peaks were restarted."""

    def serve(self, memory: Residency) -> None:
        """Place the tensors of a residency from now on."""
        self._memory = memory

    @property
    def used_pages(self) -> int:
        """GPU pages with contents of this job."""
        return self._memory.filled

    @property
    def largest_hole_pages(self) -> int:
        """All free pages."""
        return self._memory.frames.free

    @property
    def peak_used_by_all(self) -> int:
        """Most pages of the GPU in use since peaks were restarted, by whichever job."""
        return self._memory.frames.peak(id(self))

    def order(self) -> array[int]:
        """Return what lies on the GPU in the order of evictions: tensor, pages, tensor, pages, and so on."""
        return self._memory.recency.order()

    def state(self, now: int) -> Hashable:
        """Return nothing: counts and the eviction order are all there is."""
        return ()

    def home(self, tensor: int, location: Location) -> Location:
        """Return the location itself."""
        return location

    def is_usable(self, tensor: int) -> bool:
        """Tell whether a kernel can use all of a tensor."""
        memory = self._memory
        return memory.idle[tensor] + memory.used_in_place(tensor) == memory.sizes[tensor]

    def fetch(self, tensor: int) -> None:
        """Queue what is elsewhere to come in, and what has no contents to be allocated."""
        self._memory.enqueue(self._memory.queues.prefetch, tensor)

    def demand(self, tensor: int, rate: Rate | None) -> None:
        """Queue what is not here as page faults."""
        self._memory.enqueue(self._memory.queues.fault, tensor, rate)

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
        """Queue resident pages to leave; clean ones that came from there are there at once, if there is room.

        Raises InvariantError for what only whole tensors can do.
        """
        if until is not None or density is not None:
            raise InvariantError(f"tensor {tensor}: pages that leave cannot be read or compressed")
        memory = self._memory
        count = memory.idle[tensor] if pages is None else min(pages, memory.idle[tensor])
        if kept := memory.kept_in(tensor, 1, target):
            target, is_clean = kept, True
        if is_clean and memory.copies[tensor] == target:
            clean = min(count, memory.clean_pages(tensor))
            if gone := min(clean, memory.pools[target].free):
                memory.return_clean(tensor, gone, target)
            count -= clean
        if count:
            memory.send(Run(tensor, count), target)

    def discard(self, tensor: int) -> None:
        """Forget contents; pages in transfer are not touched."""
        self._memory.forget(tensor)

    def unmap(self) -> None:
        """Do nothing: discarded pages are free at once."""

    def cancel(self, tensor: int) -> None:
        """Take pages out of every queue; they stay where they lie."""
        self._memory.withdraw(tensor)

    def keep(self, tensor: int) -> None:
        """Keep what is still here of a tensor that was to be evicted."""
        self._memory.withdraw_eviction(tensor)

    def arrived(self, tensor: int, source: Location) -> None:
        """Do nothing: nobody waits for all of a tensor."""

    def settle(self) -> None:
        """Leave free pages to the next transfer, which takes any."""

    def merging(self, tensor: int) -> int:
        """Return how many pages of a tensor may arrive at once, for the same order as one by one makes."""
        return self._memory.recency.merging(tensor)

    def reorder(self) -> bool:
        """Order evictions anew after arrivals; tells whether that changed anything."""
        return False

    def note_peak(self) -> None:
        """Remember the largest number of GPU pages in use, by this job and by all."""
        memory, frames = self._memory, self._memory.frames
        if memory.filled > self.peak_used:
            self.peak_used = memory.filled
        if frames.capacity_pages - frames.free > frames.least_peak:
            frames.note_peak()

    def restart_peaks(self) -> None:
        """Begin to look for the largest number of pages in use anew."""
        self._memory.frames.watch(id(self))
        self.peak_used = self._memory.filled

    def figures(self) -> None:
        """Return nothing: no pages need to be consecutive."""

    def check(self) -> None:
        """Check nothing: the contents are all that takes space."""


class Mapped(Paged):
    """Paged memory of ranges that stay mapped: discarded pages stay, too, until they make room first.

    The driver orders evictions by chunks: what arrives takes its chunk along. ``chunks`` are the ranges that
    lie in one together. Source: the root chunks of 2 MiB of NVIDIA's open driver
    (open-gpu-kernel-modules, uvm_pmm_gpu.c): a chunk becomes the most recent when pages of it become
    resident, and chunks of discarded pages are evicted before all others.
    """

    def __init__(self, chunks: Sequence[Sequence[int]] = ()) -> None:
        self._chunks = chunks
        self._in_chunks = frozenset(chain.from_iterable(chunks))
        self._arrived: dict[int, None] = {}
        self.notes_arrivals = bool(chunks)

    def serve(self, memory: Residency) -> None:
        """Place the tensors of a residency from now on."""
        super().serve(memory)
        memory.recency.join_chunks(self._chunks)

    def discard(self, tensor: int) -> None:
        """Forget contents: pages on the GPU are the next to go; pages in transfer are not touched."""
        self._memory.forget(tensor, but_for_gpu=True)
        self._memory.recency.retire(tensor)

    def unmap(self) -> None:
        """Give back the pages of all ranges."""
        for tensor in range(len(self._memory.sizes)):
            self._memory.forget(tensor)

    def arrived(self, tensor: int, source: Location) -> None:
        """Remember what has arrived: transfers under way hold on to the order as it is."""
        if tensor in self._in_chunks:
            self._arrived[tensor] = None

    def reorder(self) -> bool:
        """Make what else is in the chunks as recent as what has arrived."""
        if not self._arrived:
            return False
        self._memory.touch_around(self._arrived)
        self._arrived.clear()
        return True
