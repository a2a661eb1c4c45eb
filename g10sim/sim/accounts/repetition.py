"""Iterations: how many jobs run, and whether they repeat, exactly (memory is where it was) or nearly."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import inf
from typing import Literal

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.run import AUTO, most_iterations
from g10sim.errors import ConfigError
from g10sim.records import IterationRecord
from g10sim.sim.fabric import Clock, Moment, Timer
from g10sim.trace.workload import Workload


class Iterations:
    """Number of iterations of replicas: ``most``, or fewer if all jobs ``until_steady`` are steady.

    They all run equally many, so that none has shared links to itself in the end. ``at_last`` is told when
    the last of ``most`` begins; it ``is_over`` when it has ended.
    """

    is_over = False

    def __init__(
        self,
        most: int,
        until_steady: Collection[int] = (),
        at_last: Callable[[Iterations], None] | None = None,
    ) -> None:
        self._count, self._begun, self._at_last = most, 0, at_last
        self._steady = dict.fromkeys(until_steady, False)
        self.are_joint = len(self._steady) > 1

    def has(self, iteration: int) -> bool:
        """Return whether a job that has come to an iteration, counted from 0, is to run it."""
        if iteration >= self._count:
            return False
        self._begun = max(self._begun, iteration + 1)
        if self._begun == self._count and self._at_last is not None:
            self._at_last(self)
        return True

    def ended(self, record: IterationRecord) -> None:
        """Take note of an iteration: once all jobs are steady, none begins what no other has begun."""
        self.is_over = record.iteration + 1 == self._count
        if record.job in self._steady:
            self._steady[record.job] = bool(record.steady)
            if all(self._steady.values()):
                self._count = min(self._count, self._begun)


class TooSlowError(Exception):
    """The last iterations of all jobs have taken longer than they may."""


class Patience:
    """Ends the simulation of some jobs once the last iterations of all of them have taken too long."""

    def __init__(self, clock: Clock, jobs: int) -> None:
        self._clock, self._in_time = clock, jobs

    def watch(self, at_most: int, iterations: Iterations) -> None:
        """Wait until the last iteration of a job, which begins now, has taken more cycles than that."""
        Timer(self._clock, Moment.TURNS, at_most + 1, lambda _: self._ring(iterations))

    def _ring(self, iterations: Iterations) -> None:
        """Count a job that is late. Raises TooSlowError where all are, unless they wait for nothing."""
        if not iterations.is_over:
            self._in_time -= 1
        if not self._in_time and self._clock.peek() < inf:
            raise TooSlowError


def are_replicas(workload: Workload) -> bool:
    """Return whether there is one job, or all are alike and on their own GPUs."""
    jobs = workload.jobs
    apart = len({job.gpu for job in jobs}) == len(jobs)
    return apart and len({(id(job.trace), job.iterations, job.arrival_cycles) for job in jobs}) == 1


def with_numbers(workload: Workload, behaviour: BehaviourSpec) -> Workload:
    """Return the workload with a number of iterations where ``auto`` stands for one.

    Raises ConfigError for ``auto`` with jobs that differ: these come and go, and none need ever be steady.
    """
    if all(job.iterations != AUTO for job in workload.jobs):
        return workload
    if not are_replicas(workload):
        found = "auto beside other jobs than replicas on GPUs of their own"
        raise ConfigError.at("iterations", found, "a number of iterations for each job")
    if behaviour.reported_iteration != "fastest":
        return workload
    counted = (replace(job, iterations=most_iterations(job.iterations, behaviour)) for job in workload.jobs)
    return replace(workload, jobs=tuple(counted))


def shortened(workload: Workload, iterations: int, *, keeps_auto: bool = False) -> Workload:
    """Return the workload with at most some iterations of each job; ``keeps_auto``: unless it is auto."""

    def number(given: int | Literal["auto"]) -> int | Literal["auto"]:
        if given == AUTO:
            return AUTO if keeps_auto else iterations
        return min(given, iterations)

    jobs = (replace(job, iterations=number(job.iterations)) for job in workload.jobs)
    return replace(workload, jobs=tuple(jobs))


TOLERANCE = 1000
"""Two numbers agree if they differ by at most the larger one divided by this."""

ORDER_TOLERANCE = 100
"""Of the pages that move, the part that may stand elsewhere in the order of evictions."""


@dataclass(frozen=True)
class EndState:
    """State of one job and of what it moves, at the end of an iteration.

    ``lies`` are the pages of every tensor at every place and in transfer, and those that caches of drives
    still take. ``order`` is what is on the GPU, in the order of evictions or addresses, as tensor, pages,
    tensor, pages, and so on. ``crossing`` is how far pages on links are; None: not known. ``rest`` is all
    else on which later iterations depend; None where not all of it is known. ``is_settled``: as
    ``Policy.is_steady`` says.
    """

    lies: array[int]
    order: array[int]
    crossing: Hashable
    rest: Hashable
    is_settled: bool

    def digest(self) -> bytes | None:
        """Return a hash of all of it, equal for equal states; None where not all is known."""
        if self.rest is None:
            return None
        found = blake2b(self.lies.tobytes(), digest_size=16)
        found.update(self.order.tobytes())
        found.update(repr((self.crossing, self.rest)).encode())
        return found.digest()

    def is_near(self, other: EndState, pages: int) -> bool:
        """Return whether at most a thousandth of that many pages lie elsewhere, a hundredth in the order.

        Where a single page is more than that, none may, and those on links must be as far.
        """
        if pages < TOLERANCE:
            return (self.lies, self.order, self.crossing) == (other.lies, other.order, other.crossing)
        apart = sum(abs(here - there) for here, there in zip(self.lies, other.lies, strict=True))
        if TOLERANCE * apart > 2 * pages:
            return False
        return ORDER_TOLERANCE * _reordered(self.order, other.order) <= pages


def _runs(order: array[int]) -> Iterator[tuple[int, int]]:
    """Yield the tensor of each run of an order, and where the run ends, in pages."""
    end = 0
    for tensor, count in zip(order[::2], order[1::2], strict=True):
        end += count
        yield tensor, end


def _reordered(one: array[int], other: array[int]) -> int:
    """Count the places of an order that another tensor has in the other, and where runs of one alone end."""
    found = at = 0
    ours, theirs = _runs(one), _runs(other)
    mine, yours = next(ours, None), next(theirs, None)
    while mine is not None and yours is not None:
        end = min(mine[1], yours[1])
        found += (end - at) * (mine[0] != yours[0]) + (mine[1] != yours[1])
        at = end
        if mine[1] == end:
            mine = next(ours, None)
        if yours[1] == end:
            yours = next(theirs, None)
    return found


def agree(one: IterationRecord, other: IterationRecord) -> bool:
    """Return whether two iterations take the same time and move the same bytes between any two places."""
    pairs = [(one.end - one.start, other.end - other.start)]
    pairs += [(moved, other.traffic[column]) for column, moved in one.traffic.items()]
    return all(TOLERANCE * abs(first - second) <= max(first, second) for first, second in pairs)


class Repetition:
    """Compares each iteration of a job with those before it.

    ``confirms``: there is more than one job, or work besides the GPU's, whose state in its middle is
    not part of end states; iterations then have repeated only once a whole period has been seen twice.
    """

    def __init__(self, page_bytes: int, *, confirms: bool) -> None:
        self._page_bytes, self._confirms = page_bytes, confirms
        self._records: list[IterationRecord] = []
        self._digests: list[bytes | None] = []
        self._last: EndState | None = None
        self._settled_since = 0

    def judge(self, record: IterationRecord, state: EndState) -> tuple[bool | None, int | None]:
        """Return whether iterations are steady from now on, and after how many exactly the same comes again.

        The first iteration cannot tell: None. Without an exact repetition, the second is None.
        """
        before, self._last = self._last, state
        self._records.append(record)
        self._digests.append(state.digest())
        if not state.is_settled:
            self._settled_since = len(self._records)
        if before is None:
            return None, None
        period = self._period()
        if period is not None:
            return True, period
        settled = self._settled_since < len(self._records) - 1
        pages = sum(record.traffic.values()) // self._page_bytes
        return settled and agree(*self._records[-2:]) and state.is_near(before, pages), None

    def _period(self) -> int | None:
        """Return after how many iterations the same comes again; None: not known."""
        digests, last = self._digests, len(self._digests) - 1
        for period in range(1, last - self._settled_since + 1):
            if digests[last] is not None and digests[last] == digests[last - period]:
                latest = [(one.end - one.start, one.traffic) for one in self._records[-2 * period :]]
                if not self._confirms or (2 * period <= last + 1 and latest[period:] == latest[:period]):
                    return period
        return None
