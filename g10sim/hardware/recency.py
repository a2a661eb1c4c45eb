"""The eviction order of a GPU's pages: runs of interchangeable pages of one tensor, oldest first."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from itertools import count as counter

# An arrival joins a run of its own tensor among the last few, so that interleaved arrivals of several
# tensors make few runs. Joining any but the last run moves pages past at most this many others. The oldest
# run takes nothing in: pages that push out pages of their own tensor would come next again, for ever.
MERGE_PAGES = 4096
ANY_NUMBER = sys.maxsize
_MERGE_DEPTH = 4
_COMPACT_AT = 64
_PRUNE_AT = 64
_AHEAD = 64


class Run:
    """``count`` pages of one tensor that share a place in a queue or in the eviction order.

    ``rate`` limits how fast a demanded run can be served, in bytes/second; 0 means no limit. Of runs in
    eviction orders that share a clock, the one with the lower ``stamp`` is older.
    """

    __slots__ = ("count", "rate", "stamp", "tensor")

    is_empty = False
    """Its pages cross the link, but none of the tensor's changes place."""

    def __init__(self, tensor: int, count: int, rate: int = 0, stamp: int = 0) -> None:
        self.tensor = tensor
        self.count = count
        self.rate = rate
        self.stamp = stamp

    def state(self, now: int) -> tuple[object, ...]:
        """Return what sets it apart from other runs in its place at the cycle ``now``."""
        return self.tensor, self.count, self.rate, self.is_empty


class EmptyRun(Run):
    """A read of what is on the GPU anyway."""

    __slots__ = ()

    is_empty = True


class Recency:
    """Pages that may be evicted, in order, as runs.

    Taking pages is lowering ``count`` of a run that this class handed out; empty runs are skipped.
    A *scan* walks forward past protected tensors and never returns before the next ``restart_scan``.
    ``clock`` stamps new runs; eviction orders of jobs that share a memory share it. An arrival joins pages of
    its tensor that came up to ``merge_pages`` earlier.
    """

    def __init__(self, num_tensors: int, clock: Iterator[int] | None = None) -> None:
        self._clock = clock if clock is not None else counter()
        self.merge_pages = MERGE_PAGES
        self._runs: list[Run] = []
        self._head = 0
        self._compact_at = _COMPACT_AT
        self._scan: int | None = 0
        self._scanned: Run | None = None
        self._of: list[list[Run]] = [[] for _ in range(num_tensors)]

    def append(self, tensor: int, count: int) -> None:
        """Add pages at the recent end."""
        runs = self._runs
        latest = runs[-1] if len(runs) > self._head else None
        if latest is not None and latest.tensor == tensor and latest.count and latest is not self._scanned:
            latest.count += count
            return
        run = self._joined(tensor, count)
        if run is not None:
            run.count += count
            return
        own = self._of[tensor]
        if len(own) >= _PRUNE_AT and len(own) % _PRUNE_AT == 0:
            own[:] = [old for old in own if old.count]
        if len(runs) >= self._compact_at and self._head < len(runs):
            self._compact()
        run = Run(tensor, count, 0, next(self._clock))
        runs.append(run)
        own.append(run)

    def _joined(self, tensor: int, count: int) -> Run | None:
        """Return the run that so many pages of a tensor join when they arrive, or None."""
        runs, head, most = self._runs, self._head, self.merge_pages
        last = place = len(runs) - 1
        later = 0
        while place >= head and place > last - _MERGE_DEPTH and later <= most:
            run = runs[place]
            if run.tensor == tensor:
                fits = place == last or (place > head and run.count + count <= most)
                return run if fits and run.count and run is not self._scanned else None
            later += run.count
            place -= 1
        return None

    def renew(self, pages: Iterable[tuple[int, int]]) -> None:
        """Put every page of tensors, so many of each in all, at the recent end, one tensor after another."""
        runs, of = self._runs, self._of
        for tensor, count in pages:
            for run in of[tensor]:
                run.count = 0
            if len(runs) >= self._compact_at and self._head < len(runs):
                self._compact()
            run = Run(tensor, count, 0, next(self._clock))
            runs.append(run)
            of[tensor] = [run]

    def merging(self, tensor: int, followers: Container[int] = ()) -> int:
        """Return how many pages of a tensor may arrive at once, for the same order as one by one makes.

        ``followers`` become more recent with each arrival: their runs may lie behind the tensor's own.
        """
        runs = self._runs
        for run in reversed(runs[max(self._head, len(runs) - (_AHEAD if followers else 1)) :]):
            if run.tensor == tensor and run.count:
                return 0 if run is self._scanned else ANY_NUMBER
            if run.count and run.tensor not in followers:
                break
        joined = None if followers else self._joined(tensor, 1)
        return 0 if joined is None else self.merge_pages - joined.count

    def retire(self, tensor: int) -> None:
        """Put every page of a tensor at the oldest end."""
        count = self.pages(tensor)
        if not count:
            return
        self.remove(tensor)
        run = Run(tensor, count, stamp=-1)
        self._of[tensor].append(run)
        if self._scan is not None:
            self._scan = max(self._scan, self._head)
        if self._head:
            self._head -= 1
            self._runs[self._head] = run
            return
        self._runs.insert(0, run)
        if self._scan is not None:
            self._scan += 1

    def remove(self, tensor: int) -> None:
        """Take out every page of a tensor."""
        for run in self._of[tensor]:
            run.count = 0
        self._of[tensor].clear()

    def take(self, tensor: int, count: int) -> None:
        """Take out the oldest pages of a tensor, which has so many."""
        while count:
            run = self.oldest_of(tensor)
            assert run is not None
            taken = min(count, run.count)
            run.count -= taken
            count -= taken

    def oldest(self) -> Run | None:
        """Return the run whose pages go first, or None."""
        runs = self._runs
        head, end = self._head, len(runs)
        while head < end and not runs[head].count:
            head += 1
        self._head = head
        return runs[head] if head < end else None

    def oldest_outside(self, tensors: Container[int]) -> Run | None:
        """Return the oldest run whose tensor is not in ``tensors``, or None; walks from the oldest."""
        self.oldest()
        runs = self._runs
        for i in range(self._head, len(runs)):
            if runs[i].count and runs[i].tensor not in tensors:
                return runs[i]
        return None

    def restart_scan(self) -> None:
        """Begin a new scan at the oldest page."""
        self._scan = self._head
        self._scanned = None

    def scan_outside(self, tensors: Container[int]) -> Run | None:
        """Return the scan's run, the first at or after its place outside ``tensors``.

        None once the scan went past the most recent page: later arrivals wait for the next scan.
        """
        if self._scanned is not None and self._scanned.count:
            return self._scanned
        if self._scan is None:
            return None
        runs, start = self._runs, self._scan if self._scan > self._head else self._head
        for place in range(start, len(runs)):
            run = runs[place]
            if run.count and run.tensor not in tensors:
                self._scan, self._scanned = place, run
                return run
        self._scan = self._scanned = None
        return None

    def scan_ahead(self, tensors: Container[int]) -> Iterable[Run]:
        """Return the next runs of a scan outside ``tensors``, but for the latest run."""
        return () if self._scan is None else self._ahead(max(self._scan, self._head), tensors)

    def oldest_ahead(self, tensors: Container[int]) -> Iterable[Run]:
        """Return the next runs to go outside ``tensors``, but for the latest run."""
        return self._ahead(self._head, tensors)

    def _ahead(self, place: int, tensors: Container[int]) -> Iterator[Run]:
        """Yield runs outside ``tensors`` from a place on, as far as one may look."""
        runs = self._runs
        for run in runs[place : min(place + _AHEAD, len(runs) - 1)]:
            if run.count and run.tensor not in tensors:
                yield run

    def _compact(self) -> None:
        """Forget empty runs, but for the first, and those that arrivals look at."""
        runs, head, scan = self._runs, self._head, self._scan
        end = max(head + 1, len(runs) - _MERGE_DEPTH)
        kept = [place for place in range(head + 1, end) if runs[place].count]
        if scan is not None:
            self._scan = scan - head if scan <= head else 1 + bisect_left(kept, scan) + max(0, scan - end)
        runs[:end] = [runs[head], *map(runs.__getitem__, kept)]
        self._head = 0
        self._compact_at = max(_COMPACT_AT, 2 * len(runs))

    def oldest_of(self, tensor: int) -> Run | None:
        """Return the oldest run of one tensor, or None."""
        own = self._of[tensor]
        for place, run in enumerate(own):
            if run.count:
                del own[:place]
                return run
        own.clear()
        return None

    def order(self) -> array[int]:
        """Return the order as tensor, pages, tensor, pages, and so on, oldest first."""
        return array("q", (part for run in self._runs if run.count for part in (run.tensor, run.count)))

    def latest(self) -> tuple[object, ...]:
        """Return what decides, beside the order, which runs the next arrivals join."""
        runs = self._runs[-_MERGE_DEPTH:]
        return max(0, self._head - len(self._runs) + len(runs)), *((run.tensor, run.count) for run in runs)

    def pages(self, tensor: int) -> int:
        """Pages of one tensor in the order."""
        return sum(run.count for run in self._of[tensor])
