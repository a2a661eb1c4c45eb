"""Gaps in the residency of tensors, cut one after another until every task fits, and when each ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heappop, heappush
from math import inf

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.grouping import grouped
from g10sim.policies.designs.pressurefit.tasks import Gap, Program

_LEFT_OUT = 1 << 62
"""Bytes that a task which nothing relieves seems to need less than it does, so that it is not the worst."""


class GapChoice:
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
        self.clean = {number for number, gap in enumerate(program.gaps) if gap.frozen}
        """Gaps that are clean, as the others are cut so far."""
        dirty = ((gap.tensor, number) for number, gap in enumerate(program.gaps) if not gap.frozen)
        self._dirty = grouped(dirty)
        self._offers = _Offers(program.tasks)
        if program.gaps and not self.fits:
            for number, gap in enumerate(program.gaps):
                if gap.end >= program.tasks:
                    self._take(number)
            self._offer_all()
            self._reduce()

    @property
    def fits(self) -> bool:
        """True if every task fits."""
        return int(self.needed.max(initial=0)) <= self._program.capacity_bytes

    def of(self, program: Program) -> GapChoice:
        """Return the residency of another program by the same rules."""
        return GapChoice(program, stall_first=self._stall_first, headroom=self._headroom)

    def relieve(self, lacks: Mapping[int, int]) -> bool:
        """Cut further gaps, so that tasks have as many bytes more to spare; return whether there were any."""
        before = len(self.cut)
        for task, size in lacks.items():
            self.needed[task] += size
        self._reduce()
        return len(self.cut) > before

    def _offer_all(self) -> None:
        """Offer all gaps that are not cut: each with its place among all, clean ones and others."""
        gaps, order = self._program.gaps, _order(self._program, self._stall_first)
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        self._numbers = (order % len(gaps)).tolist()
        self._clean_places, self._dirty_places = places.reshape(2, -1).tolist()
        for place, index in enumerate(order.tolist()):
            number = self._numbers[place]
            if number not in self.cut and (index == number) == (number in self.clean):
                for start, end in self._tasks(gaps[number]):
                    self._offers.add(place, start, end)

    def _reduce(self) -> None:
        """Cut until tasks fit; one that needs more memory than there is, whatever leaves, is left out."""
        left_out = list[int]()
        while self.needed[worst := int(self.needed.argmax())] > self._program.capacity_bytes:
            place = self._offers.best(worst)
            if place is None:
                self.needed[worst] -= _LEFT_OUT
                left_out.append(worst)
                continue
            self._offers.remove(place)
            for other in self._take(self._numbers[place]):
                if other not in self.cut:
                    self._offers.replace(self._dirty_places[other], self._clean_places[other])
        self.needed[left_out] += _LEFT_OUT

    def _take(self, number: int) -> list[int]:
        """Cut a gap; return those that it makes clean."""
        gap = self._program.gaps[number]
        self.cut.add(number)
        for start, end in self._tasks(gap):
            self.needed[start:end] -= self._program.gap_sizes[number]
        dirty = [other for other in self._dirty.get(gap.tensor, ()) if other != number]
        cleaned = [other for other in dirty if self._is_kept(self._program.gaps[other], gap)]
        if cleaned:
            self.clean.update(cleaned)
            self._dirty[gap.tensor] = [other for other in self._dirty[gap.tensor] if other not in self.clean]
        return cleaned

    def _is_kept(self, gap: Gap, other: Gap) -> bool:
        """Return whether what a tensor holds in a gap is in its tier, as it was away in another one."""
        if gap.written is None:
            return other.end <= gap.start or other.end > self._program.tasks
        return gap.written < other.start < gap.start

    def _tasks(self, gap: Gap) -> Sequence[tuple[int, int]]:
        """Return the tasks of the iteration, half open, that a gap gives room."""
        count, end = self._program.tasks, gap.end - self._headroom
        return [(gap.start, end)] if end <= count else [(gap.start, count), (0, end - count)]


def _order(program: Program, stall_first: bool) -> Integers:
    """Return the gaps, best first: as if all were clean, and as many more numbers as if none was."""
    gaps, times = program.gaps, np.array(program.times)
    starts, ends = np.array([gap.start for gap in gaps]), np.array(program.ends)
    firsts = np.array([gap.first for gap in gaps])
    same = starts - ends, np.negative(program.gap_sizes), -firsts, ends < program.tasks
    copies = np.concatenate((program.cycles_in, np.add(program.cycles_in, program.cycles_out)))
    delays = np.maximum(0, copies - np.tile(times[ends] - times[starts], 2)) * stall_first
    is_dirty = np.repeat((False, True), len(gaps))
    order: Integers = np.lexsort((*(np.tile(key, 2) for key in same), is_dirty, delays))
    return order


class _Offers:
    """Places of gaps by the tasks that they give room: a heap for each node of a binary tree over tasks."""

    def __init__(self, tasks: int) -> None:
        self._leaves = 1 << (tasks - 1).bit_length()
        self._heaps: list[list[int]] = [[] for _ in range(2 * self._leaves)]
        self._nodes, self._over = dict[int, list[int]](), dict[tuple[int, int], list[int]]()

    def add(self, place: int, start: int, end: int) -> None:
        """Add a place for tasks from ``start`` to ``end`` - 1."""
        if (start, end) not in self._over:
            self._over[start, end] = list(self._covering(start + self._leaves, end + self._leaves))
        nodes = self._nodes[place] = self._over[start, end]
        for node in nodes:
            heappush(self._heaps[node], place)

    @staticmethod
    def _covering(low: int, high: int) -> Iterator[int]:
        """Yield the fewest nodes that lie over all leaves from ``low`` to ``high`` - 1."""
        while low < high:
            if low & 1:
                yield low
            if high & 1:
                yield high - 1
            low, high = (low + 1) // 2, high // 2

    def replace(self, place: int, better: int) -> None:
        """Let a better place stand for one."""
        if place in self._nodes:
            nodes = self._nodes[better] = self._nodes.pop(place)
            for node in nodes:
                heappush(self._heaps[node], better)

    def remove(self, place: int) -> None:
        """Remove a place."""
        for node in self._nodes.pop(place):
            heap = self._heaps[node]
            while heap and heap[0] not in self._nodes:
                heappop(heap)

    def best(self, task: int) -> int | None:
        """Return the best place at a task."""
        node, found = task + self._leaves, list[int]()
        while node:
            found += self._heaps[node][:1]
            node //= 2
        return min(found, default=None)


Arrivals = Mapping[int, int]
"""For each gap that was cut the task, perhaps of the next iteration, when its tensor is asked for."""


class Windows:
    """Tasks from ``first`` to the end of each gap that was cut, at whose start its tensor can be asked for.

    What leaves with a copy can return when it is gone. Each has to be there when the task at the end starts.
    """

    def __init__(self, program: Program, residency: GapChoice) -> None:
        self._program, self._residency = program, residency
        self._due = program.ends
        self._latest_first = sorted(residency.cut, key=lambda number: (-self._due[number], number))
        self._first = dict[int, int]()
        for number in residency.cut:
            copies = 0 if number in residency.clean else program.cycles_out[number]
            gone = bisect_right(program.times, program.times[program.gaps[number].start] + copies - 1)
            self._first[number] = min(self._due[number], gone)

    def latest_safe(self) -> Arrivals:
        """Ask for each tensor as late as it can come in time by itself."""
        program, due = self._program, self._due
        wanted = {one: program.times[due[one]] - program.cycles_in[one] for one in self._latest_first}
        return {number: self._within(number, cycle, due) for number, cycle in wanted.items()}

    def packed_fifo(self) -> Arrivals:
        """Ask for tensors as late as they can come in time one after another."""
        return self._packed(self._due)

    def packed_fit(self) -> Arrivals:
        """Pack, but ask for each tensor only when it has room from then on."""
        return self._fit

    def interval_entry(self) -> Arrivals:
        """Let tensors be due earlier, as far as there is room, by as much as one after another takes."""
        return self._packed(self._fit)

    @cached_property
    def _fit(self) -> Arrivals:
        room = np.tile(self._program.capacity_bytes - self._residency.needed, 2)
        return self._packed(self._due, lambda number, task: self._first_with_room(room, number, task))

    def _packed(
        self, due: Sequence[int] | Arrivals, at: Callable[[int, int], int] = lambda number, task: task
    ) -> Arrivals:
        times, cycles = self._program.times, self._program.cycles_in
        found, following = dict[int, int](), inf
        for number in self._latest_first:
            wanted = min(times[due[number]], following) - cycles[number]
            found[number] = at(number, self._within(number, wanted, due))
            following = max(times[found[number]], wanted)
        return found

    def _within(self, number: int, cycle: float, due: Sequence[int] | Arrivals) -> int:
        """Return the last task that has started by a cycle, as far as the window lets it."""
        return min(max(bisect_right(self._program.times, cycle) - 1, self._first[number]), due[number])

    def _first_with_room(self, room: Integers, number: int, task: int) -> int:
        """Return the first task from one on that has room for a tensor, as have all until it is due.

        ``room`` is that of an iteration, twice.
        """
        size, due = self._program.gap_sizes[number], self._due[number]
        lacking = np.flatnonzero(room[task:due] < size)
        start = task + int(lacking[-1]) + 1 if len(lacking) else task
        for lap in (-self._program.tasks, 0, self._program.tasks):
            room[max(0, start + lap) : max(0, due + lap)] -= size
        return start


Rule = Callable[[Windows], Arrivals]
RULES = (Windows.packed_fifo, Windows.packed_fit, Windows.interval_entry, Windows.latest_safe)
