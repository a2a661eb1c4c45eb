"""Who may use a GPU's memory: jobs when they arrive, and kernels that keep their working sets there."""

from __future__ import annotations

from collections import deque

import simpy
from simpy.events import Event

from g10sim.analysis.footprint import footprint_bytes, peak_live_bytes
from g10sim.analysis.working_set import largest_working_set
from g10sim.config.sharing import SharingSpec
from g10sim.trace.model import Trace


class Allotment:
    """Pages of a GPU for whoever asks first: nobody overtakes, so nobody waits for ever."""

    def __init__(self, env: simpy.Environment, pages: int) -> None:
        self._env, self._free = env, pages
        self._waiting: deque[tuple[int, Event]] = deque()

    def has_room(self, pages: int) -> bool:
        """Whether so many pages would be granted at once."""
        return not self._waiting and pages <= self._free

    def request(self, pages: int) -> Event:
        """Return an event that happens when the pages are granted."""
        event = self._env.event()
        self._waiting.append((pages, event))
        self._grant()
        return event

    def release(self, pages: int) -> None:
        """Give granted pages back."""
        self._free += pages
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            pages, event = self._waiting.popleft()
            self._free -= pages
            event.succeed()


def admission_bytes(trace: Trace, sharing: SharingSpec) -> int:
    """Return what a job counts against GPU memory while it is admitted, in bytes."""
    if sharing.admission_memory == "footprint":
        return footprint_bytes(trace)
    if sharing.admission_memory == "live":
        return peak_live_bytes(trace)
    return largest_working_set(trace)[1]
