"""The flash pool of a machine whose SSD is modelled: who holds what, and what the drive knows of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from g10sim.config.ssd import FlashSsdSpec
from g10sim.errors import InvariantError
from g10sim.hardware.flash.device import FlashDevice
from g10sim.hardware.flash.ftl import TranslationLayer
from g10sim.hardware.flash.in_place import InPlaceLayer
from g10sim.hardware.memory import FlashSnapshot, GpuMemory, Pool
from g10sim.records import FlashRecord

OTHERS = "data of others"

ExpectedDeath = Callable[[int], float]
"""When what is written of a tensor now will be dead, as a position in the iteration from 0 to 1."""


class FlashPool(Pool):
    """Pages on flash, and where the drive puts them.

    What a tensor holds here dies when it is fetched, or when the tensor does. A drive that is told (trim)
    forgets it at once. One that is not keeps it until the same logical pages are written again: a tensor's
    own first, then pages never used, then those that were abandoned longest ago.
    """

    def __init__(self, spec: FlashSsdSpec, clock_hz: int, page_bytes: int) -> None:
        super().__init__("the SSD", spec.capacity // page_bytes, page_bytes)
        self._spec = spec
        self.layer = InPlaceLayer() if spec.in_place else _new_layer(spec)
        self._is_aged = False
        self.device = FlashDevice(spec, self.layer, clock_hz)
        self._owners: dict[int, ExpectedDeath] = {}
        self._pending: dict[int, dict[Hashable, int]] = {}
        self._abandoned: dict[Hashable, int] = {}
        self._unused = spec.capacity // page_bytes * page_bytes
        self._written = 0
        self._read = 0

    def expect_deaths(self, memory: GpuMemory, death: ExpectedDeath) -> None:
        """Learn when the tensors of a memory's job will die, for placing them by it."""
        self._owners[id(memory)] = death

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

    def place(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Put pages here before time starts."""
        super().place(memory, tensor, count)
        self._take_pages(memory, tensor, count)
        self.layer.lay_out((id(memory), tensor), count * self.page_bytes)

    def store(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Take pages in. They reach the drive's log with all others of the same time."""
        super().store(memory, tensor, count)
        size, extent = count * self.page_bytes, (id(memory), tensor)
        self._take_pages(memory, tensor, count)
        waiting = self._pending.setdefault(self._stream(memory, tensor), {})
        waiting[extent] = waiting.get(extent, 0) + size
        self._written += size

    def fetch(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Give pages out; their copy here is dead."""
        super().fetch(memory, tensor, count)
        self._read += count * self.page_bytes
        self._die(memory, tensor, count)

    def drop(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Forget pages of a dead tensor."""
        super().drop(memory, tensor, count)
        self._die(memory, tensor, count)

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
        pending = sum(sum(writes.values()) for writes in self._pending.values())
        others = self.layer.extent_bytes(OTHERS)
        known = self.layer.valid_bytes + pending - others - sum(self._abandoned.values())
        if known != self.used * self.page_bytes:
            raise InvariantError(f"the SSD holds {known} bytes for {self.used} pages")

    def snapshot(self) -> FlashSnapshot:
        """Return bytes read, written by the host, copied, folded; and superblocks erased, so far."""
        layer, folded = self.layer, int(self.device.folded_bytes)
        return self._read, self._written, layer.copied_bytes, folded, layer.erased

    def figures_since(self, before: FlashSnapshot) -> FlashRecord:
        """Return what the drive has done since a snapshot."""
        read, written, copied, folded, erased = (
            after - earlier for after, earlier in zip(self.snapshot(), before, strict=True)
        )
        programmed = self._written + self.layer.copied_bytes + int(self.device.folded_bytes)
        erased_bytes = erased * self.layer.superblock_bytes
        return FlashRecord(read, written, copied, folded, erased_bytes, self._written, programmed)

    def _stream(self, memory: GpuMemory, tensor: int) -> int:
        streams = self._spec.streams
        if streams == 1 or self._spec.in_place:
            return 0
        return min(streams - 1, int(self._owners[id(memory)](tensor) * streams))

    def _die(self, memory: GpuMemory, tensor: int, count: int) -> None:
        size, extent = count * self.page_bytes, (id(memory), tensor)
        if self._pending:
            self.flush()
        if self._spec.trim:
            self._unused += size
            self.layer.discard(extent, size)
        else:
            self._abandoned[extent] = self._abandoned.get(extent, 0) + size

    def _take_pages(self, memory: GpuMemory, tensor: int, count: int) -> None:
        """Find logical pages for new contents; what the drive believes them to hold is overwritten."""
        size, extent = count * self.page_bytes, (id(memory), tensor)
        size -= self._overwrite(extent, size)
        fresh = min(size, self._unused)
        self._unused -= fresh
        size -= fresh
        while size:
            size -= self._overwrite(next(iter(self._abandoned)), size)

    def _overwrite(self, extent: Hashable, size: int) -> int:
        taken = min(size, self._abandoned.get(extent, 0))
        if taken:
            if self._pending:
                self.flush()
            self.layer.discard(extent, taken)
            self._abandoned[extent] -= taken
            if not self._abandoned[extent]:
                del self._abandoned[extent]
        return taken


def _new_layer(spec: FlashSsdSpec) -> TranslationLayer:
    """Return an empty drive."""
    superblock_bytes = spec.array.superblock_bytes * spec.drives
    return TranslationLayer(spec.blocks, superblock_bytes, spec.streams, spec.collection.victims)
