"""A GPU as jobs find it, to themselves or shared: arriving jobs and working sets ask for its memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from simpy import Environment, Event

from g10sim.analysis.footprint import footprint_bytes, largest_working_set, peak_live_bytes
from g10sim.config.sharing import SharingSpec
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.sim.fabric import Clock, Process
from g10sim.sim.stages.compute import make_compute
from g10sim.trace.model import Trace


class Allotment:
    """Pages of a GPU, granted in FIFO order: no request overtakes another, so none waits indefinitely."""

    def __init__(self, env: Environment, pages: int) -> None:
        self._env, self._free = env, pages
        self._waiting: deque[tuple[int, Event]] = deque()

    def has_room(self, pages: int) -> bool:
        """Return whether that many pages would be granted at once."""
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


class Gpu:
    """One GPU. Jobs run on it one at a time, in order of arrival, or side by side if memory admits them.

    Each takes up some of its ``places``, which are the pages of a GPU that jobs share, and else one.
    ``compute`` shares its time. ``working_sets`` are the pages that waiting and running kernels of several
    jobs hold for their working sets; None if one job has the memory to itself.
    """

    def __init__(self, clock: Clock, sharing: SharingSpec, clock_hz: int, places: int) -> None:
        self.compute = make_compute(clock, sharing, clock_hz)
        is_shared = sharing.compute != "exclusive"
        self.working_sets = Allotment(clock, places) if is_shared else None
        self._sharing, self._places, self._jobs = sharing, places, Allotment(clock, places)
        self._refuses = is_shared and sharing.admission == "refuse"

    def pages_of(self, trace: Trace, page_bytes: int) -> int:
        """Return the pages that a job counts while it is admitted, at most all: it is admitted when alone."""
        if self.working_sets is None:
            return self._places
        return min(max(1, -(-admission_bytes(trace, self._sharing) // page_bytes)), self._places)

    def enter(self, pages: int) -> Process[bool]:
        """SimPy process: wait to be let on; False when refused. ``pages`` count against shared memory."""
        if self._refuses and not self._jobs.has_room(pages):
            return False
        yield self._jobs.request(pages)
        return True

    def leave(self, pages: int) -> None:
        """Let waiting jobs on that now find room."""
        self._jobs.release(pages)


# Fine enough for any share, and denominators stay powers of two however often the pace changes.
_STEPS = 1 << 20


class CopyContention:
    """Keeps the pace of the kernels on every GPU true to what crosses the GPU's link.

    Copies that fill the link in both directions take ``share`` of the bandwidth of GPU memory, and of a
    kernel's speed; others take as much less as they are slower. What kernels use in place does not count.
    """

    def __init__(
        self, transfers: FluidTransfers, gpus: Sequence[Gpu], gpu_of: Sequence[int], share: float
    ) -> None:
        """``gpu_of`` has the GPU of each job."""
        self._transfers, self._gpus, self._gpu_of, self._share = transfers, gpus, gpu_of, share
        self._paces = dict.fromkeys(gpu_of, _STEPS)

    def update(self) -> None:
        """Let kernels go on at the pace that copies leave them."""
        for gpu, before in self._paces.items():
            steps = round((1 - self._share * self._transfers.link_use(gpu)) * _STEPS)
            if steps != before:
                self._paces[gpu] = steps
                for job, own in enumerate(self._gpu_of):
                    if own == gpu:
                        self._gpus[gpu].compute.set_pace(job, Fraction(steps, _STEPS))
