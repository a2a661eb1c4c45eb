"""Compute units of a GPU: a kernel is work at a rate, on a GPU that one job has or that jobs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from sys import maxsize

from simpy import Event

from g10sim.config.sharing import SharingSpec
from g10sim.sim.fabric import Clock, Moment, Process, Timer
from g10sim.units import duration_to_cycles

# Work is counted in parts of a cycle, so that speeds below 1 add up without rounding that would matter.
_PARTS = 1 << 32
# Speeds are rounded down by at most a part: over some work that is less than this share of it (2 ** -24).
_ROUNDING_BITS = 24


@dataclass(slots=True, eq=False)
class _Turn:
    """A job's place in the rotation, in cycles: what it still computes, and what its slice still lasts.

    ``lag`` is how far it is behind its share, in its slices.
    """

    job: int
    quantum: int
    work: int
    left: int = 0
    lag: Fraction = Fraction(0)


class TimeSlices:
    """Jobs compute in slices of time; the next one is the job's that is furthest behind its share.

    The share is what a job would have computed under exact processor sharing: while several have something to
    compute, each has its priority over the sum of theirs. Jobs that always compute take turns. One that
    waits, for memory say, keeps what is left of its slice, and goes on with it when it comes back. Rounds in
    which every job has one slice are skipped in one step, so that the cost does not depend on its length.
    """

    def __init__(self, slice_cycles: int) -> None:
        self._slice = slice_cycles
        self._jobs: dict[int, _Turn] = {}
        self._order: list[_Turn] = []
        self._turn: _Turn | None = None

    def add(self, job: int, cycles: int, priority: int) -> None:
        """Let a job compute for some cycles; one with a part of its slice left goes on at once."""
        quantum = self._slice * priority
        turn = self._jobs.setdefault(job, _Turn(job, quantum, 0))
        turn.work = cycles
        if turn not in self._order:
            self._order.append(turn)
            if turn.left:
                self._turn = turn

    def rescale(self, job: int, factor: Fraction) -> None:
        """Multiply the work that a job has left, rounded up."""
        turn = self._jobs[job]
        turn.work = ceil(turn.work * factor)

    def rest(self) -> None:
        """Take jobs without anything to compute out of the rotation."""
        self._order = [turn for turn in self._order if turn.work]
        if self._turn is not None and not self._turn.work:
            self._turn = None

    def next_end(self) -> int | None:
        """Cycles until a job is done, or None when none computes."""
        trial, passed = self._copy(), 0
        while trial._order:
            cycles, done = trial._step(maxsize)
            passed += cycles
            if done:
                return passed
        return None

    def advance(self, cycles: int) -> list[int]:
        """Let time pass, not beyond the next end; return the jobs that are done."""
        while cycles:
            passed, done = self._step(cycles)
            cycles -= passed
            if done:
                return done
        return []

    def _copy(self) -> TimeSlices:
        """Return a rotation of the jobs that compute, to look ahead with."""
        found = TimeSlices(self._slice)
        for turn in self._order:
            if turn.work:
                found._order.append(replace(turn))
                if turn is self._turn:
                    found._turn = found._order[-1]
        return found

    def _step(self, cycles: int) -> tuple[int, list[int]]:
        """Let a slice pass, or rounds of slices, for some cycles at most; return these and who is done."""
        turn = self._turn
        if turn is None:
            turn = self._turn = max(self._order, key=lambda turn: turn.lag)
        if not turn.left:
            turn.left = turn.quantum
        if turn.left == turn.quantum and (skipped := self._skip_rounds(turn, cycles)):
            return skipped, []
        step = min(cycles, turn.left, turn.work)
        due = Fraction(step, sum(one.quantum for one in self._order))
        for one in self._order:
            one.lag += due
        turn.lag -= Fraction(step, turn.quantum)
        turn.work -= step
        turn.left -= step
        if not turn.left:
            self._turn = None
        return step, [] if turn.work else [turn.job]

    def _skip_rounds(self, first: _Turn, cycles: int) -> int:
        """Give everybody as many whole slices as fit and nobody ends in; return the cycles they took."""
        lap = sum(turn.quantum for turn in self._order)
        rounds = min(cycles // lap, *((turn.work - 1) // turn.quantum for turn in self._order))
        if not rounds or not _take_turns(self._order, first):
            return 0
        for turn in self._order:
            turn.work -= rounds * turn.quantum
        return rounds * lap


def _take_turns(turns: Sequence[_Turn], first: _Turn) -> bool:
    """Return whether each job has one slice before the first of them has another."""
    if any(turn.left not in (0, turn.quantum) for turn in turns):
        return False
    ranks = [(turn.lag, -place) for place, turn in enumerate(turns)]
    last = min([rank for rank, turn in zip(ranks, turns, strict=True) if turn is not first], default=None)
    # A slice takes a job back by 1 next to all others: the last of these must be ahead of all that had one.
    return last is None or all((lag - 1, place) < last for lag, place in ranks)


class Concurrency:
    """Kernels of all jobs compute at once, each at a speed that depends on how many there are.

    With n jobs and slowdown s they have 1 / (1 + (n - 1) s) of their speed alone on average, divided by
    priority, and none more than its own speed.
    """

    def __init__(self, slowdown: float) -> None:
        self._slowdown = round(slowdown * _PARTS)
        self._work: dict[int, int] = {}
        self._priorities: dict[int, int] = {}

    def add(self, job: int, cycles: int, priority: int) -> None:
        """Let a job compute for the cycles that it would take alone."""
        self._work[job] = cycles * _PARTS
        self._priorities[job] = priority

    def rescale(self, job: int, factor: Fraction) -> None:
        """Multiply the work that a job has left, rounded up."""
        self._work[job] = ceil(self._work[job] * factor)

    def rest(self) -> None:
        """Nothing to give: jobs that do not compute slow nobody."""

    def next_end(self) -> int | None:
        """Cycles until a job is done, or None when none computes."""
        return min((self._cycles(job, speed) for job, speed in self._speeds().items()), default=None)

    def advance(self, cycles: int) -> list[int]:
        """Let time pass, not beyond the next end; return the jobs that are done."""
        speeds = self._speeds()
        done = [job for job, speed in speeds.items() if self._cycles(job, speed) <= cycles]
        for job in done:
            del self._work[job]
        for job in self._work:
            self._work[job] -= speeds[job] * cycles
        return done

    def _cycles(self, job: int, speed: int) -> int:
        """Cycles that a job still takes; what rounding of speeds has cost is not counted as another one."""
        work = self._work[job]
        own = work // _PARTS  # nobody is faster than alone
        return max(1, own, -(-(work - (work >> _ROUNDING_BITS)) // speed))

    def _speeds(self) -> dict[int, int]:
        """Speed of every job in parts of that alone, at least the smallest there is."""
        number = len(self._work)
        total = sum(self._priorities[job] for job in self._work)
        divisor = _PARTS + (number - 1) * self._slowdown
        return {
            job: max(1, min(_PARTS, _PARTS * _PARTS * self._priorities[job] * number // (total * divisor)))
            for job in self._work
        }


class _Computed(Event):
    """A kernel has computed."""

    moment = Moment.COMPUTED


class Alone:
    """Compute units that one job at a time has to itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._job: int | None = None
        self._left: int | Fraction = 0
        self._pace: int | Fraction = 1
        self._paces: dict[int, Fraction] = {}
        self._since = 0
        self._changed: Event | None = None

    def run(self, job: int, cycles: int, priority: int = 1) -> Process[None]:
        """SimPy process: compute for some cycles."""
        self._job, self._left, self._since = job, cycles, self._clock.cycle
        self._pace = self._paces.get(job, 1)
        if not self._clock.passes(cycles):
            yield self._clock.timeout(cycles)
        elif self._pace == 1:  # as it has been: nobody else could act
            return
        while left := self._count():
            self._changed = self._clock.event()
            yield self._clock.timeout(ceil(left / self._pace)) | self._changed
        self._changed = None

    def set_pace(self, job: int, pace: Fraction) -> None:
        """Let a job's kernels do ``pace`` (at most 1) cycles of their work in a cycle from now on."""
        self._paces[job] = pace
        if job != self._job:
            return
        self._count()
        self._pace = pace
        if self._changed is not None and not self._changed.triggered:
            self._changed.succeed()

    def _count(self) -> int | Fraction:
        """Count what has been computed; returns the cycles of work that are left."""
        now = self._clock.cycle
        self._left = max(0, self._left - (now - self._since) * self._pace)
        self._since = now
        return self._left


class Shared:
    """Compute units that jobs share: they ask for cycles and wait until they have had them."""

    def __init__(self, clock: Clock, discipline: TimeSlices | Concurrency) -> None:
        self._clock, self._discipline = clock, discipline
        self._waiting: dict[int, Event] = {}
        self._paces: dict[int, Fraction] = {}
        self._now = 0
        self._timer: Timer | None = None

    def run(self, job: int, cycles: int, priority: int = 1) -> Process[None]:
        """SimPy process: compute for the cycles that a job would take alone."""
        self._advance()
        event = _Computed(self._clock)
        if cycles:
            self._waiting[job] = event
            self._discipline.add(job, cycles, priority)
            if job in self._paces:
                self._discipline.rescale(job, 1 / self._paces[job])
            self._arm()
        else:
            event.succeed()
        yield event

    def set_pace(self, job: int, pace: Fraction) -> None:
        """Let a job's kernels do ``pace`` (at most 1) cycles of their work in a cycle from now on."""
        self._advance()
        before, self._paces[job] = self._paces.get(job, Fraction(1)), pace
        if job in self._waiting:
            self._discipline.rescale(job, before / pace)
            self._arm()

    def _advance(self) -> None:
        elapsed = self._clock.cycle - self._now
        self._now += elapsed
        if not elapsed or not self._waiting:
            return
        done = self._discipline.advance(elapsed)
        for job in done:
            self._waiting.pop(job).succeed()
        if done:
            # A kernel that follows another of its job in the same cycle keeps the job's turn.
            Timer(self._clock, Moment.TURNS, 0, self._rest)

    def _rest(self, _: Event) -> None:
        self._discipline.rest()
        self._arm()

    def _arm(self) -> None:
        left = self._discipline.next_end()
        self._timer = None if left is None else Timer(self._clock, Moment.KERNELS, left, self._ring)

    def _ring(self, timer: Event) -> None:
        if timer is self._timer:
            self._advance()


def make_compute(clock: Clock, sharing: SharingSpec, clock_hz: int) -> Alone | Shared:
    """Return the compute units of a GPU, which one job has to itself or jobs share."""
    if sharing.compute == "exclusive":
        return Alone(clock)
    if sharing.compute == "time_sliced":
        return Shared(clock, TimeSlices(duration_to_cycles(sharing.time_slice, clock_hz)))
    return Shared(clock, Concurrency(sharing.slowdown))
