"""A GPU as jobs find it: to themselves one after another, or shared."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import simpy
from simpy.events import Event

from g10sim.config.sharing import SharingSpec
from g10sim.sim.admission import Allotment
from g10sim.sim.compute import Compute, make_compute


class Gpu(Protocol):
    """What a job does with its GPU beside moving memory."""

    compute: Compute | None
    """Shares computing time; None where a job has it to itself."""
    working_sets: Allotment | None
    """Pages that waiting and running kernels hold for their working sets; None where nobody competes."""

    def enter(self, pages: int) -> Generator[Event, Any, bool]:
        """SimPy process: wait to be let on; False when refused. ``pages`` count against GPU memory."""
        ...

    def leave(self, pages: int) -> None:
        """Make way for others."""
        ...


class ExclusiveGpu:
    """One job at a time, in order of arrival."""

    def __init__(self, env: simpy.Environment) -> None:
        self.compute: Compute | None = None
        self.working_sets: Allotment | None = None
        self._turn = Allotment(env, 1)

    def enter(self, pages: int) -> Generator[Event, Any, bool]:
        """SimPy process: wait for the job before to end."""
        yield self._turn.request(1)
        return True

    def leave(self, pages: int) -> None:
        """Let the next job on."""
        self._turn.release(1)


class SharedGpu:
    """Jobs side by side, as many as memory admits."""

    def __init__(
        self, env: simpy.Environment, sharing: SharingSpec, clock_hz: int, capacity_pages: int
    ) -> None:
        self.compute: Compute | None = make_compute(env, sharing, clock_hz)
        self.working_sets: Allotment | None = Allotment(env, capacity_pages)
        self._jobs = Allotment(env, capacity_pages)
        self._capacity = capacity_pages
        self._refuses = sharing.admission == "refuse"

    def enter(self, pages: int) -> Generator[Event, Any, bool]:
        """SimPy process: wait until memory admits the job, or be refused."""
        if self._refuses and not self._jobs.has_room(self._counted(pages)):
            return False
        yield self._jobs.request(self._counted(pages))
        return True

    def leave(self, pages: int) -> None:
        """Let waiting jobs on that now find room."""
        self._jobs.release(self._counted(pages))

    def _counted(self, pages: int) -> int:
        """Count a job that needs more than there is as much as there is: it is admitted when alone."""
        return min(pages, self._capacity)


def make_gpu(env: simpy.Environment, sharing: SharingSpec, clock_hz: int, capacity_pages: int) -> Gpu:
    """Return a GPU of so many pages on which jobs share as ``sharing`` says."""
    if sharing.compute == "exclusive":
        return ExclusiveGpu(env)
    return SharedGpu(env, sharing, clock_hz, capacity_pages)
