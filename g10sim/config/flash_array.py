"""Rates and latencies of an array of flash dies, as closed forms of its geometry and timing.

A *program* or *read command* serves up to one page in each plane of a die. The channel carries the command
and the pages; the die is busy for its own time besides. The forms reproduce the rates of MQSim (Tavakkol et
al., FAST 2018), as docs/flash.md shows row by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_PS_PER_SECOND = 10**12

# Of the pages that wait in a buffer of one page per plane, that many leave together: those of planes that
# became free at the same time. MQSim: 1.33 of 2 and 2.5 of 4.
_SHARE_OF_A_WINDOW = 2 / 3

# How often the planes of a die still go together while garbage collection copies. MQSim: 1.25 pages a
# command of 1.33 without collection and 2 planes, copies included.
_STILL_IN_STEP = 1 / 3


@dataclass(frozen=True)
class FlashArray:
    """Geometry and timing of all flash of a device; bytes, bytes/second and picoseconds.

    ``dies`` counts those of one channel, ``planes`` those of one die. ``read_command`` and
    ``program_command`` occupy the channel for a command to one plane, and each further plane adds
    ``..._plane``. With ``channel_order`` *rounds* all dies of a channel get a command before any of them
    delivers; *pipelined*, a channel never waits while a die has data. ``copy_planes`` share a program
    command of garbage collection (None: all of a die).
    """

    channels: int
    dies: int
    planes: int
    page_size: int
    pages: int
    bus: int
    read: int
    program: int
    erase: int
    read_command: int
    read_command_plane: int
    program_command: int
    program_command_plane: int
    copy_planes: int | None
    channel_order: Literal["pipelined", "rounds"]

    @property
    def row_bytes(self) -> int:
        """One page in every die."""
        return self.channels * self.dies * self.page_size

    @property
    def stripe_bytes(self) -> int:
        """One page in every plane."""
        return self.row_bytes * self.planes

    @property
    def superblock_bytes(self) -> int:
        """One block in every plane: what is erased together."""
        return self.stripe_bytes * self.pages

    def read_rate(self, pages: int | None = None) -> float:
        """Bytes/second of reads that keep all dies busy, ``pages`` a command (None: one in each plane)."""
        pages = self.planes if pages is None else pages
        command = self._read_command(pages)
        page_set, transfer = pages * self.page_size, pages * self._page_transfer
        if self.channel_order == "rounds":
            waiting = max(self.read, (self.dies - 1) * command)
            return _rate(self.dies * page_set, command + waiting + self.dies * transfer) * self.channels
        by_bus = _rate(page_set, command + transfer)
        by_dies = _rate(self.dies * page_set, command + self.read + transfer)
        return min(by_bus, by_dies) * self.channels

    def write_rate(self, pages: float | None = None) -> float:
        """Bytes/second of writes with that many pages in a program command (None: one in each plane)."""
        pages = self.planes if pages is None else pages
        moved, on_bus = pages * self.page_size, self._program_on_bus(pages)
        by_bus = _rate(moved, on_bus)
        by_dies = _rate(self.dies * moved, on_bus + self.program)
        return min(by_bus, by_dies) * self.channels

    def pages_together(self, outstanding_bytes: float) -> float:
        """Pages in a program command when that many bytes wait or are being written.

        While half of a die's pages are being programmed the other half waits to be sent together.
        """
        return min(self.planes, max(1.0, outstanding_bytes / (2 * self.row_bytes)))

    def pages_from_buffer(self, window: int) -> float:
        """Pages in a program command when the buffer hands out ``window`` pages per plane at a time."""
        return float(self.planes) if window > 1 else max(1.0, self.planes * _SHARE_OF_A_WINDOW)

    def starving_rates(self, request_bytes: int, outstanding_bytes: int) -> tuple[float, float]:
        """Bytes/second of reads above and below which they, going first, leave writes no die.

        Requests for less than a page of every die come to the dies in a steady stream. Where it is faster
        than dies that read one page a command, reads queue at a die until they share commands, and whenever
        it is done, more wait. With more outstanding than is read during a program, none interrupts them.
        """
        if request_bytes >= self.row_bytes:
            return math.inf, 0.0
        program = self._program_on_bus(self.planes) + self.program
        return self.read_rate(1), outstanding_bytes * _PS_PER_SECOND / program

    def read_delay(self) -> float:
        """Picoseconds from a read command until the first page can leave its die."""
        return self._read_command(1) + self.read

    def read_transfer(self, size_bytes: float) -> float:
        """Picoseconds for which one read keeps the busiest channel, its first command aside."""
        pages = math.ceil(size_bytes / (self.page_size * self.channels))
        together = min(self.planes, max(1.0, pages / self.dies))
        commands = (pages / together - 1) * self._read_command(together)
        hidden = max(0.0, min(commands, self.read - self._read_command(1)))
        return pages * self._page_transfer + commands - hidden

    def write_latency(self, size_bytes: int) -> float:
        """Picoseconds of one write to an idle array, until its last page is programmed."""
        on_bus = self._program_on_bus(self.planes)
        rounds = math.ceil(size_bytes / self.stripe_bytes)
        first = min(size_bytes, self.stripe_bytes) / (self.channels * self.planes * self.page_size) * on_bus
        return first + self.program + (rounds - 1) * (on_bus + self.program)

    def pages_while_copying(self, pages: float) -> float:
        """Pages in a program command of the host, ``pages`` otherwise, while garbage collection copies.

        Copies put the planes of a die out of step; then pages rarely go together.
        """
        return 1 + (pages - 1) * _STILL_IN_STEP

    def collecting_rate(self, copied: float, erased: float, pages: float) -> float:
        """Bytes/second of host writes that come with garbage collection, in balance.

        Per byte written ``copied`` bytes are read and written again and ``erased`` bytes erased, one plane
        after the other; ``pages`` of the host share a program command. The dies of a channel are the
        customers of a closed queueing network in which they meet at the channel.
        """
        size, together = self.page_size, self.copy_planes or self.planes
        erasing = erased * self.erase / (self.pages * size)
        alone = 1 / (1 / self.write_rate(pages) + erasing / (self.channels * self.dies * _PS_PER_SECOND))
        if not copied:
            return alone
        on_bus = self._program_on_bus(pages) / (pages * size)
        on_bus += copied * self._program_on_bus(together) / (together * size)
        on_bus += copied * (self._read_command(together) / together + self._page_transfer) / size
        in_die = self.program / (pages * size) + erasing
        in_die += copied * (self.program + self.read) / (together * size)
        cycles = throughput(self.dies, ((on_bus, 1.0),), in_die)
        return min(alone, cycles * self.channels * _PS_PER_SECOND)

    @property
    def _page_transfer(self) -> float:
        return self.page_size / self.bus * _PS_PER_SECOND

    def _read_command(self, pages: float) -> float:
        return self.read_command + self.read_command_plane * (pages - 1)

    def _program_on_bus(self, pages: float) -> float:
        return self.program_command + self.program_command_plane * (pages - 1) + pages * self._page_transfer


def throughput(customers: int, stations: Sequence[tuple[float, float]], delay: float) -> float:
    """Cycles per unit of time of a closed network of queues.

    Each of ``stations`` is a mean service time and the share of the customers that any one of its servers
    meets: a customer visits several at the same time where they are more than it needs. ``delay`` is what a
    customer spends elsewhere. Mean value analysis (Reiser and Lavenberg, JACM 1980).
    """
    queued = [0.0] * len(stations)
    rate = 0.0
    for number in range(1, customers + 1):
        times = [service * (1 + queue) for (service, _), queue in zip(stations, queued, strict=True)]
        rate = number / (delay + sum(times))
        queued = [rate * share * time for (_, share), time in zip(stations, times, strict=True)]
    return rate


def request_rate(array: FlashArray, link_rate: float, size_bytes: int, depth: int, *, writes: bool) -> float:
    """Bytes/second with ``depth`` requests of ``size_bytes`` outstanding at all times.

    A request's data crosses the link as a whole, before its pages are programmed or after they were read.
    There is no write buffer. Reads queue for link and channels (a closed network); writes wait for their
    programs.
    """
    on_link = size_bytes / link_rate * _PS_PER_SECOND
    if not writes:
        share = min(1.0, size_bytes / (array.page_size * array.channels))
        stations = ((on_link, 1.0), (array.read_transfer(size_bytes), share))
        cycles = throughput(depth, stations, array.read_delay()) * _PS_PER_SECOND
        return min(link_rate, array.read_rate(), cycles * size_bytes)
    latency = on_link + array.write_latency(size_bytes)
    limit = depth * size_bytes / latency * _PS_PER_SECOND
    if depth == 1:
        return min(link_rate, limit)
    together = array.pages_together(depth * size_bytes)
    return min(link_rate, limit, array.write_rate(together))


def _rate(size_bytes: float, picoseconds: float) -> float:
    return size_bytes * _PS_PER_SECOND / picoseconds
