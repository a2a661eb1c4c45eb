"""A limit of the time that planning takes."""

from __future__ import annotations

import time
from math import inf

from g10sim.policies.interface.parameters import Declared, parameter


class Limited(Declared):
    """The parameter of policies whose planning may be limited."""

    planning_limit: float | None = parameter(default=None, ge=0)
    """CPU seconds after which planning of a job ends with the best so far: the plan then depends on the
    computer, and the note of the results says so. None: no limit."""


class Limit:
    """CPU seconds that planning may take from now on; None: as many as it takes."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds, self.was_reached = seconds, False
        self._end = inf if seconds is None else time.process_time() + seconds

    def is_over(self) -> bool:
        """Return whether no time is left, and remember it."""
        self.was_reached = self.was_reached or (self._end < inf and time.process_time() >= self._end)
        return self.was_reached

    @property
    def note(self) -> str:
        """Say that planning ended early; else nothing."""
        return f"planning ended at its limit of {self.seconds:g} s" if self.was_reached else ""
