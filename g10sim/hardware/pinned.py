"""Page-locked host memory: how much of it there is, and the time that pinning takes."""

from __future__ import annotations

from collections import deque

from g10sim.config.host import PinnedSpec
from g10sim.units import PICOSECONDS_PER_SECOND, duration_to_cycles


class PinnedMemory:
    """Counts pinned bytes; one thread pins and unpins buffers, one after the other, in the order asked.

    A buffer counts from the moment at which the thread begins to pin it until it has unpinned it.
    """

    def __init__(self, spec: PinnedSpec, clock_hz: int) -> None:
        self._spec, self._clock = spec, clock_hz
        self.used_bytes = 0
        self._promised_bytes = 0
        self._peaks: dict[int, int] = {}
        self._busy_until = 0
        self._changes: deque[tuple[int, int]] = deque()

    def watch(self, observer: int) -> None:
        """Begin to remember the most bytes pinned, for one of several observers."""
        self._peaks[observer] = self.used_bytes

    def peak(self, observer: int) -> int:
        """Return the most bytes pinned since an observer began to watch."""
        return self._peaks[observer]

    def fits(self, size_bytes: int, now: int) -> bool:
        """Whether so much more may be pinned."""
        self.settle(now)
        return self._spec.limit is None or self._promised_bytes + size_bytes <= self._spec.limit

    def pin(self, size_bytes: int, now: int) -> int:
        """Pin a buffer; returns the cycle at which it is."""
        begin, end = self._work(size_bytes, self._spec.pin_latency, self._spec.pin_rate, now)
        self._promised_bytes += size_bytes
        self._changes.append((begin, size_bytes))
        self.settle(now)
        return end

    def unpin(self, size_bytes: int, now: int) -> None:
        """Unpin a buffer."""
        _, end = self._work(size_bytes, self._spec.unpin_latency, self._spec.unpin_rate, now)
        self._changes.append((end, -size_bytes))
        self.settle(now)

    def settle(self, now: int) -> None:
        """Count what has begun to be pinned, and no longer what has been unpinned, by the cycle ``now``."""
        while self._changes and self._changes[0][0] <= now:
            change = self._changes.popleft()[1]
            self.used_bytes += change
            self._promised_bytes += min(change, 0)
            for observer, peak in self._peaks.items():
                self._peaks[observer] = max(peak, self.used_bytes)

    def _work(self, size_bytes: int, latency: int, rate: int | None, now: int) -> tuple[int, int]:
        """Give the thread a buffer to work on; returns the cycles at which it begins and ends."""
        picoseconds = latency + (0 if rate is None else -(-size_bytes * PICOSECONDS_PER_SECOND // rate))
        begin = max(self._busy_until, now)
        self._busy_until = begin + duration_to_cycles(picoseconds, self._clock)
        return begin, self._busy_until
