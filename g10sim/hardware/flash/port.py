"""Where transfers meet a modelled SSD: what it leaves to reads and writes at the same time."""

from __future__ import annotations

from collections.abc import Callable

from g10sim.hardware.flash.pool import FlashPool
from g10sim.hardware.links import Topology


class SsdPort:
    """Limits the SSD's two links to what its flash can do, and tells the device how time passes."""

    def __init__(self, pool: FlashPool, topology: Topology) -> None:
        self._pool, self._device = pool, pool.device
        self._read, self._write = topology.ssd_read, topology.ssd_write
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

    def begin(self) -> None:
        """Note that time starts: what lies on the SSD before that is in its place."""
        self._pool.age()

    def rest(self) -> None:
        """Note that nothing moves."""
        self._reads = self._writes = 0

    def cycles_to_change(self) -> int | None:
        """Cycles until the device can do less, or more, than now; None while nobody uses it."""
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
