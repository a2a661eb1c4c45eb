"""The interface behind which bytes move: queues and room in, what moves until the next change out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from g10sim.hardware.memory import GpuMemory
from g10sim.hardware.victims import VictimRule
from g10sim.records import Location, MigrationCause, StallReason

Observer = Callable[[int, int, int, Location, Location, MigrationCause, int, int, int], None]
"""Is told of moves: job, GPU, tensor, from, to, cause, start and end cycle, pages."""

Due = Callable[[int], int]
"""Tells the cycle at which a job expects to need a tensor."""


def cause_of(source: Location, *, planned: bool, demanded: bool) -> MigrationCause:
    """Name the cause of a move from ``source`` that was ``planned`` as an eviction, or was ``demanded``."""
    if source is Location.GPU:
        return MigrationCause.PLANNED_EVICTION if planned else MigrationCause.MAKING_ROOM
    return MigrationCause.PAGE_FAULT if demanded else MigrationCause.PREFETCH


class Transfers(Protocol):
    """Moves queued pages as time passes. State is brought forward lazily, by ``advance``."""

    events: int

    def attach(
        self, job: int, gpu: int, memory: GpuMemory, victims: VictimRule, due: Due | None = None
    ) -> None:
        """Serve a job's memory on a GPU from now on; ``due`` tells when it will need a tensor."""
        ...

    def detach(self, job: int) -> None:
        """Stop serving a job that has ended."""
        ...

    def changed(self) -> None:
        """Forget what was foreseen: queues, working sets or eviction orders were altered."""
        ...

    def next_change(self) -> int | None:
        """Cycle at which something may become different by itself, or None."""
        ...

    def advance(self, now: int) -> None:
        """Move everything that moves up to the cycle ``now``."""
        ...

    def demand(self, job: int, tensor: int) -> None:
        """Put every page of a job's tensor that is not on the GPU nor in transfer on the fault queues."""
        ...

    def busy_cycles(self, job: int) -> int:
        """Cycles so far during which pages of a job were moving."""
        ...

    def bottleneck(self, job: int) -> StallReason | None:
        """Tell what slows a job's demanded pages beyond their own path, or None."""
        ...
