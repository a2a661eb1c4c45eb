"""The interface behind which bytes move: queues and room in, what moves until the next change out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Protocol, TypeAlias

from g10sim.hardware.memory import Residency
from g10sim.hardware.runs import Run
from g10sim.records import Location, MigrationCause, StallReason

Moved: TypeAlias = tuple[int, int, int, Location, Location, MigrationCause]
"""Job, GPU, tensor, from, to, and cause of a move."""
Observer = Callable[[Moved, int, int, int], None]
"""Is told of moves: what moved, start and end cycle, pages."""

Due: TypeAlias = Callable[[int, int], int] | None
"""Tells the cycle at which a job expects to need a tensor, given that of the transfers; None: nobody does."""


class VictimRule(Protocol):
    """Answers that the transfers need when GPU memory is full; ``asks_policy``: each may be another."""

    asks_policy: bool

    def choose(self, memory: Residency, demanded: bool) -> Run | None:
        """Return the run that makes room for a demanded or a prefetched page; None when none may go."""

    def upcoming(self, memory: Residency, demanded: bool) -> Iterable[Run]:
        """Return the runs that make room one after another, as far as they are known already."""

    def spares(self, coming: int, tensor: int) -> bool:
        """Return whether what is prefetched leaves a victim's pages alone: it would push out its own."""

    def is_worthless(self, tensor: int) -> bool:
        """Return whether the tensor's contents are never read again, so its pages need not be written out."""

    def restart(self) -> None:
        """Forget earlier choices."""


def report(
    observer: Observer,
    tensors: Sequence[tuple[int, int, int]],
    ends: tuple[Location, Location],
    times: tuple[int, int],
    pages: int,
    *,
    demanded: bool,
) -> None:
    """Tell of a move: ``tensors`` are (job, GPU, tensor) of what moved and of the victim that made room.

    ``ends`` are where it came from, and where it or its victim went.
    """
    source, target = ends
    if source == Location.GPU:
        observer((*tensors[0], source, target, MigrationCause.PLANNED_EVICTION), *times, pages)
        return
    cause = MigrationCause.PAGE_FAULT if demanded else MigrationCause.PREFETCH
    observer((*tensors[0], source, Location.GPU, cause), *times, pages)
    for victim in tensors[1:]:
        observer((*victim, Location.GPU, target, MigrationCause.MAKING_ROOM), *times, pages)


class Transfers(Protocol):
    """Moves queued pages as time passes. State is brought forward lazily, by ``advance``."""

    events: int

    def attach(self, job: int, gpu: int, memory: Residency, victims: VictimRule, due: Due = None) -> None:
        """Serve a job's memory on a GPU from now on; ``due`` tells when it will need a tensor."""

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended."""

    def settle(self) -> None:
        """Let every job use the room that was made, where the next transfer does not take any page."""
        return

    def changed(self, jobs: Collection[int] = (), now: int | None = None, *, others: bool = True) -> None:
        """Let room be used, and forget what was foreseen: queues, working sets or orders were altered.

        Victims are chosen again for ``jobs``; ``others``: memories of other jobs were altered, too. Raises
        InvariantError unless transfers are at the cycle ``now``.
        """

    def news(self, jobs: Collection[int]) -> Collection[int]:
        """Return which jobs may have other queues, flows or rates than at the last call.

        What these have moved is counted.
        """
        return jobs

    def count_moves(self) -> None:
        """Count what all jobs have moved up to now."""
        return

    def next_change(self, now: int | None = None) -> int | None:
        """Cycle at which something may become different by itself, or None.

        Raises InvariantError unless transfers are at the cycle ``now``.
        """

    def advance(self, now: int, jobs: Collection[int] | None = None) -> None:
        """Move everything that moves up to the cycle ``now``.

        What concerns no other job may be counted later, unless it is one of these ``jobs`` (None: all).
        """

    def follow(self, last: int, *, skips: bool) -> int | None:
        """Advance to a change; if it ``skips``, past those after it that nobody who waits can see.

        Returns the cycle; None where the next change comes after the cycle ``last``, or never.
        """

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a job's tensor that is not on the GPU nor in transfer on the fault queues."""

    def state(self, job: int) -> Hashable:
        """Return what of a job is on links now, beyond its queues, and of all GPUs; None: not known."""
        return None

    def cache_pages(self) -> list[int]:
        """Return the pages that each drive's cache still takes; of drives that have one."""
        return []

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job were moving."""

    def bottleneck(self, job: int) -> StallReason | None:
        """Tell what slows a job's demanded pages beyond their own path, or None."""
        return None
