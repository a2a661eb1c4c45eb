"""Gaps in the residency of tensors, cut one after another until every task fits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush

import numpy as np

from g10sim.policies.designs.pressurefit.tasks import Gap, Program


class Residency:
    """Chooses gaps: again and again the best one at the task that lacks most memory.

    Persistent tensors lie in host memory between iterations. A gap is clean if its tier has what the tensor
    holds: nothing is copied then. With ``stall_first`` gaps are best whose own copies delay the next user
    least. Of equal ones, and otherwise, those are best that are clean, then those that reach over the border,
    those whose tensors are first used last, those of large tensors, and long ones. With ``headroom`` a tensor
    is back one task before it is used.
    """

    def __init__(self, program: Program, *, stall_first: bool, headroom: bool) -> None:
        self._program, self._stall_first, self._headroom = program, stall_first, headroom
        self.needed = program.needed.copy()
        self.cut: set[int] = set()
        self._of_tensor = defaultdict[int, list[int]](list)
        for number, gap in enumerate(program.gaps):
            self._of_tensor[gap.tensor].append(number)
        self._offers = _Offers(program.tasks)
        self._ranks = [0] * len(program.gaps)
        if self.needed.max(initial=0) > program.capacity_bytes:
            for number, gap in enumerate(program.gaps):
                if gap.end >= program.tasks:
                    self._take(number)
            for number in range(len(program.gaps)):
                self._offer(number)
            self._reduce()

    def is_clean(self, number: int) -> bool:
        """Return whether a tensor leaves without a copy: it was away since it was written."""
        gaps = self._program.gaps
        gap = gaps[number]
        if gap.frozen:
            return True
        others = (gaps[one] for one in self._of_tensor[gap.tensor] if one in self.cut and one != number)
        if gap.written is None:
            return any(other.end <= gap.start or other.end > self._program.tasks for other in others)
        return any(gap.written < other.start < gap.start for other in others)

    def relieve(self, lacks: Mapping[int, int]) -> bool:
        """Cut further gaps, so that tasks have as many bytes more to spare; return whether there were any."""
        before = len(self.cut)
        for task, size in lacks.items():
            self.needed[task] += size
        self._reduce()
        return len(self.cut) > before

    def _reduce(self) -> None:
        """Cut until tasks fit; one that needs more memory than there is, whatever leaves, is left out."""
        hopeless = np.zeros(len(self.needed), dtype=np.int64)
        while True:
            worst = int((self.needed - hopeless).argmax())
            if self.needed[worst] - hopeless[worst] <= self._program.capacity_bytes:
                return
            number = self._offers.best(worst, self._ranks, self.cut)
            if number is None:
                hopeless[worst] = self.needed[worst]
                continue
            self._take(number)
            for other in self._of_tensor[self._program.gaps[number].tensor]:
                self._offer(other)

    def _take(self, number: int) -> None:
        gap = self._program.gaps[number]
        self.cut.add(number)
        for start, end in self._tasks(gap):
            self.needed[start:end] -= self._program.sizes[gap.tensor]

    def _offer(self, number: int) -> None:
        """Rank a gap as things are now; earlier ranks of it hold no longer."""
        if number in self.cut:
            return
        self._ranks[number] += 1
        offer = self._rank(number), number, self._ranks[number]
        for start, end in self._tasks(self._program.gaps[number]):
            self._offers.add(start, end, offer)

    def _tasks(self, gap: Gap) -> Iterator[tuple[int, int]]:
        """Yield the tasks of the iteration, half open, that a gap gives room."""
        count, end = self._program.tasks, gap.end - self._headroom
        if gap.start < min(end, count):
            yield gap.start, min(end, count)
        if end > max(gap.start, count):
            yield max(0, gap.start - count), end - count

    def _rank(self, number: int) -> tuple[int, ...]:
        program, gap, is_clean = self._program, self._program.gaps[number], self.is_clean(number)
        tier, size = program.tier(gap), program.sizes[gap.tensor]
        copies = tier.in_cycles(size) + (0 if is_clean else tier.out_cycles(size))
        delay = max(0, program.time(gap.start) + copies - program.time(gap.end)) if self._stall_first else 0
        return delay, not is_clean, gap.end < program.tasks, -gap.first, -size, gap.start - gap.end


class _Offers:
    """Ranked gaps by the tasks that they give room: a heap for each node of a binary tree over the tasks."""

    def __init__(self, tasks: int) -> None:
        self._leaves = 1 << (tasks - 1).bit_length()
        self._heaps = defaultdict[int, list[tuple[tuple[int, ...], int, int]]](list)

    def add(self, start: int, end: int, offer: tuple[tuple[int, ...], int, int]) -> None:
        """Add (rank, gap, number of its rank) for tasks from ``start`` to ``end`` - 1."""
        low, high = start + self._leaves, end + self._leaves
        while low < high:
            if low & 1:
                heappush(self._heaps[low], offer)
                low += 1
            if high & 1:
                high -= 1
                heappush(self._heaps[high], offer)
            low, high = low // 2, high // 2

    def best(self, task: int, ranks: Sequence[int], taken: Collection[int]) -> int | None:
        """Return the best gap at a task that is not taken, by its latest rank."""
        node, found = task + self._leaves, list[tuple[tuple[int, ...], int, int]]()
        while node:
            heap = self._heaps.get(node, [])
            while heap and (heap[0][1] in taken or heap[0][2] != ranks[heap[0][1]]):
                heappop(heap)
            found += heap[:1]
            node //= 2
        return min(found)[1] if found else None
