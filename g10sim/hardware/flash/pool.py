"""A modelled SSD: the pages that memories hold on it, and the limits of transfers to and from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from operator import sub

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.ssd import SsdSpec
from g10sim.config.tiers import Tier
from g10sim.errors import InvariantError
from g10sim.hardware.flash.device import FlashDevice
from g10sim.hardware.flash.ftl import new_layer
from g10sim.hardware.links import Link
from g10sim.hardware.pools import FlashSnapshot, Pool
from g10sim.records import FlashRecord, Location

OTHERS = "data of others"

ExpectedDeath = Callable[[int], float]
"""Time of death of what is written of a tensor now, as a position in the iteration from 0 to 1."""


class FlashPool(Pool):
    """Pages on flash, and where the drive puts them.

    What a tensor holds here dies when it is fetched, or when the tensor does. A drive that is told (trim)
    forgets it at once. One that is not keeps it until the same logical pages are written again: a tensor's
    own first, then pages never used, then those that were abandoned longest ago.
    """

    keeps_copies = False

    def __init__(self, tier: Tier, spec: FlashSsdSpec, clock_hz: int, page_bytes: int) -> None:
        super().__init__(tier, page_bytes)
        self._spec = spec
        self.layer = new_layer(spec)
        self._is_aged = False
        self.device = FlashDevice(spec, self.layer, clock_hz)
        self._owners: dict[int, ExpectedDeath] = {}
        self._pending: dict[int, Counter[Hashable]] = defaultdict(Counter)
        self._abandoned = Counter[Hashable]()
        self._unused = spec.capacity // page_bytes * page_bytes
        self._written = self._read = 0

    def expect_deaths(self, owner: object, death: ExpectedDeath) -> None:
        """Learn when the tensors of a memory's job will die, for placing them by it."""
        self._owners[id(owner)] = death

    def age(self) -> None:
        """Bring the drive into the condition that it is in when time starts."""
        if self._is_aged or self._spec.in_place:
            return
        self._is_aged = True
        spec, layer = self._spec, self.layer
        erased = spec.start_superblocks
        if spec.condition == "random":
            used = max(1, layer.free_superblocks - erased)
            share = spec.occupied_bytes / (used * layer.superblock_bytes)
            layer.scatter(OTHERS, spec.occupied_bytes, share)
        else:
            layer.lay_out(OTHERS, spec.occupied_bytes)
        if spec.condition != "fresh":
            layer.wear_in(erased)

    def place(self, owner: object, tensor: int, count: int) -> None:
        """Put pages here before time starts."""
        super().place(owner, tensor, count)
        self.layer.lay_out(*self._take_pages(owner, tensor, count))

    def store(self, owner: object, tensor: int, count: int) -> None:
        """Take pages in. They reach the drive's log with all others of the same time."""
        super().store(owner, tensor, count)
        extent, size = self._take_pages(owner, tensor, count)
        self._pending[self._stream(owner, tensor)][extent] += size
        self._written += size

    def fetch(self, owner: object, tensor: int, count: int) -> None:
        """Give pages out; their copy here is dead."""
        super().fetch(owner, tensor, count)
        self._read += count * self.page_bytes
        self._die(owner, tensor, count)

    def drop(self, owner: object, tensor: int, count: int) -> None:
        """Forget pages of a dead tensor."""
        super().drop(owner, tensor, count)
        self._die(owner, tensor, count)

    def flush(self) -> None:
        """Write what came in since the last time to the drive's log, mixed as it came."""
        for stream, writes in self._pending.items():
            self.layer.write_together(list(writes.items()), stream)
        self._pending.clear()

    def check(self) -> None:
        """Check that the drive holds what is here, what was abandoned, and the data of others."""
        if self._spec.in_place:
            return
        self.layer.check()
        pending = sum(writes.total() for writes in self._pending.values())
        others = self.layer.extent_bytes(OTHERS)
        known = self.layer.valid_bytes + pending - others - self._abandoned.total()
        if known != self.used * self.page_bytes:
            raise InvariantError(f"the SSD holds {known} bytes for {self.used} pages")

    def snapshot(self) -> FlashSnapshot:
        """Return bytes read, written by the host, copied, folded; and superblocks erased, so far."""
        layer, folded = self.layer, int(self.device.folded_bytes)
        return self._read, self._written, layer.copied_bytes, folded, layer.erased

    def figures_since(self, before: FlashSnapshot) -> FlashRecord:
        """Return what the drive has done since a snapshot."""
        read, written, copied, folded, erased = map(sub, self.snapshot(), before)
        programmed = self._written + self.layer.copied_bytes + int(self.device.folded_bytes)
        erased_bytes = erased * self.layer.superblock_bytes
        return FlashRecord(read, written, copied, folded, erased_bytes, self._written, programmed)

    def _stream(self, owner: object, tensor: int) -> int:
        streams = self._spec.streams
        if streams == 1 or self._spec.in_place:
            return 0
        return min(streams - 1, int(self._owners[id(owner)](tensor) * streams))

    def _die(self, owner: object, tensor: int, count: int) -> None:
        size, extent = count * self.page_bytes, (id(owner), tensor)
        self.flush()
        if self._spec.trim:
            self._unused += size
            self.layer.discard(extent, size)
        else:
            self._abandoned[extent] += size

    def _take_pages(self, owner: object, tensor: int, count: int) -> tuple[Hashable, int]:
        """Find logical pages for new contents; what the drive believes them to hold is overwritten.

        Returns the extent and its new bytes.
        """
        self.has_worn = True
        size, extent = count * self.page_bytes, (id(owner), tensor)
        left = size - self._overwrite(extent, size)
        fresh = min(left, self._unused)
        self._unused -= fresh
        left -= fresh
        while left:
            left -= self._overwrite(next(iter(self._abandoned)), left)
        return extent, size

    def _overwrite(self, extent: Hashable, size: int) -> int:
        taken = min(size, self._abandoned[extent])
        if taken:
            self.flush()
            self.layer.discard(extent, taken)
            self._abandoned[extent] -= taken
            if not self._abandoned[extent]:
                del self._abandoned[extent]
        return taken


class SsdPort:
    """Limits the SSD's two links to what its flash can do, and tells the device how time passes."""

    def __init__(self, pool: FlashPool, read: Link | None, write: Link | None) -> None:
        if read is None or write is None:
            raise InvariantError("a modelled SSD has no ports")
        self._pool, self._device, self._place = pool, pool.device, pool.tier.place
        self._read, self._write = read, write
        self._limits = (read.capacity, write.capacity)
        self._reads = self._writes = 0

    def share(self, distribute: Callable[[], None]) -> None:
        """Let flows be given rates that the array can keep up with.

        ``distribute`` gives all flows their rates of what the links have left. Reads go first; writes get
        what they leave of the array. A flow that needs both directions is slowed by its writes, which leaves
        more to them: rates are linear in the limit of writes, so that a third try meets it.
        """
        device = self._device
        reads, writes = self._try(distribute, device.read_limit(writes=False), self._write.capacity)
        if reads and writes:
            read_limit = device.read_limit(writes=True)
            if reads > read_limit:
                reads, writes = self._try(distribute, read_limit, self._write.capacity)
            allowed = device.write_limit(reads)
            if writes > allowed:
                fewer, less = self._try(distribute, read_limit, allowed)
                if fewer < reads and less < writes:
                    more = (device.write_limit(fewer) - allowed) / (writes - less)
                    balanced = int((allowed + more * writes) / (1 + more))
                    fewer, less = self._try(distribute, read_limit, balanced)
                reads, writes = fewer, less
        elif writes > device.write_limit(0):
            reads, writes = self._try(distribute, self._read.capacity, device.write_limit(0))
        self._reads, self._writes = reads, writes

    def serves(self, source: Location, target: Location) -> bool:
        """Return whether what flows between two places crosses one of its links."""
        return self._place in (source, target)

    def begin(self) -> None:
        """Note that time starts: initial data is on the SSD already."""
        self._pool.age()

    def rest(self) -> None:
        """Note that nothing moves."""
        self._reads = self._writes = 0

    def cycles_to_change(self) -> int | None:
        """Cycles until the device can do less, or more, than now; None while it is idle."""
        if not self._reads and not self._writes:
            return None
        return self._device.cycles_to_change(self._reads, self._writes)

    def advance(self, cycles: int) -> None:
        """Let time pass at the rates of the last sharing; what moved has been stored in the pool."""
        self._pool.flush()
        if self._reads or self._writes:
            self._device.advance(cycles, self._reads, self._writes)
        else:
            self._device.rest(cycles)

    def limit(self) -> None:
        """Leave the SSD's links what this try allows, after all links got their capacity back."""
        self._read.left, self._write.left = self._limits

    def _try(self, distribute: Callable[[], None], read_limit: int, write_limit: int) -> tuple[int, int]:
        """Return bytes/second read and written under limits."""
        self._limits = (min(read_limit, self._read.capacity), min(write_limit, self._write.capacity))
        distribute()
        return self._limits[0] - self._read.left, self._limits[1] - self._write.left


class CachedPort:
    """Lowers the rate of an SSD's write link once as many bytes were written as its cache takes.

    All that crosses the link counts, in bytes times hertz: what ``clock_hz`` cycles carry of a byte a second.
    """

    def __init__(self, place: Location, drive: SsdSpec, write: Link, clock_hz: int) -> None:
        self._place, self._write, self._sustained = place, write, drive.sustained_rate
        self.left = drive.cached_bytes * clock_hz
        """Bytes times hertz that the drive writes at its own rate from now on."""
        self._rate = 0

    def serves(self, source: Location, target: Location) -> bool:
        """Return whether what flows between two places crosses the link while its rate may change."""
        return self.left > 0 and self._place == target

    def begin(self) -> None:
        """Note that time starts: initial data was written long ago."""

    def share(self, distribute: Callable[[], None]) -> None:
        """Let flows be given rates, and note at what rate they write."""
        distribute()
        self._rate = self._write.capacity - self._write.left

    def limit(self) -> None:
        """Leave the link its whole capacity, which it got back."""

    def rest(self) -> None:
        """Note that nothing moves."""
        self._rate = 0

    def cycles_to_change(self) -> int | None:
        """Cycles until the cache is used up at the rate of the last sharing; None where it never is."""
        return -(-self.left // self._rate) if self.left and self._rate else None

    def advance(self, cycles: int) -> None:
        """Let time pass at the rate of the last sharing; no further than to the next change."""
        if self.left:
            self.left = max(0, self.left - self._rate * cycles)
            if not self.left:
                self._write.capacity = self._sustained
