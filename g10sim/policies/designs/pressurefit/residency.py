"""Gaps in the residency of tensors, cut one after another until every task fits, and when each ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf

import numpy as np

from g10sim.analysis.timeline import Flags
from g10sim.grouping import grouped
from g10sim.policies.designs.pressurefit.tasks import Gap, Program
from g10sim.policies.planning.occupancy import Occupancy

_TOGETHER = 16384
"""Places looked at together, until one gives room: with 30,000 kernels faster than a quarter, or all."""
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
        self.needed = Occupancy(program.needed.copy())
        self.cut: set[int] = set()
        self.clean = {number for number, gap in enumerate(program.gaps) if gap.frozen}
        """Gaps that are clean, as the others are cut so far."""
        written = ((gap.tensor, number) for number, gap in enumerate(program.gaps) if not gap.frozen)
        self._written = grouped(written)
        self._numbers, self._starts, self._ends = np.zeros((3, 0), dtype=np.int64)
        self._is_offered: Flags = np.zeros(0, dtype=np.bool_)
        """Of each place; the tasks that its gap gives room are from ``_starts`` to ``_ends``."""
        if program.gaps and not self.fits:
            for number, gap in enumerate(program.gaps):
                if gap.end >= program.tasks:
                    self._take(number)
            self._offer_all()
            self._reduce()

    @property
    def fits(self) -> bool:
        """True if every task fits."""
        return self.needed.peak_bytes <= self._program.capacity_bytes

    def of(self, program: Program) -> GapChoice:
        """Return the residency of another program by the same rules."""
        return GapChoice(program, stall_first=self._stall_first, headroom=self._headroom)

    def relieve(self, lacks: Mapping[int, int]) -> bool:
        """Cut further gaps, so that tasks have as many bytes more to spare; return whether there were any."""
        before = len(self.cut)
        for task, size in lacks.items():
            self.needed.bytes[task] += size
        self._reduce()
        return len(self.cut) > before

    def _offer_all(self) -> None:
        """Offer all gaps that are not cut; all have two places, best first: as clean ones and as others."""
        program, gaps, times = self._program, self._program.gaps, np.array(self._program.times)
        starts, ends = np.array([gap.start for gap in gaps]), np.array(program.ends)
        firsts = np.array([gap.first for gap in gaps])
        same = starts - ends, np.negative(program.gap_sizes), -firsts, ends < program.tasks
        copies = np.concatenate((program.cycles_in, np.add(program.cycles_in, program.cycles_out)))
        delays = np.maximum(0, copies - np.tile(times[ends] - times[starts], 2)) * self._stall_first
        is_dirty = np.repeat((False, True), len(gaps))
        order = np.lexsort((*(np.tile(key, 2) for key in same), is_dirty, delays))
        self._numbers = order % len(gaps)
        self._clean_places, self._dirty_places = order.argsort().reshape(2, -1)
        self._starts, self._ends = starts[self._numbers], ends[self._numbers] - self._headroom
        self._is_offered = np.zeros(len(order), dtype=np.bool_)
        for number in set(range(len(gaps))) - self.cut:
            places = self._clean_places if number in self.clean else self._dirty_places
            self._is_offered[places[number]] = True

    def _reduce(self) -> None:
        """Cut until tasks fit; one that needs more memory than there is, whatever leaves, is left out."""
        left_out = list[int]()
        while self.needed.bytes[worst := int(self.needed.bytes.argmax())] > self._program.capacity_bytes:
            if (place := self._best(worst)) is None:
                self.needed.bytes[worst] -= _LEFT_OUT
                left_out.append(worst)
                continue
            self._is_offered[place] = False
            for other in self._take(int(self._numbers[place])):
                if other not in self.cut:
                    self._is_offered[[self._dirty_places[other], self._clean_places[other]]] = False, True
        self.needed.bytes[left_out] += _LEFT_OUT

    def _best(self, task: int) -> int | None:
        """Return the first place that gives room to a task."""
        for first in range(0, len(self._numbers), _TOGETHER):
            part = slice(first, first + _TOGETHER)
            gives = self._is_offered[part] & (self._starts[part] <= task) & (task < self._ends[part])
            if gives.any():
                return first + int(gives.argmax())
        return None

    def _take(self, number: int) -> list[int]:
        """Cut a gap; return those that it makes clean."""
        gap = self._program.gaps[number]
        self.cut.add(number)
        self.needed.add(gap.start, gap.end - self._headroom, -self._program.gap_sizes[number])
        written = self._written.get(gap.tensor, ())
        dirty = (other for other in written if other != number and other not in self.clean)
        cleaned = [other for other in dirty if self._is_kept(self._program.gaps[other], gap)]
        self.clean.update(cleaned)
        return cleaned

    def _is_kept(self, gap: Gap, other: Gap) -> bool:
        """Return whether what a tensor holds in a gap is in its tier, as it was away in another one."""
        if gap.written is None:
            return other.end <= gap.start or other.end > self._program.tasks
        return gap.written < other.start < gap.start


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
        used = Occupancy(self._residency.needed.bytes.copy())
        return self._packed(self._due, lambda number, task: self._first_with_room(used, number, task))

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

    def _first_with_room(self, used: Occupancy, number: int, task: int) -> int:
        """Return the first task from one on that has room for a tensor, as have all until it is due."""
        size, due = self._program.gap_sizes[number], self._due[number]
        start = used.within_from(self._program.capacity_bytes - size, task, due)
        used.add(start, due, size)
        return start


Rule = Callable[[Windows], Arrivals]
RULES = (Windows.packed_fifo, Windows.packed_fit, Windows.interval_entry, Windows.latest_safe)
