"""The eviction order of a GPU's pages: runs of interchangeable pages of one tensor, oldest first."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from itertools import count as counter
from operator import attrgetter
from typing import Final

from g10sim.errors import InvariantError
from g10sim.hardware.runs import NO_TENSOR, Chunk, Group, Run

# An arrival joins a run of its own tensor among the last few, so that interleaved arrivals of several
# tensors make few runs. Joining any but the last run moves pages past at most this many others. The oldest
# run takes nothing in: pages that push out pages of their own tensor would come next again, for ever.
MERGE_PAGES: Final = 4096
ANY_NUMBER: Final = sys.maxsize
_MERGE_DEPTH: Final = 4
_COMPACT_AT: Final = 64
_PRUNE_AT: Final = 64
_AHEAD: Final = 64
_stamp: Final = attrgetter("stamp")


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
        self._gap = range(0)
        """Places of a stretch of empty runs, the longest that a walk has met."""
        self._compact_at = _COMPACT_AT
        self._scan: int | None = 0
        self._scanned: Run | None = None
        self._is_outdated = False
        self._of: list[list[Run]] = [[] for _ in range(num_tensors)]
        self._chunks: list[Chunk | None] = [None] * num_tensors

    def join_chunks(self, chunks: Iterable[range]) -> None:
        """Let the tensors of each chunk become recent with one that arrives, in the order of the chunk."""
        for members in chunks:
            chunk = Chunk(members)
            for tensor in members:
                self._chunks[tensor] = chunk

    def renew_around(self, tensors: Iterable[int], idle: list[int]) -> None:
        """Put the pages of what shares a chunk with tensors, which all have one, at the recent end.

        ``idle`` are the pages of every tensor.
        """
        first: dict[Chunk, int] = {}
        for tensor in tensors:
            chunk = self._chunks[tensor]
            assert chunk is not None
            if chunk not in first:
                first[chunk] = tensor
                self._regroup(chunk, tensor, idle)
            elif (other := first[chunk]) != NO_TENSOR:  # the second takes the first along
                first[chunk] = NO_TENSOR
                if idle[other]:
                    self.renew([(other, idle[other])])

    def _regroup(self, chunk: Chunk, arrived: int, idle: list[int]) -> None:
        """Put the pages of a chunk's members but one at the recent end, as a group."""
        members, old = chunk.members, chunk.group
        counts = idle[members.start : members.stop]
        counts[arrived - members.start] = 0
        size = len(counts) - counts.count(0)
        if not size:
            return
        if old is not None:
            if not old.pages(arrived):
                old.count = 0
            elif min(size, old.size) < _MERGE_DEPTH:  # arrivals may still look at the runs that it stands for
                self._unfold(old)
            else:
                left = Run(arrived, old.pages(arrived), 0, old.stamp)
                self._runs[self._place(old)] = left
                self._of[arrived].insert(0, left)
        for member in chunk.loose:
            if member != arrived:
                for run in self._of[member]:
                    run.count = 0
                self._of[member].clear()
        chunk.loose = {arrived}
        self._forget()
        chunk.group = Group(chunk, counts, size, next(self._clock))
        self._runs.append(chunk.group)

    def _group_of(self, tensor: int) -> Group | None:
        """Return the group that has pages of a tensor, or None."""
        chunk = self._chunks[tensor]
        group = None if chunk is None else chunk.group
        return group if group is not None and group.pages(tensor) else None

    def _place(self, group: Group) -> int:
        """Return the place of a group; stamps only grow along the order, and nothing else has its stamp."""
        return bisect_left(self._runs, group.stamp, self._head, key=_stamp)

    def _unfold(self, group: Group) -> None:
        """Put the runs that a group stands for in its place."""
        place, chunk = self._place(group), group.chunk
        runs = [Run(tensor, count, 0, group.stamp) for tensor, count in group.entries()]
        runs.reverse()
        for run in runs:
            if run.count:
                self._of[run.tensor].insert(0, run)
        self._runs[place : place + 1] = runs
        if self._scan is not None and self._scan > place:
            self._scan += len(runs) - 1
        if place < self._gap.start:
            self._gap = range(self._gap.start + len(runs) - 1, self._gap.stop + len(runs) - 1)
        chunk.group, chunk.loose = None, set(chunk.members)

    def _latest(self) -> Iterator[tuple[int, Run, int, int]]:
        """Yield place, run or group, tensor and pages of every run, the most recent first."""
        for place in range(len(self._runs) - 1, -1, -1):
            run = self._runs[place]
            for tensor, count in run.entries():
                yield place, run, tensor, count

    def append(self, tensor: int, count: int) -> None:
        """Add pages at the recent end."""
        runs = self._runs
        latest = runs[-1] if len(runs) > self._head else None
        if latest is not None and latest.tensor == tensor and latest.count and latest is not self._scanned:
            latest.count += count
            return
        own, chunk = self._of[tensor], self._chunks[tensor]
        # Outside groups it may join its latest run alone, and none that would grow too large.
        may_join = own and own[-1].count + count <= self.merge_pages
        if may_join or (chunk is not None and self._group_of(tensor) is not None):
            run = self._joined(tensor, count)
            if run is not None:
                run.count += count
                return
        if chunk is not None:
            chunk.loose.add(tensor)
        if len(own) >= _PRUNE_AT and len(own) % _PRUNE_AT == 0:
            own[:] = [old for old in own if old.count]
        self._forget()
        run = Run(tensor, count, 0, next(self._clock))
        runs.append(run)
        own.append(run)

    def _joined(self, tensor: int, count: int) -> Run | None:
        """Return the run that arriving pages of a tensor join, or None."""
        runs, head, most = self._runs, self._head, self.merge_pages
        last = place = len(runs) - 1
        later = looked = 0
        while place >= head and looked < _MERGE_DEPTH and later <= most:
            run = runs[place]
            if run.tensor == tensor:
                fits = place == last or (place > head and run.count + count <= most)
                return run if fits and run.count and run is not self._scanned else None
            place -= 1
            if not isinstance(run, Group):
                looked, later = looked + 1, later + run.count
                continue
            for other, pages in run.entries():
                if other == tensor and pages:
                    self._unfold(run)
                    return self._joined(tensor, count)
                looked, later = looked + 1, later + pages
                if other == tensor or looked == _MERGE_DEPTH or later > most:
                    return None
        return None

    def renew(self, pages: list[tuple[int, int]]) -> None:
        """Put every page of tensors, with their numbers, at the recent end, one tensor after another."""
        runs, of, chunks = self._runs, self._of, self._chunks
        for tensor, count in pages:
            if (chunk := chunks[tensor]) is not None:
                self.remove(tensor)
                chunk.loose.add(tensor)
            for run in of[tensor]:
                run.count = 0
            self._forget()
            run = Run(tensor, count, 0, next(self._clock))
            runs.append(run)
            of[tensor] = [run]

    def merging(self, tensor: int) -> int:
        """Return how many pages of a tensor may arrive at once, for the same order as one by one makes.

        What is in its chunk becomes more recent with each arrival: it may come after the tensor's own pages.
        """
        chunk = self._chunks[tensor]
        for place, run, other, pages in islice(self._latest(), 1 if chunk is None else _AHEAD):
            if place < self._head:
                break
            if other == tensor and pages:
                return 0 if run is self._scanned else ANY_NUMBER
            if pages and (chunk is None or other not in chunk.members):
                break
        joined = None if chunk is not None else self._joined(tensor, 1)
        return 0 if joined is None else self.merge_pages - joined.count

    def retire(self, tensor: int) -> None:
        """Put every page of a tensor at the oldest end."""
        count = self.remove(tensor)
        if not count:
            return
        if (chunk := self._chunks[tensor]) is not None:
            chunk.loose.add(tensor)
        run = Run(tensor, count, stamp=-1)
        self._of[tensor].append(run)
        if self._scan is not None:
            self._scan = max(self._scan, self._head)
        self._gap = range(0)
        if self._head:
            self._head -= 1
            self._runs[self._head] = run
            return
        self._runs.insert(0, run)
        if self._scan is not None:
            self._scan += 1

    def remove(self, tensor: int) -> int:
        """Take out every page of a tensor; return how many there were."""
        count = 0
        if (group := self._group_of(tensor)) is not None:
            count = group.pages(tensor)
            group.lower(tensor, count)
        for run in self._of[tensor]:
            count, run.count = count + run.count, 0
        self._of[tensor].clear()
        return count

    def take(self, tensor: int, count: int) -> None:
        """Take out the oldest pages of a tensor, which has enough."""
        if (group := self._group_of(tensor)) is not None:
            taken = min(count, group.pages(tensor))
            group.lower(tensor, taken)
            count -= taken
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
        if head == end:
            return None
        run = runs[head]
        if isinstance(run, Group):
            self._unfold(run)
            return self.oldest()
        return run

    def oldest_outside(self, tensors: Container[int]) -> Run | None:
        """Return the oldest run whose tensor is not in ``tensors``, or None; walks from the oldest."""
        self.oldest()
        place = self._next_outside(self._head, tensors)
        return None if place is None else self._runs[place]

    def _next_outside(self, place: int, tensors: Container[int]) -> int | None:
        """Return the place of the first run from one on whose tensor is not in ``tensors``, or None."""
        runs, since = self._runs, place
        while place < len(runs):
            run = runs[place]
            if not run.count:
                place = self._gap.stop if place in self._gap else place + 1
                continue
            if place - since > len(self._gap):
                self._gap = range(since, place)
            if not isinstance(run, Group):
                if run.tensor not in tensors:
                    return place
            elif any(pages > 0 and tensor not in tensors for tensor, pages in run.members()):
                self._unfold(run)
                continue
            place += 1
            since = place
        return None

    def restart_scan(self) -> None:
        """Begin a new scan at the oldest page."""
        self._scan = self._head
        self._scanned = None
        self._is_outdated = False

    def end_scan(self) -> None:
        """Let a new scan begin before anybody scans: other tensors are protected from now on."""
        self._is_outdated = True

    def scan_outside(self, tensors: Container[int]) -> Run | None:
        """Return the scan's run, the first at or after its place outside ``tensors``.

        None once the scan went past the most recent page: later arrivals wait for the next scan. Raises
        InvariantError where the next one should have begun.
        """
        if self._is_outdated:
            raise InvariantError("a scan of the eviction order goes on with other tensors protected")
        if self._scanned is not None and self._scanned.count:
            return self._scanned
        if self._scan is None:
            return None
        self._scan = self._next_outside(max(self._scan, self._head), tensors)
        self._scanned = None if self._scan is None else self._runs[self._scan]
        return self._scanned

    def scan_ahead(self, tensors: Container[int]) -> Iterable[Run]:
        """Return the next runs of a scan outside ``tensors``, except for the latest run."""
        return () if self._scan is None else self._ahead(max(self._scan, self._head), tensors)

    def oldest_ahead(self, tensors: Container[int]) -> Iterable[Run]:
        """Return the next runs to go outside ``tensors``, except for the latest run."""
        return self._ahead(self._head, tensors)

    def _ahead(self, place: int, tensors: Container[int]) -> Iterator[Run]:
        """Yield runs outside ``tensors`` from a place on, as far as one may look."""
        runs, left = self._runs, _AHEAD
        while left > 0 and place < len(runs):
            run = runs[place]
            if isinstance(run, Group) and run.count:
                self._unfold(run)
                continue
            left -= run.size if isinstance(run, Group) else 1
            place = self._gap.stop if place in self._gap else place + 1
            if run.count and run.tensor not in tensors and place < len(runs):
                yield run

    def _forget(self) -> None:
        """Forget empty runs except the first, and those that arrivals look at, once there are many."""
        runs, head, scan = self._runs, self._head, self._scan
        if len(runs) < self._compact_at or head == len(runs):
            return
        end = max(head + 1, len(runs) - _MERGE_DEPTH)
        kept = [place for place in range(head + 1, end) if runs[place].count]
        if scan is not None:
            self._scan = scan - head if scan <= head else 1 + bisect_left(kept, scan) + max(0, scan - end)
        runs[:end] = [runs[head], *map(runs.__getitem__, kept)]
        self._head, self._gap = 0, range(0)
        self._compact_at = max(_COMPACT_AT, 2 * len(runs))

    def oldest_of(self, tensor: int) -> Run | None:
        """Return the oldest run of one tensor, or None."""
        if (group := self._group_of(tensor)) is not None:
            self._unfold(group)
        own = self._of[tensor]
        for place, run in enumerate(own):
            if run.count:
                del own[:place]
                return run
        own.clear()
        return None

    def order(self) -> array[int]:
        """Return the order as tensor, pages, tensor, pages, and so on, oldest first."""
        return array("q", list(chain.from_iterable([run.filled() for run in self._runs if run.count])))

    def latest(self) -> tuple[object, ...]:
        """Return what decides, besides the order, which runs the next arrivals join."""
        found = list(islice(self._latest(), _MERGE_DEPTH))
        return sum(place < self._head for place, *_ in found), *(
            (tensor, count) for *_, tensor, count in found
        )

    def limits(self) -> tuple[object, ...]:
        """Return which runs of the order have begun to leave at a limited rate, that, and to where."""
        filled = (run for run in self._runs if run.count)
        return tuple([(place, run.rate, run.toward) for place, run in enumerate(filled) if run.rate])

    def pages(self, tensor: int) -> int:
        """Pages of one tensor in the order."""
        group = self._group_of(tensor)
        grouped = 0 if group is None else group.pages(tensor)
        return grouped + sum(run.count for run in self._of[tensor])
