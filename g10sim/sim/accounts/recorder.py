"""Collects the records that somebody asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from g10sim.hardware.memory import Residency
from g10sim.hardware.transfers.interface import Moved
from g10sim.records import (
    AccessRecord,
    BesideRecord,
    IterationRecord,
    JobRecord,
    KernelRecord,
    Location,
    MemoryRecord,
    MigrationRecord,
    RunRecords,
    TrafficRecord,
    word_columns,
)


class Recorder:
    """Lists of records. Iterations and jobs are always kept; ``wanted`` names kernels, migrations, memory.

    ``timeline`` stands for all three, for the traffic between locations, and for what is used in place.
    """

    def __init__(self, wanted: Collection[str], page_bytes: int) -> None:
        everything = "timeline" in wanted
        self.wants_kernels = everything or "kernels" in wanted
        self.wants_migrations = everything or "migrations" in wanted
        self.wants_memory = everything or "memory" in wanted
        self._wants_traffic = everything
        self.kernel_count = 0
        self._tensor_at: Mapping[int, Callable[[int], int]] = {}
        self._page_bytes = page_bytes
        self.iterations: list[IterationRecord] = []
        self.jobs: list[JobRecord] = []
        self.kernels: list[KernelRecord] = []
        self.cpu_kernels: list[BesideRecord] = []
        self.collectives: list[BesideRecord] = []
        self._migrations: list[MigrationRecord] = []
        self._memory: list[MemoryRecord] = []
        self._accesses: list[AccessRecord] = []
        self._open: dict[Moved, MigrationRecord] = {}
        self._traffic: dict[tuple[int, Location, Location, int, int], int] = {}

    def name_tensors(self, tensor_at: Mapping[int, Callable[[int], int]]) -> None:
        """Keep for each job what tells whose contents lie at a range of addresses."""
        self._tensor_at = tensor_at

    def memory(self, time: int, gpu: int, memory: Residency) -> None:
        """Keep the levels of memory at a time."""
        columns, pools = word_columns(memory.kinds, "{}_bytes"), memory.pools.values()
        page = self._page_bytes
        levels = {column: pool.used * page for column, pool in zip(columns, pools, strict=True)}
        self._memory.append(MemoryRecord(time, gpu, memory.used_pages * page, levels))

    def accessed(self, access: AccessRecord) -> None:
        """Keep what a kernel used where it lies."""
        if self._wants_traffic:
            self._accesses.append(access)

    def moved(self, what: Moved, start: int, end: int, pages: int) -> None:
        """Keep a move of what lies at a job's range; what follows it without a gap is one migration."""
        job, gpu, place, source, target, cause = what
        tensor = self._tensor_at[job](place)
        key = (job, gpu, tensor, source, target, cause)
        size_bytes = pages * self._page_bytes
        if self._wants_traffic:
            stretch = (gpu, source, target, start, end)
            self._traffic[stretch] = self._traffic.get(stretch, 0) + size_bytes
        before = self._open.get(key)
        if before is not None and start <= before.end:
            self._open[key] = replace(before, end=end, size_bytes=before.size_bytes + size_bytes)
            return
        if before is not None:
            self._migrations.append(before)
        self._open[key] = MigrationRecord(gpu, tensor, source, target, cause, start, end, size_bytes, job)

    def records(self, transfer_events: int) -> RunRecords:
        """Return what was collected, migrations by their start."""
        migrations = [*self._migrations, *self._open.values()]
        migrations.sort(key=lambda record: (record.start, record.end, record.gpu, record.job, record.tensor))
        return RunRecords(
            tuple(self.iterations),
            tuple(self.kernels),
            tuple(migrations),
            tuple(self._memory),
            self.kernel_count + transfer_events,
            tuple(sorted(self.jobs, key=lambda record: record.job)),
            tuple(TrafficRecord(*stretch, size_bytes) for stretch, size_bytes in self._traffic.items()),
            tuple(self._accesses),
            cpu_kernels=tuple(self.cpu_kernels),
            collectives=tuple(self.collectives),
        )
