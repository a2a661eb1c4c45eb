"""Replay of a plan: tasks one after another, and a queue of copies each way."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from math import inf

import numpy as np

from g10sim.grouping import grouped
from g10sim.policies.designs.pressurefit.residency import Arrivals, GapChoice
from g10sim.policies.designs.pressurefit.tasks import Program

_LAPS = 2
"""Iterations that are followed; the last one counts."""
_DELAYS = 256
"""Repairs of a plan, after which it is given up (als244/shadowspill, ``max_repair_attempts``)."""


class TaskReplay:
    """Follows tasks and copies, none of which passes what was asked for before it.

    A task starts when its tensors have come and there is room for what it makes. A copy in starts when it is
    first of its queue and has room. What leaves with a copy gives room when it is gone. Where a task would
    never have room, what came for later ones is asked for after it instead: ``arrivals`` change then.
    """

    def __init__(self, program: Program, residency: GapChoice, arrivals: Arrivals) -> None:
        self._program, count, self.arrivals = program, program.tasks, dict(arrivals)
        self._clean, self._places = residency.clean, [end % count for end in program.ends]
        due = list(filter(arrivals.__contains__, program.first_due))
        self._leaving = grouped((program.gaps[number].start % count, number) for number in due)
        self._due = grouped((self._places[number], number) for number in due)
        self._asked = defaultdict(list, grouped((arrivals[number] % count, number) for number in due))
        away = [number for number in due if program.gaps[number].start < count <= program.ends[number]]
        lasting = int(program.needed[0] - program.scratch[0] - program.fresh[0])
        self._free = program.capacity_bytes - lasting + sum(program.gap_sizes[number] for number in away)
        self._queue = deque(number for number in away if arrivals[number] < count)
        self._missing = [len(self._due.get(task, ())) for task in range(count)]
        self._ready = [0.0] * count
        self._now = self._in_at = self._out_at = self._tried_at = 0.0
        self._task = 0
        self._gone = deque[tuple[float, int]]()
        self._early = dict[int, None]()
        self.came_at, self.gone_at = dict[int, float](), dict[int, float]()
        """Cycles at which copies in of gaps started, and at which what left gave room, the last time."""
        self.started, self.ended = [0.0] * count, [0.0] * count
        """Cycles at which tasks started and ended the last time."""
        self.delays = 0
        """Times that something was asked for after a task in place of before it."""
        self.lacks = dict[int, int]()
        """Most bytes that the first of the queue, or what a task makes, had no room for, by task."""
        self.cycles = self._followed()
        """Duration of the last iteration; infinite if copies and tasks wait for each other."""

    def _followed(self) -> float:
        program, begin = self._program, 0.0
        made = (program.fresh + program.scratch).tolist()
        left = (program.gone + program.scratch).tolist()
        times = np.diff(program.begins).tolist()
        for _ in range(_LAPS):
            begin = self._now
            for task in range(program.tasks):
                self._task = task
                self._ask(task)
                if not self._wait(task, made[task]):
                    return inf
                self._free -= made[task]
                self.started[task] = self._now
                self._now += times[task]
                self.ended[task] = self._now
                self._advance(self._now)
                self._free += left[task]
        return self._now - begin

    def _ask(self, task: int) -> None:
        """Ask for what leaves, and then for what comes, when a task follows."""
        program = self._program
        for number in self._leaving.get(task, ()):
            if number in self._clean:
                self._free += program.gap_sizes[number]
                self.gone_at[number] = self._now
            else:
                self._out_at = max(self._out_at, self._now) + program.cycles_out[number]
                self._gone.append((self._out_at, program.gap_sizes[number]))
                self.gone_at[number] = self._out_at
        if task in self._asked:
            self._queue += self._asked[task]

    def _wait(self, task: int, size: int) -> bool:
        """Wait until a task can start, which makes some bytes; return whether it ever can."""
        while self._missing[task] and not self._advance(inf, task):
            if not self._delay(task):
                return False
        self._now = max(self._now, self._ready[task])
        self._advance(self._now)
        due = self._due.get(task, ())
        self._missing[task], self._ready[task] = len(due), 0.0
        if self._free < size:
            self._note_lack(size)
        while self._free < size and (self._gone or self._delay(task)):
            if self._gone:
                self._now = max(self._now, self._gone[0][0])
                self._free += self._gone.popleft()[1]
        for number in due:
            self._early.pop(number, None)
        return self._free >= size

    def _note_lack(self, size: int) -> None:
        self.lacks[self._task] = max(self.lacks.get(self._task, 0), size - self._free)

    def _delay(self, task: int) -> bool:
        """Ask for what is due last only after a task; return whether anything was asked for."""
        ends, places, count = self._program.ends, self._places, self._program.tasks
        others = [number for number in (*self._early, *self._queue) if places[number] != task]
        if not others or self.delays >= _DELAYS:
            return False
        last = max(others, key=lambda number: ((places[number] - task) % count, number))
        if last in self._early:
            del self._early[last]
            self._missing[places[last]] += 1
            self._free += self._program.gap_sizes[last]
        else:
            self._queue.remove(last)
        self._asked[self.arrivals[last] % count].remove(last)
        self.arrivals[last] = ends[last] - (places[last] - task - 1) % count
        insort(self._asked[(task + 1) % count], last, key=lambda number: (ends[number], number))
        self.delays += 1
        return True

    def _advance(self, until: float, task: int | None = None) -> bool:
        """Start copies in up to a time, or until a task misses none; return whether it misses none."""
        queue, gone, missing = self._queue, self._gone, self._missing
        while queue and (task is None or missing[task]):
            number = queue[0]
            size = self._program.gap_sizes[number]
            start = max(self._in_at, self._tried_at, self.gone_at.get(number, 0.0))
            while gone and gone[0][0] <= min(until, start if self._free >= size else until):
                start = max(start, gone[0][0]) if self._free < size else start
                self._free += gone.popleft()[1]
            if self._free < size:
                self._note_lack(size)
                break
            if start > until:
                break
            self._early[queue.popleft()] = None
            self._free -= size
            self.came_at[number] = start
            self._in_at = start + self._program.cycles_in[number]
            place = self._places[number]
            missing[place] -= 1
            self._ready[place] = max(self._ready[place], self._in_at)
        self._tried_at = self._now
        return task is None or not missing[task]
