"""Lets waiting kernels sleep until the transfers have something new for them."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import Event

from g10sim.errors import CapacityError, G10SimError
from g10sim.hardware.transfers import Transfers

# Kernel events of a cycle come before transfer timers of the same cycle (SimPy sorts by time, priority,
# sequence; its own timeouts have priority 1).
_TIMER_PRIORITY = 2


class Clockwork:
    """One timer for all transfers, armed only while somebody waits."""

    def __init__(self, env: simpy.Environment, transfers: Transfers) -> None:
        self._env = env
        self._transfers = transfers
        self._waiting: dict[Event, tuple[Callable[[], bool], Callable[[], str | G10SimError]]] = {}
        self._armed: Event | None = None

    def wait(self, step: Callable[[], bool], stuck: Callable[[], str | G10SimError]) -> Event:
        """Return an event that happens once ``step``, called after each change, is true.

        ``stuck`` describes the wait should it turn out to have no end, or gives the error that it is.
        """
        event = self._env.event()
        self._waiting[event] = (step, stuck)
        self.rearm()
        return event

    def rearm(self) -> None:
        """Set the timer anew after something was altered; waits end, or go on for another reason."""
        self._wake()
        if not self._waiting:
            return
        change = self._transfers.next_change()
        if change is None:
            self._armed = None
            return
        timer = Event(self._env)
        timer._ok, timer._value = True, None
        timer.callbacks.append(self._ring)
        self._armed = timer
        self._env.schedule(timer, _TIMER_PRIORITY, max(0, change - self._env.now))

    def explain_deadlock(self) -> G10SimError | None:
        """Return an error that says who waits for ever, or None when nobody does."""
        for _, stuck in self._waiting.values():
            found = stuck()
            return CapacityError(found) if isinstance(found, str) else found
        return None

    def _ring(self, timer: Event) -> None:
        if timer is not self._armed:
            return
        self._transfers.advance(self._env.now)
        self.rearm()

    def _wake(self) -> None:
        for event, (step, _) in list(self._waiting.items()):
            if step():
                del self._waiting[event]
                event.succeed()
