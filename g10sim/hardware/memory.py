"""Where the pages of tensors are: integers per tensor, pools with capacities, and queues of runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import ClassVar

from g10sim.errors import CapacityError
from g10sim.hardware.recency import Recency, Run
from g10sim.records import ContiguousRecord, FlashRecord, Location
from g10sim.units import format_bytes

FlashSnapshot = tuple[int, ...]


class Pool:
    """Pages of host memory or flash, shared by all GPUs."""

    __slots__ = ("_peaks", "capacity_pages", "free", "name", "page_bytes")

    def __init__(self, name: str, capacity_pages: int, page_bytes: int) -> None:
        self.name = name
        self.capacity_pages = capacity_pages
        self.free = capacity_pages
        self.page_bytes = page_bytes
        self._peaks: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Pages in use."""
        return self.capacity_pages - self.free

    def watch(self, observer: int) -> None:
        """Begin to remember the most pages in use, for one of several observers."""
        self._peaks[observer] = self.used

    def peak(self, observer: int) -> int:
        """Return the most pages in use since an observer began to watch."""
        return self._peaks[observer]

    def take(self, count: int) -> None:
        """Fill ``count`` pages. Raises CapacityError when there are not so many."""
        self.free -= count
        if self.free < 0:
            self.free += count
            raise CapacityError(
                f"{self.name} is full: its {format_bytes(self.capacity_pages * self.page_bytes)} cannot "
                f"hold another {format_bytes(count * self.page_bytes)} of evicted tensors"
            )
        used = self.capacity_pages - self.free
        for observer, peak in self._peaks.items():
            if used > peak:
                self._peaks[observer] = used

    def place(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Take pages of a tensor in before time starts. Raises CapacityError."""
        self.take(count)

    def store(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Take pages of a tensor in. Raises CapacityError."""
        self.take(count)

    def fetch(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Give pages of a tensor out."""
        self.free += count

    def drop(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Forget pages of a tensor."""
        self.free += count

    def check(self) -> None:
        """Check what the device behind it knows, where one is modelled. Raises InvariantError."""

    def snapshot(self) -> FlashSnapshot:
        """Return what the device behind it has done so far; nothing where none is modelled."""
        return ()

    def figures_since(self, before: FlashSnapshot) -> FlashRecord | None:
        """Return what the device behind it has done since then, where one is modelled."""
        return None


class Traffic:
    """Pages that crossed a GPU's link, by other end and direction, and demanded pages."""

    __slots__ = ("faults", "flash_in", "flash_out", "host_in", "host_out")

    def __init__(self) -> None:
        self.flash_in = self.flash_out = self.host_in = self.host_out = self.faults = 0

    def snapshot(self) -> tuple[int, int, int, int, int]:
        """Return (flash in, flash out, host in, host out, faults)."""
        return self.flash_in, self.flash_out, self.host_in, self.host_out, self.faults


class Queues:
    """Pages in transfer, first come first served, by what is to happen to them and where they lie."""

    __slots__ = (
        "evict_flash", "evict_host", "fault_absent", "fault_flash", "fault_host",
        "prefetch_absent", "prefetch_flash", "prefetch_host",
    )  # fmt: skip

    def __init__(self) -> None:
        self.evict_flash: deque[Run] = deque()
        self.evict_host: deque[Run] = deque()
        self.fault_flash: deque[Run] = deque()
        self.fault_host: deque[Run] = deque()
        self.fault_absent: deque[Run] = deque()
        self.prefetch_flash: deque[Run] = deque()
        self.prefetch_host: deque[Run] = deque()
        self.prefetch_absent: deque[Run] = deque()

    @property
    def faulting(self) -> bool:
        """Whether any demanded page has not arrived."""
        return bool(self.fault_flash or self.fault_host or self.fault_absent)

    @property
    def busy(self) -> bool:
        """Whether anything is in transfer."""
        return bool(
            self.fault_flash
            or self.fault_host
            or self.fault_absent
            or self.prefetch_flash
            or self.prefetch_host
            or self.prefetch_absent
            or self.evict_flash
            or self.evict_host
        )


class GpuMemory:
    """Residency of one job's tensors with respect to one GPU.

    Per tensor ``absent + host + flash + idle + moving`` is its number of pages: without contents, in
    host memory, on flash, on the GPU, and in transfer (in a queue, wherever they lie). ``free`` counts
    the GPU's empty pages. ``needed`` is the running (or waiting) kernel's working set; it also waits for the
    evictions of tensors that are ``awaited``, and for the arrival of ``awaited_arrivals``.
    """

    moves_whole_tensors: ClassVar[bool] = False
    """Whether a tensor is on the GPU as a whole or not at all."""

    def __init__(
        self, pages: Sequence[int], capacity_pages: int, page_bytes: int, host: Pool, flash: Pool
    ) -> None:
        self.pages = list(pages)
        self.page_bytes = page_bytes
        self.capacity_pages = capacity_pages
        self.free = capacity_pages
        self.absent = list(pages)
        self.host = [0] * len(pages)
        self.flash = [0] * len(pages)
        self.idle = [0] * len(pages)
        self.moving = [0] * len(pages)
        self.host_pool = host
        self.flash_pool = flash
        self.recency = Recency(len(pages))
        self.queues = Queues()
        self.traffic = Traffic()
        self.needed: frozenset[int] = frozenset()
        self.protected: Container[int] = frozenset()
        self.awaited: frozenset[int] = frozenset()
        self.awaited_arrivals: frozenset[int] = frozenset()
        self.peak_used = 0

    @property
    def filled(self) -> int:
        """GPU pages with contents of this job."""
        return self.capacity_pages - self.free

    @property
    def used(self) -> int:
        """GPU pages that this job uses."""
        return self.filled

    @property
    def peak_used_by_all(self) -> int:
        """Most pages of the GPU in use since peaks were restarted, by whichever job."""
        return self.peak_used

    @property
    def held(self) -> Container[int]:
        """Tensors on their way out that kernels may still read; there are none where pages move."""
        return ()

    @property
    def waits_for_space(self) -> bool:
        """Whether a tensor waits for a place of its own; where any page will do, pages wait in queues."""
        return False

    @property
    def awaits(self) -> bool:
        """Whether the next kernel is to wait for transfers other than of its own data."""
        return bool(self.awaited or self.awaited_arrivals)

    @property
    def largest_hole_pages(self) -> int:
        """Pages of the largest tensor that there is room for; where any page will do, all free ones."""
        return self.free

    def evicting(self) -> frozenset[int]:
        """Return the tensors that wait to be evicted or are on their way out."""
        queues = (self.queues.evict_flash, self.queues.evict_host)
        return frozenset(run.tensor for queue in queues for run in queue)

    def take_over(self, other: GpuMemory, count: int) -> None:
        """Note that pages of this job now fill the room of pages that have left another's memory."""

    def arriving(self) -> frozenset[int]:
        """Return the tensors that wait to come in, or are on their way in."""
        queues = self.queues
        waiting = (queues.prefetch_flash, queues.prefetch_host, queues.prefetch_absent)
        return frozenset(run.tensor for queue in waiting for run in queue)

    @property
    def has_joined(self) -> bool:
        """Whether nothing that the next kernel is to wait for is under way."""
        if self.awaited and self.awaited & self.evicting():
            return False
        return not (self.awaited_arrivals and self.awaited_arrivals & self.arriving())

    def await_transfers(self, tensors: frozenset[int] | None, *, evictions: bool, prefetches: bool) -> None:
        """Let the next kernel wait for what is under way of these tensors (None: of all)."""
        if evictions:
            evicting = self.evicting()
            self.awaited |= evicting if tensors is None else evicting & tensors
        if prefetches:
            arriving = self.arriving()
            self.awaited_arrivals |= arriving if tensors is None else arriving & tensors

    def copy_out(
        self,
        tensor: int,
        target: Location,
        *,
        until: int | None = None,
        density: float | None = None,
        is_clean: bool = False,
    ) -> None:
        """Queue a tensor to leave; beyond that, only whole tensors can be read, compressed or clean."""
        self.request_eviction(tensor, target)

    def drop_compression(self) -> None:
        """Leave tensors as they are whose compression has not begun; pages are never compressed."""

    def forget_awaited(self) -> None:
        """Let the next kernel wait for nothing but its data."""
        self.awaited = self.awaited_arrivals = frozenset()

    def is_usable(self, tensor: int) -> bool:
        """Whether a kernel may use a tensor: all of it is here."""
        return self.idle[tensor] == self.pages[tensor]

    def settle(self) -> None:
        """Use room that transfers have made; where any page will do, they use it themselves."""

    def contiguous_figures(self) -> ContiguousRecord | None:
        """Return what there is to say about consecutive memory since peaks were restarted; here nothing."""
        return None

    def restart_peaks(self) -> None:
        """Begin to look for the largest number of pages in use anew."""
        self.peak_used = self.used

    def note_peak(self) -> None:
        """Remember the largest number of GPU pages in use."""
        used = self.capacity_pages - self.free
        if used > self.peak_used:
            self.peak_used = used

    def place(self, tensor: int, location: Location) -> None:
        """Put a tensor without contents somewhere before time starts. Raises CapacityError."""
        count = self.absent[tensor]
        self.absent[tensor] = 0
        if location is Location.FLASH:
            self.flash_pool.place(self, tensor, count)
            self.flash[tensor] += count
        elif location is Location.HOST:
            self.host_pool.take(count)
            self.host[tensor] += count
        else:
            self.free -= count
            self.idle[tensor] += count
            self.recency.append(tensor, count)
            self.note_peak()

    def arrive(self, tensor: int, count: int, source: Location) -> None:
        """Add pages that came from elsewhere (or were just allocated) to the recent end."""
        if source is Location.HOST:
            self.host_pool.free += count
            self.traffic.host_in += count
        elif source is Location.FLASH:
            self.flash_pool.fetch(self, tensor, count)
            self.traffic.flash_in += count
        self.idle[tensor] += count
        self.recency.append(tensor, count)

    def deposit(self, tensor: int, count: int, target: Location) -> None:
        """Put pages that left the GPU where they went; the running kernel's fault again from there."""
        if target is Location.NONE:
            self.absent[tensor] += count
            return
        if target is Location.HOST:
            self.host_pool.take(count)
            self.traffic.host_out += count
            counts, queue = self.host, self.queues.fault_host
        else:
            self.flash_pool.store(self, tensor, count)
            self.traffic.flash_out += count
            counts, queue = self.flash, self.queues.fault_flash
        if tensor not in self.needed:
            counts[tensor] += count
            return
        self.moving[tensor] += count
        if queue and queue[-1].tensor == tensor:
            queue[-1].count += count
        else:
            queue.append(Run(tensor, count))

    def touch(self, tensor: int) -> None:
        """Make a tensor's resident pages the most recent ones."""
        if self.idle[tensor]:
            self.recency.remove(tensor)
            self.recency.append(tensor, self.idle[tensor])

    def demand(self, tensor: int, rate: Callable[[int, Location], int] | None = None) -> None:
        """Queue what is not here as page faults; ``rate`` gives (pages, place) a limit in bytes/second."""
        queues = self.queues
        for queue, counts, place in (
            (queues.fault_flash, self.flash, Location.FLASH),
            (queues.fault_host, self.host, Location.HOST),
            (queues.fault_absent, self.absent, Location.NONE),
        ):
            count = counts[tensor]
            if count:
                counts[tensor] = 0
                self.moving[tensor] += count
                queue.append(Run(tensor, count, rate(count, place) if rate else 0))

    def request_prefetch(self, tensor: int) -> None:
        """Queue what is elsewhere to come in, and what has no contents to be allocated."""
        queues = self.queues
        for queue, counts in (
            (queues.prefetch_flash, self.flash),
            (queues.prefetch_host, self.host),
            (queues.prefetch_absent, self.absent),
        ):
            count = counts[tensor]
            if count:
                counts[tensor] = 0
                self.moving[tensor] += count
                queue.append(Run(tensor, count))

    def request_eviction(self, tensor: int, target: Location) -> None:
        """Queue a tensor's resident pages to go to host memory or flash."""
        count = self.idle[tensor]
        if not count:
            return
        self.idle[tensor] = 0
        self.moving[tensor] += count
        self.recency.remove(tensor)
        queue = self.queues.evict_flash if target is Location.FLASH else self.queues.evict_host
        queue.append(Run(tensor, count))

    def discard(self, tensor: int) -> None:
        """Forget a tensor's contents; its pages in transfer are not touched."""
        idle, host, flash = self.idle[tensor], self.host[tensor], self.flash[tensor]
        if idle:
            self.recency.remove(tensor)
            self.idle[tensor] = 0
            self.free += idle
        if host:
            self.host[tensor] = 0
            self.host_pool.free += host
        if flash:
            self.flash[tensor] = 0
            self.flash_pool.drop(self, tensor, flash)
        self.absent[tensor] += idle + host + flash

    def cancel(self, tensor: int) -> None:
        """Take a tensor's pages out of every queue; they stay where they lie."""
        if not self.moving[tensor]:
            return
        queues = self.queues
        for queue, counts in (
            (queues.prefetch_flash, self.flash),
            (queues.prefetch_host, self.host),
            (queues.prefetch_absent, self.absent),
            (queues.fault_flash, self.flash),
            (queues.fault_host, self.host),
            (queues.fault_absent, self.absent),
        ):
            counts[tensor] += self._withdraw(queue, tensor)
        self.cancel_eviction(tensor)

    def cancel_eviction(self, tensor: int) -> None:
        """Keep what is still here of a tensor that was to be evicted."""
        kept = self._withdraw(self.queues.evict_flash, tensor)
        kept += self._withdraw(self.queues.evict_host, tensor)
        if kept:
            self.idle[tensor] += kept
            self.recency.append(tensor, kept)

    def _withdraw(self, queue: deque[Run], tensor: int) -> int:
        count = sum(run.count for run in queue if run.tensor == tensor)
        if count:
            kept = [run for run in queue if run.tensor != tensor]
            queue.clear()
            queue.extend(kept)
            self.moving[tensor] -= count
        return count
