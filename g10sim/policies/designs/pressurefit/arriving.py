"""Tasks at whose start tensors are asked to come back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import inf

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressurefit.residency import Residency
from g10sim.policies.designs.pressurefit.tasks import Program

Arrivals = Mapping[int, int]
"""For each gap that was cut the task, perhaps of the next iteration, when its tensor is asked for."""


class Windows:
    """Tasks from ``first`` to the end of each gap that was cut, at whose start its tensor can be asked for.

    What leaves with a copy can return when it is gone. Each has to be there when the task at the end starts.
    """

    def __init__(self, program: Program, residency: Residency) -> None:
        self._program, self._residency = program, residency
        self._due = program.ends
        self._latest_first = [number for number in program.last_due if number in residency.cut]
        self._first = dict[int, int]()
        for number in residency.cut:
            copies = 0 if number in residency.clean else program.cycles_out[number]
            gone = bisect_right(program.times, program.times[program.gaps[number].start] + copies - 1)
            self._first[number] = min(self._due[number], gone)

    def latest_safe(self) -> Arrivals:
        """Ask for each tensor as late as it can come in time by itself."""
        program, due = self._program, self._due
        return {
            number: self._within(number, program.times[due[number]] - program.cycles_in[number], due)
            for number in self._latest_first
        }

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


RULES = (Windows.packed_fifo, Windows.packed_fit, Windows.interval_entry, Windows.latest_safe)
