"""Page-locked host memory: how much of it there is, and the time that pinning takes."""

from __future__ import annotations

from collections import deque

from g10sim.config.host import PinnedSpec
from g10sim.units import PICOSECONDS_PER_SECOND, duration_to_cycles


class PinnedMemory:
    """Counts pinned bytes; one thread pins and unpins buffers, one after the other, in the order asked."""

    def __init__(self, spec: PinnedSpec, clock_hz: int) -> None:
        self._spec, self._clock = spec, clock_hz
        self.used_bytes = 0
        self._peaks: dict[int, int] = {}
        self._busy_until = 0
        self._unpinned: deque[tuple[int, int]] = deque()

    def watch(self, observer: int) -> None:
        """Begin to remember the most bytes pinned, for one of several observers."""
        self._peaks[observer] = self.used_bytes

    def peak(self, observer: int) -> int:
        """Return the most bytes pinned since an observer began to watch."""
        return self._peaks[observer]

    def fits(self, size_bytes: int, now: int) -> bool:
        """Whether so much more may be pinned."""
        self._settle(now)
        return self._spec.limit is None or self.used_bytes + size_bytes <= self._spec.limit

    def pin(self, size_bytes: int, now: int) -> int:
        """Pin a buffer; returns the cycle at which it is."""
        self._settle(now)
        self.used_bytes += size_bytes
        for observer, peak in self._peaks.items():
            self._peaks[observer] = max(peak, self.used_bytes)
        return self._work(size_bytes, self._spec.pin_latency, self._spec.pin_rate, now)

    def unpin(self, size_bytes: int, now: int) -> None:
        """Unpin a buffer; it counts until that is done."""
        done = self._work(size_bytes, self._spec.unpin_latency, self._spec.unpin_rate, now)
        self._unpinned.append((done, size_bytes))
        self._settle(now)

    def _work(self, size_bytes: int, latency: int, rate: int | None, now: int) -> int:
        """Give the thread a buffer to work on; returns the cycle at which it is done."""
        picoseconds = latency + (0 if rate is None else -(-size_bytes * PICOSECONDS_PER_SECOND // rate))
        self._busy_until = max(self._busy_until, now) + duration_to_cycles(picoseconds, self._clock)
        return self._busy_until

    def _settle(self, now: int) -> None:
        while self._unpinned and self._unpinned[0][0] <= now:
            self.used_bytes -= self._unpinned.popleft()[1]
