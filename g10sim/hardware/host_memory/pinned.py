"""Page-locked host memory: how much of it there is, and the time that pinning takes."""

from __future__ import annotations

from collections import deque

from g10sim.config.host import PinnedSpec
from g10sim.hardware.pools import Watched
from g10sim.units import PICOSECONDS_PER_SECOND, duration_to_cycles


class PinnedMemory(Watched):
    """Counts pinned bytes; one thread pins and unpins buffers, one after the other, in the order asked.

    A buffer counts from the moment at which the thread begins to pin it until it has unpinned it.
    """

    def __init__(self, spec: PinnedSpec, clock_hz: int) -> None:
        self._spec, self._clock = spec, clock_hz
        self._used = 0
        super().__init__()
        self._promised_bytes = 0
        self._busy_until = 0
        self._changes: deque[tuple[int, int]] = deque()

    @property
    def used(self) -> int:
        """Pinned bytes."""
        return self._used

    def state(self, now: int) -> tuple[object, ...]:
        """Return what is pinned, and what the thread has still to do, in cycles from ``now``."""
        changes = tuple((cycle - now, size) for cycle, size in self._changes)
        return self._used, self._promised_bytes, max(0, self._busy_until - now), changes

    def fits(self, size_bytes: int, now: int) -> bool:
        """Return whether so much more may be pinned."""
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
        """Unpin a buffer; an empty one takes no time."""
        if not size_bytes:
            return
        _, end = self._work(size_bytes, self._spec.unpin_latency, self._spec.unpin_rate, now)
        self._changes.append((end, -size_bytes))
        self.settle(now)

    def settle(self, now: int) -> None:
        """Count what has begun to be pinned, and no longer what has been unpinned, by the cycle ``now``."""
        while self._changes and self._changes[0][0] <= now:
            change = self._changes.popleft()[1]
            self._used += change
            self._promised_bytes += min(change, 0)
            self.note_peak()

    def _work(self, size_bytes: int, latency: int, rate: int | None, now: int) -> tuple[int, int]:
        """Give the thread a buffer to work on; returns the cycles at which it begins and ends."""
        begin = max(self._busy_until, now)
        self._busy_until = begin + duration_to_cycles(_picoseconds(size_bytes, latency, rate), self._clock)
        return begin, self._busy_until


class PinnedCopies:
    """Buffers in host memory of tensors that move in pages: the first ones that cross are pinned.

    A tensor's buffer is pinned when pages of it cross first, which takes its time, and stays pinned. What
    finds no room within the limit is pageable.
    """

    def __init__(self, spec: PinnedSpec) -> None:
        self._spec = spec
        self._used = 0
        self._pinned: set[tuple[int, int]] = set()
        self.pageable_bandwidth = spec.pageable_bandwidth or 0
        """Most bytes/second of a copy that uses pageable memory; 0: any."""

    def __len__(self) -> int:
        """Count the buffers that are pinned."""
        return len(self._pinned)

    def admit(self, job: int, tensor: int, size_bytes: int) -> int | None:
        """Return the picoseconds until a tensor's buffer is pinned; None where it is pageable."""
        if (job, tensor) in self._pinned:
            return 0
        spec = self._spec
        if spec.limit is not None and self._used + size_bytes > spec.limit:
            return None
        self._used += size_bytes
        self._pinned.add((job, tensor))
        return _picoseconds(size_bytes, spec.pin_latency, spec.pin_rate)


def _picoseconds(size_bytes: int, latency: int, rate: int | None) -> int:
    return latency + (0 if rate is None else -(-size_bytes * PICOSECONDS_PER_SECOND // rate))
