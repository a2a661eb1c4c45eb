"""Rates at which an SSD of flash reads and writes now, and until when they hold.

Reads come first, then host writes, then garbage collection, which delays neither until erased superblocks
run short; from then on writes go no faster than it makes room. Nothing is looked up while rates hold:
between two changes buffer, collection and single-level region advance in closed form.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.hardware.flash.ftl import TranslationLayer

_EPSILON = 1e-9
_STEPS_PER_SUPERBLOCK = 8


class FlashDevice:
    """The state of an array of striped drives that changes with time; they all behave alike.

    Rates are bytes/second, ``clock_hz`` cycles are a second. ``layer`` says where data lies.
    """

    def __init__(self, spec: FlashSsdSpec, layer: TranslationLayer, clock_hz: int) -> None:
        array, drives = spec.array, spec.drives
        self.layer = layer
        self.read_capacity = spec.read_bandwidth
        self._spec, self._clock, self._drives = spec, clock_hz, drives
        self.link_rate = spec.interface * drives
        self._pages = spec.buffered_pages
        self._read_rate = array.read_rate() * drives
        self._write_rate = array.write_rate(self._pages) * drives
        self._starving = spec.starving_rates
        self._slc_rate = spec.slc_array.write_rate(self._pages) * drives
        self._fold_rate = 1 / (1 / self._read_rate + 1 / self._write_rate)
        self._write_capacity = self.link_rate if spec.write_buffer else spec.write_bandwidth
        self._buffer_bytes = spec.write_buffer * drives
        self._slc_bytes = 0 if spec.slc is None else spec.slc.capacity * drives
        self._start = -1 if spec.in_place else spec.start_superblocks
        self._urgent = spec.urgent_superblocks
        self._buffered = self._in_slc = self.folded_bytes = 0.0
        self._victims: deque[int] = deque()
        self._at_once = spec.collection.at_once
        self._work = self._victim_work = 0.0
        self._balanced = self._program_alone = self._write_rate
        self._choose()

    def equal_rates(self) -> float:
        """Bytes/second of as much to read as to write that the host may in the long run."""
        writes = self.drain_limit(0)
        return min(self.link_rate, self.read_capacity, writes / (1 + writes / self._read_rate))

    @property
    def collects(self) -> bool:
        """Return whether garbage is being collected."""
        return bool(self._victims)

    def write_limit(self, read_rate: float) -> int:
        """Bytes/second that the host may write while it reads at ``read_rate``."""
        if self._buffered < self._buffer_bytes:
            return self.link_rate
        return min(self._write_capacity, int(self.drain_limit(read_rate)))

    def read_limit(self, *, writes: bool) -> int:
        """Bytes/second that the host may read; writes that wait are left their share of the array."""
        if writes:
            return min(self.read_capacity, int(self._read_rate * (1 - self._spec.write_floor)))
        return self.read_capacity

    def cycles_to_change(self, read_rate: float, write_rate: float) -> int | None:
        """Cycles until rates like these are possible no more, or more is possible."""
        drained, folded, collecting = self._flows(read_rate, write_rate)
        used_up: list[tuple[float, float]] = [
            (self._buffer_bytes - self._buffered, write_rate - drained),
            (self._buffered, drained - write_rate),
            (self._slc_bytes - self._in_slc, drained),
            (self._in_slc, folded),
        ]
        if self._victims:
            used_up += [(self._work, collecting), (self._room_above(self._urgent), write_rate)]
        chosen = len(self._victims)
        if self._start >= 0 and chosen < self._at_once:
            room = self._room_above(self._start - chosen)
            used_up.append((room if chosen else max(1, room), write_rate))
        seconds = min((amount / rate for amount, rate in used_up if amount > 0 and rate > 0), default=None)
        return None if seconds is None else max(1, ceil(seconds * self._clock - _EPSILON))

    def advance(self, cycles: int, read_rate: float, write_rate: float) -> None:
        """Let time pass at these rates; no further than to the next change."""
        drained, folded, collecting = self._flows(read_rate, write_rate)
        seconds = cycles / self._clock
        self._buffered = self._near(self._buffered + (write_rate - drained) * seconds, self._buffer_bytes)
        self._in_slc = self._near(self._in_slc + (drained - folded) * seconds, self._slc_bytes)
        self.folded_bytes += folded * seconds
        if self._victims:
            self._work -= collecting * seconds
            if self._work <= self._victim_work * _EPSILON:
                self.layer.collect(self._victims.popleft())
                self._work = 0.0
        self._choose()

    def rest(self, cycles: int) -> None:
        """Let time pass without host traffic, however much of it."""
        while cycles:
            step = min(cycles, self.cycles_to_change(0, 0) or cycles)
            self.advance(step, 0, 0)
            cycles -= step

    def wait_for(self, superblock: int) -> int:
        """Let time pass without host traffic until a superblock that was chosen is erased; returns cycles."""
        cycles = 0
        while superblock in self._victims:
            step = self.cycles_to_change(0, 0) or 1
            self.advance(step, 0, 0)
            cycles += step
        return cycles

    def _flows(self, read_rate: float, write_rate: float) -> tuple[float, float, float]:
        """Return bytes/second leaving the buffer and the single-level region, and the share of collection."""
        left = self._left(read_rate)
        wanted = self.drain_limit(read_rate)
        drained = wanted if self._buffered > 0 else min(wanted, write_rate)
        left = max(0.0, left - drained / self._drain_rate())
        idle = not read_rate and not write_rate and not self._buffered
        if self._victims:
            return drained, 0.0, left
        folded = left * self._fold_rate if idle and self._in_slc > 0 else 0.0
        return drained, folded, 0.0

    def drain_limit(self, read_rate: float) -> float:
        """Bytes/second that reach the flash next to reads: what the host may write in the long run."""
        left = self._left(read_rate)
        if self._victims and self.layer.free_superblocks <= self._urgent:
            return left * self._balanced
        return left * self._drain_rate()

    def _left(self, read_rate: float) -> float:
        """Return the share of the array's time that reads leave."""
        left = max(0.0, 1 - read_rate / self._read_rate)
        above, below = self._starving
        return min(left, self._spec.write_floor) if above < read_rate < below else left

    def _drain_rate(self) -> float:
        if self._in_slc < self._slc_bytes:
            return self._slc_rate
        return self._program_alone if self._victims else self._write_rate

    def _choose(self) -> None:
        """Choose what to collect where erased superblocks are few, and begin where nothing is in work."""
        most = min(self._at_once, self._start - self.layer.free_superblocks + 1)
        while len(self._victims) < most and (victim := self.layer.victim()) is not None:
            self.layer.lock(victim)
            self._victims.append(victim)
        if self._victims and not self._work:
            self._begin(self.layer.start(self._victims[0]))

    def _begin(self, valid: int) -> None:
        """Begin to collect a superblock with some bytes to copy, and see what that leaves to writes."""
        size = self.layer.superblock_bytes
        room = size - valid
        copied, erased = valid / room, size / room
        array = self._spec.array
        pages = array.pages_while_copying(self._pages) if valid else self._pages
        self._program_alone = array.write_rate(pages) * self._drives
        balanced = array.collecting_rate(copied, erased, pages) * self._drives
        self._balanced = min(balanced, self._program_alone)
        self._work = self._victim_work = max(_EPSILON, room * (1 / self._balanced - 1 / self._program_alone))

    def _room_above(self, level: int) -> int:
        """Return bytes that can be written until at most ``level`` superblocks are erased, or a bit more.

        Streams may open their next superblocks at any time: the first to do so counts, but steps shorter than
        a part of a superblock are not worth it.
        """
        spare = self.layer.free_superblocks - level
        if spare <= 0:
            return 0
        size = self.layer.superblock_bytes
        left = min(self.layer.room_bytes(stream) for stream in range(self.layer.streams))
        return max(left + (spare - 1) * size, size // _STEPS_PER_SUPERBLOCK)

    @staticmethod
    def _near(level: float, full: float) -> float:
        """Return a level between empty and full; less than a byte from either is there."""
        if level < 1:
            return 0.0
        return float(full) if level > full - 1 else level
