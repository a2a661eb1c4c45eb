"""Tasks at whose start tensors are asked to come back."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from math import inf

import numpy as np

from g10sim.analysis.timeline import Integers
from g10sim.policies.designs.pressurefit.residency import Residency
from g10sim.policies.designs.pressurefit.tasks import Program

Arrivals = Mapping[int, int]
"""For each gap that was cut the task, perhaps of the next iteration, when its tensor is asked for."""


class _Windows:
    """Tasks from ``first`` to ``due`` at whose start tensors can be asked for, and ``cycles`` that they take.

    What leaves with a copy can return when it is gone. Each has to be there when the task ``due`` starts.
    """

    def __init__(self, program: Program, residency: Residency) -> None:
        self._times = [program.time(task) for task in range(2 * program.tasks + 1)]
        self.first, self.due, self.cycles = dict[int, int](), dict[int, int](), dict[int, int]()
        for number in residency.cut:
            gap = program.gaps[number]
            size, tier = program.sizes[gap.tensor], program.tier(gap)
            gone = self._times[gap.start] + (0 if residency.is_clean(number) else tier.out_cycles(size))
            self.first[number] = min(gap.end, self.task_at(gone - 1) + 1)
            self.due[number], self.cycles[number] = gap.end, tier.in_cycles(size)
        self.latest_first = sorted(residency.cut, key=lambda number: (-self.due[number], number))

    def time(self, task: int) -> int:
        """Return the cycle at which a task starts without stalls."""
        return self._times[task]

    def task_at(self, cycle: float) -> int:
        """Return the last task that has started by a cycle."""
        return bisect_right(self._times, cycle) - 1

    def within(self, number: int, cycle: float) -> int:
        """Return the last task that has started by a cycle, as far as the window lets it."""
        return min(max(self.task_at(cycle), self.first[number]), self.due[number])


def latest_safe(windows: _Windows, needed: Integers, program: Program) -> Arrivals:
    """Ask for each tensor as late as it can come in time by itself."""
    return {
        number: windows.within(number, windows.time(due) - windows.cycles[number])
        for number, due in windows.due.items()
    }


def packed_fifo(windows: _Windows, needed: Integers, program: Program) -> Arrivals:
    """Ask for tensors as late as they can come in time one after another."""
    return _packed(windows, lambda number, task: task)


def packed_fit(windows: _Windows, needed: Integers, program: Program) -> Arrivals:
    """Pack, but ask for each tensor only when it has room from then on."""
    return _packed(windows, partial(_first_with_room, windows, needed, program))


def interval_entry(windows: _Windows, needed: Integers, program: Program) -> Arrivals:
    """Let tensors be due earlier, as far as there is room, by as much as one after another takes."""
    windows.due = dict(packed_fit(windows, needed, program))
    return packed_fifo(windows, needed, program)


RULES = (packed_fifo, packed_fit, interval_entry, latest_safe)


def arrivals(
    rule: Callable[[_Windows, Integers, Program], Arrivals], program: Program, residency: Residency
) -> Arrivals:
    """Return when the tensors of all gaps are asked for, by a rule."""
    return rule(_Windows(program, residency), residency.needed.copy(), program)


def _packed(windows: _Windows, at: Callable[[int, int], int]) -> Arrivals:
    found, following = dict[int, int](), inf
    for number in windows.latest_first:
        wanted = min(windows.time(windows.due[number]), following) - windows.cycles[number]
        found[number] = at(number, windows.within(number, wanted))
        following = max(windows.time(found[number]), wanted)
    return found


def _first_with_room(windows: _Windows, needed: Integers, program: Program, number: int, task: int) -> int:
    """Return the first task from one on that has room for a tensor, as have all until it is due."""
    size, due = program.sizes[program.gaps[number].tensor], windows.due[number]
    places = np.arange(task, due) % program.tasks
    lacking = np.flatnonzero(needed[places] + size > program.capacity_bytes)
    start = task + int(lacking[-1]) + 1 if len(lacking) else task
    needed[places[start - task :]] += size
    return start
