"""Of all plans the one whose replay is fastest, and whose tensors have addresses."""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, inf
from operator import attrgetter

import numpy as np

from g10sim.analysis.pools.placement import Block, place_blocks
from g10sim.grouping import grouped
from g10sim.policies.designs.pressure.forecast import Dropped
from g10sim.policies.designs.pressurefit.residency import RULES, Arrivals, GapChoice, Rule, Windows
from g10sim.policies.designs.pressurefit.tasks import Program, Programs
from g10sim.policies.planning.limit import TimeLimit

_REPAIRS = 16
"""Times that the best plan gets more room where it lacked some; the source repairs every plan, 256 times."""
_LEAST_GIVEN_UP = 128
"""Part of memory that a plan without addresses gives up at least: each new plan takes as long as the last."""
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


@dataclass(frozen=True)
class Fitted:
    """A plan that was replayed.

    For some of its tensors there are no addresses, as they span ``excess_bytes`` more than there are.
    """

    program: Program
    residency: GapChoice
    rule: Rule
    replay: TaskReplay
    excess_bytes: int = 0

    @property
    def cycles(self) -> float:
        """Duration of an iteration; infinite for a plan that does not end."""
        return self.replay.cycles


def fastest(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: TimeLimit) -> Fitted:
    """Return the fastest plan where one of some groups is dropped, or of those that there was time for."""
    first, *others = sorted(_tried(programs, drops, limit), key=attrgetter("cycles"))
    pool_bytes = first.program.capacity_bytes
    best = _with_addresses(first, pool_bytes, inf, limit)
    for plan in others:
        if limit.is_over() or _worth(plan) >= _worth(best):
            break
        most = inf if best.excess_bytes else best.cycles
        best = min(best, _with_addresses(plan, pool_bytes, most, limit), key=_worth)
    for plan in _repaired(best, limit):
        if plan.cycles < best.cycles and extent_bytes(plan.program, plan.replay) <= pool_bytes:
            best = plan
    return best


def _worth(plan: Fitted) -> tuple[bool, float]:
    """Return what is less for the better plan."""
    return plan.excess_bytes > 0, plan.cycles


def _with_addresses(plan: Fitted, pool_bytes: int, most_cycles: float, limit: TimeLimit) -> Fitted:
    """Return a plan by the same rules for as much memory as its tensors take with addresses.

    One that takes that many cycles or more is not looked at any further.
    """
    while plan.replay.arrivals and plan.cycles < most_cycles:
        excess = extent_bytes(plan.program, plan.replay) - pool_bytes
        if excess <= 0:
            break
        given_up = max(excess, pool_bytes // _LEAST_GIVEN_UP)
        smaller = replace(plan.program, capacity_bytes=plan.program.capacity_bytes - given_up)
        if limit.is_over() or not (residency := plan.residency.of(smaller)).fits:
            return replace(plan, excess_bytes=excess)
        plan = _fitted(smaller, residency, plan.rule, Windows(smaller, residency))
    return plan


def _tried(programs: Programs, drops: Sequence[Sequence[Dropped]], limit: TimeLimit) -> Iterator[Fitted]:
    """Yield the plans of all groups whose kernels alone take less than the fastest plan before."""
    best = inf
    for dropped in drops:
        least = programs.least_cycles(dropped)
        if least < best:
            for plan in _plans(programs.of(dropped)):
                yield plan
                best = min(best, plan.cycles)
                if best <= least:
                    break
                if limit.is_over():
                    return


def _repaired(plan: Fitted, limit: TimeLimit) -> Iterator[Fitted]:
    """Yield plans, each of which has more room where the one before lacked some."""
    for _ in range(_REPAIRS):
        is_ideal = plan.cycles <= plan.program.begins[-1]
        if is_ideal or limit.is_over() or not plan.residency.relieve(plan.replay.lacks):
            return
        plan = _fitted(plan.program, plan.residency, plan.rule, Windows(plan.program, plan.residency))
        yield plan


def _plans(program: Program) -> Iterator[Fitted]:
    known = list[set[int]]()
    for stall_first, headroom in product((True, False), (True, False)):
        residency = GapChoice(program, stall_first=stall_first, headroom=headroom)
        if residency.cut not in known:
            known.append(set(residency.cut))
            windows = Windows(program, residency)
            yield from (_fitted(program, residency, rule, windows) for rule in RULES)


def _fitted(program: Program, residency: GapChoice, rule: Rule, windows: Windows) -> Fitted:
    return Fitted(program, residency, rule, TaskReplay(program, residency, rule(windows)))


def extent_bytes(program: Program, replay: TaskReplay) -> int:
    """Return the bytes from the first to the last address of a plan that was replayed.

    A tensor takes memory from when its copy in starts, or its task, until it is gone. What one task alone
    needs is one block. The largest blocks come first, each at the lowest free address
    (als244/shadowspill, docs/architecture/physical-admission.md); all addresses are multiples of what all
    sizes are.
    """
    gaps, sizes, period = program.gaps, program.sizes, int(replay.cycles)
    in_order = sorted(replay.arrivals, key=lambda number: gaps[number].start)
    cut = grouped((gaps[number].tensor, number) for number in in_order)
    spans = [(replay.started[i], replay.ended[i], int(size)) for i, size in enumerate(program.scratch)]
    for tensor, first, last in program.stays:
        own = [number for number in cut.get(tensor, ()) if first < gaps[number].start <= last]
        starts = [replay.started[first], *(replay.came_at[number] for number in own)]
        ends = [*(replay.gone_at[number] for number in own), replay.ended[last]]
        spans += [(start, end, sizes[tensor]) for start, end in zip(starts, ends, strict=True)]
    for tensor in filter(cut.__contains__, program.lasting):
        own = cut[tensor]
        pairs = zip(own, own[1:] + own[:1], strict=True)
        spans += [(replay.came_at[one], replay.gone_at[following], sizes[tensor]) for one, following in pairs]
    always = sum(sizes[tensor] for tensor in program.lasting if tensor not in cut)
    whole = ((int(start), int(end), size) for start, end, size in spans if size)
    blocks = [Block(start, start + ((end - start) % period or period), size) for start, end, size in whole]
    unit = gcd(*(block.size_bytes for block in blocks)) or 1
    return always + place_blocks(blocks, period=period, fit="first", alignment_bytes=unit).footprint_bytes
