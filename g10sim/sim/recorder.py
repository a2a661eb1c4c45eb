"""Collects the records that somebody asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from g10sim.records import IterationRecord, KernelRecord, MemoryRecord, MigrationRecord


@dataclass(frozen=True)
class RunRecords:
    """Everything a run emitted; ``events`` counts kernel executions and steps of the transfers."""

    iterations: tuple[IterationRecord, ...]
    kernels: tuple[KernelRecord, ...] = ()
    migrations: tuple[MigrationRecord, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    events: int = 0


@dataclass
class Recorder:
    """Lists of records; only iterations are always kept."""

    wanted: Collection[str]
    iterations: list[IterationRecord] = field(default_factory=list)
    kernels: list[KernelRecord] = field(default_factory=list)
    migrations: list[MigrationRecord] = field(default_factory=list)
    memory: list[MemoryRecord] = field(default_factory=list)
    kernel_count: int = 0

    def records(self, transfer_events: int) -> RunRecords:
        """Return what was collected."""
        return RunRecords(
            tuple(self.iterations),
            tuple(self.kernels),
            tuple(self.migrations),
            tuple(self.memory),
            self.kernel_count + transfer_events,
        )
