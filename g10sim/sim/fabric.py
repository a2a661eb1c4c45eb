"""One clock and one door: all that changes memory, and all that waits for it, goes through here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from enum import IntEnum
from itertools import count as counter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from simpy import Environment, Event, Timeout
from simpy.core import SimTime
from simpy.events import NORMAL, EventPriority

from g10sim.errors import CapacityError, G10SimError
from g10sim.hardware.pools import Door
from g10sim.hardware.transfers.interface import Transfers


class Moment(IntEnum):
    """Order of what happens within one cycle; at one moment, events happen in the order they were set up."""

    COMPUTED = 0
    """A kernel has computed: its job goes on at once."""
    KERNELS = 1
    """Kernels end and start, jobs arrive, delayed moves are issued."""
    TRANSFERS = 2
    """Transfers have something new: waiting kernels look whether they may start."""
    TURNS = 3
    """A shared GPU gives the turns of jobs that no longer compute to others."""


_schedule = Environment.schedule


class Clock(Environment):
    """SimPy's environment with events that happen at a moment of their cycle.

    With ``one_process``, time goes on at once where nothing happens before what that waits for.
    """

    def __init__(self, *, one_process: bool = False) -> None:
        super().__init__()
        self.one_process = one_process
        self.past = Event(self)
        """An event that has happened: who waits for it goes on at once."""
        self.past.callbacks = None  # type: ignore[assignment]  # as SimPy marks what has happened
        self.past._ok, self.past._value = True, None

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: SimTime = 0) -> None:
        """Let an event happen after ``delay`` cycles, at its own moment if it has one."""
        _schedule(self, event, getattr(event, "moment", priority), delay)

    @property
    def cycle(self) -> int:
        """Current cycle."""
        return self._now  # type: ignore[return-value]  # all delays are whole cycles

    def skip_to(self, cycle: int) -> bool:
        """Go on to a cycle at once if no event happens before or at it; return whether that is so."""
        if self._queue and self._queue[0][0] <= cycle:
            return False
        self._now = cycle
        return True

    @property
    def last_quiet(self) -> int:
        """Last cycle before the next event."""
        return self._queue[0][0] - 1 if self._queue else sys.maxsize  # type: ignore[return-value]

    def passes(self, cycles: int) -> bool:
        """Let cycles pass at once where nobody else can act meanwhile; return whether that is so."""
        return self.one_process and self.skip_to(self.cycle + cycles)


class Timer(Timeout):
    """Calls back after some cycles, at a moment of that cycle."""

    def __init__(self, clock: Clock, moment: Moment, cycles: int, callback: Callable[[Event], None]) -> None:
        self.moment = moment
        super().__init__(clock, cycles)
        self.callbacks.append(callback)


Stuck: TypeAlias = Callable[[], str | G10SimError]
Outcome = TypeVar("Outcome")
Process: TypeAlias = Generator[Event, Any, Outcome]
"""A SimPy process, or a part of one: it waits for events and returns an outcome."""


class _Wait(NamedTuple):
    """A wait as ``Fabric.until`` begins it."""

    event: Event | None
    job: int | None
    done: Callable[[], bool]
    stuck: Stuck


class Fabric:
    """Owns the clock, the door of all memories, and the transfers; lets waiting kernels sleep.

    Transfers have one timer, armed only while somebody waits.
    """

    def __init__(self, clock: Clock, transfers: Transfers, door: Door) -> None:
        self.clock, self.transfers = clock, transfers
        self._door, self._depth = door, 0
        self._altered: set[int] = set()
        self._alters_all = False
        self._is_stale = False
        self._numbers = counter()
        self._waiting: dict[int, _Wait] = {}
        self._alone: dict[int, int] = {}
        self._timer: Timer | None = None
        self._watch: Callable[[], None] | None = None

    @property
    def _is_observed(self) -> bool:
        """Return whether anybody waits, or watches what moves."""
        return bool(self._waiting) or self._watch is not None

    def watch(self, update: Callable[[], None]) -> None:
        """Call after every change of what moves, and as soon as it happens."""
        self._watch = update

    def alter(self, job: int | None = None) -> Fabric:
        """Open the door for a ``with`` block that changes memory: that of a job, or of several (None).

        Transfers are brought up to now when it opens. When it closes, room is used, links are shared again,
        and waiting kernels look again. Blocks may be nested.
        """
        if job is None:
            self._alters_all = True
        else:
            self._altered.add(job)
        return self

    def __enter__(self) -> None:
        """Open the door, if it is not open."""
        self._depth += 1
        self._door.is_open = True
        if self._depth == 1:
            self.transfers.advance(self.clock.cycle, None if self._alters_all else self._altered)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Close the door, if no block around this one keeps it open."""
        if failed is None and self._depth > 1:
            self.transfers.settle()
            self._is_stale = True
        elif failed is None:
            now = self.clock.cycle
            self._share_anew(now)
            self._arm(is_needed=self._is_observed and self._look(now))
        self._depth -= 1
        self._door.is_open = self._depth > 0

    def until(
        self, done: Callable[[], bool], stuck: Stuck, job: int | None = None, *, is_alone: bool = False
    ) -> Event:
        """Return an event that happens once ``done``, called after each change, is true.

        ``done`` may change memory. ``stuck`` describes the wait should it turn out to have no end, or gives
        the error that it is. Victims are chosen again for a waiting ``job``. If ``is_alone``, ``done``
        looks at the memory and the links of that job alone, and is called where these may have changed.
        """
        clock, number = self.clock, next(self._numbers)
        goes_on = clock.one_process and self._watch is None
        wait = self._waiting[number] = _Wait(None if goes_on else clock.event(), job, done, stuck)
        if is_alone and job is not None:
            self._alone[job] = number
        self._visit(nobody_acts=goes_on)
        if wait.event is not None:
            return wait.event
        if number not in self._waiting:
            return clock.past
        event = clock.event()
        self._waiting[number] = wait._replace(event=event)
        return event

    def explain_deadlock(self) -> G10SimError | None:
        """Return an error that says which wait has no end, or None when nothing waits."""
        for wait in self._waiting.values():
            found = wait.stuck()
            return CapacityError(found) if isinstance(found, str) else found
        return None

    def _ring(self, timer: Event) -> None:
        if timer is self._timer:
            self._visit(nobody_acts=True)

    def _visit(self, *, nobody_acts: bool = False) -> None:
        """Bring transfers up to now and let waiting kernels look, where nothing else has changed.

        Where ``nobody_acts`` any more before the next event, time goes on at once up to that.
        """
        self._depth += 1
        self._door.is_open = True
        now = self.clock.cycle
        self.transfers.advance(now, ())
        is_needed = self._look(now)
        while nobody_acts and is_needed:
            skips = self._watch is None and len(self._alone) == len(self._waiting)
            change = self.transfers.follow(self.clock.last_quiet, skips=skips)
            if change is None:
                break
            self.clock.skip_to(change)
            is_needed = self._look(change)
        self._arm(is_needed=is_needed)
        self._depth -= 1
        self._door.is_open = self._depth > 0

    def _arm(self, *, is_needed: bool) -> None:
        """Set the timer for the next change, if it ``is_needed`` and there is one."""
        now, self._timer = self.clock.cycle, None
        if is_needed and (change := self.transfers.next_change(now)) is not None:
            self._timer = Timer(self.clock, Moment.TRANSFERS, change - now, self._ring)

    def _share_anew(self, now: int) -> None:
        """Let room be used and links be shared as memory is now."""
        self._is_stale = False
        self.transfers.changed(self._altered, now, others=self._alters_all)
        self._altered.clear()
        self._alters_all = False

    def _looking(self) -> list[int]:
        """Return the waits of many jobs that may be over; what they look at is counted."""
        alone = self._alone
        found = [alone[job] for job in self.transfers.news(alone)]
        if len(alone) < len(self._waiting):
            self.transfers.count_moves()
            found += self._waiting.keys() - alone.values()
        return sorted(found) if len(found) > 1 else found

    def _look(self, now: int) -> bool:
        """Wake those whose wait is over; return whether anybody still waits, or watches what moves.

        Who looks may change memory; links are shared again before the next one looks.
        """
        ended = False
        for number in list(self._waiting) if self.clock.one_process else self._looking():
            if self._is_stale:
                self._share_anew(now)
            event, job, done, _ = self._waiting[number]
            if done():
                del self._waiting[number]
                if event is not None:
                    event.succeed()
                if job is not None:
                    self._alone.pop(job, None)
                    self._altered.add(job)
                    ended = True
        if ended or self._is_stale:
            self._share_anew(now)
        if self._watch is not None:
            self._watch()
        return self._is_observed
