"""The cache of a drive that has two rates of writing: one until it is used up, one from then on."""

from __future__ import annotations

from collections.abc import Callable

from g10sim.config.ssd import SsdSpec
from g10sim.hardware.links import Link


class CachedPort:
    """Lowers the rate of an SSD's write link once as many bytes were written as its cache takes.

    All that crosses the link counts, in bytes times hertz: what ``clock_hz`` cycles carry of a byte a second.
    """

    def __init__(self, drive: SsdSpec, write: Link, clock_hz: int) -> None:
        self._write, self._sustained = write, drive.sustained_rate
        self._clock = clock_hz
        self._left = drive.cached_bytes * clock_hz
        self._rate = 0

    @property
    def room(self) -> int:
        """Bytes that are written at the drive's own rate from now on."""
        return -(-self._left // self._clock)

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
        return -(-self._left // self._rate) if self._left and self._rate else None

    def advance(self, cycles: int) -> None:
        """Let time pass at the rate of the last sharing; no further than to the next change."""
        if self._left:
            self._left = max(0, self._left - self._rate * cycles)
            if not self._left:
                self._write.capacity = self._sustained
