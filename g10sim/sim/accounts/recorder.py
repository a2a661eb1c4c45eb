"""Observers of a run: records that somebody asked for, and the invariants behind ``--check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from g10sim.errors import InvariantError
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
from g10sim.trace.model import Kernel


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


MOST_STEPS = 10_000
"""Steps of the transfers during one kernel: more are pages that go round in circles a few at a time."""


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)


class Checker:
    """Raises InvariantError as soon as an invariant is broken.

    Capacity is never exceeded; no kernel computes without its data; pages are conserved; kernels run
    once and in order; every cycle has an owner; no iteration is faster than its kernels, unless it
    ``may_beat_ideal``; transfers take no more than ``MOST_STEPS`` steps while a kernel waits and runs, unless
    it ``streams_working_set``. ``steps`` counts those so far.
    """

    def __init__(
        self, *, streams_working_set: bool, steps: Callable[[], int], may_beat_ideal: bool = False
    ) -> None:
        self._streams, self._steps, self._steps_before = streams_working_set, steps, 0
        self._may_beat_ideal = may_beat_ideal
        self._last: dict[int, KernelRecord] = {}
        self._sums: dict[int, int] = {}

    def kernel_starts(self, memory: Residency, kernel: Kernel) -> None:
        """Check the working set of a kernel that is about to compute.

        Where the running kernel's pages may be evicted, they have all been there but may have left again.
        """
        where = f"kernel {kernel.id} ({kernel.name})"
        frames = memory.frames
        is_within = 0 <= frames.free <= frames.capacity_pages
        _require(is_within, f"{where}: GPU memory holds {memory.filled} pages")
        for pool in memory.pools.values():
            _require(pool.free >= 0, f"{where}: {pool.name} is over its capacity")
        if not self._streams:
            missing = [t for t in kernel.tensors if t in memory.needed and not memory.is_usable(t)]
            _require(not missing, f"{where}: computes without tensors {missing[:5]}")

    def kernel_ended(self, record: KernelRecord) -> None:
        """Check order and ownership of time."""
        where = f"iteration {record.iteration}, kernel {record.kernel}"
        stalls = sum(cycles for _, cycles in record.stalls)
        computed, elapsed = record.compute_cycles, record.end - record.start
        _require(computed + stalls == elapsed, f"{where}: {computed} + {stalls} cycles are not {elapsed}")
        steps, self._steps_before = self._steps() - self._steps_before, self._steps()
        are_few, allowed = self._streams or steps <= MOST_STEPS, f"{MOST_STEPS}, or pages go in circles"
        _require(are_few, f"{where}: transfers took {steps} steps during it; allowed: {allowed}")
        last = self._last.get(record.job)
        if last is not None:
            next_ones = (last.iteration, last.kernel + 1), (last.iteration + 1, 0)
            follows = (record.iteration, record.kernel) in next_ones
            _require(follows and record.start == last.end, f"{where}: does not follow the kernel before it")
        self._last[record.job] = record
        self._sums[record.job] = self._sums.get(record.job, 0) + elapsed

    def iteration_ended(self, record: IterationRecord, memory: Residency) -> None:
        """Check conservation of pages and the sum of all cycles."""
        where = f"iteration {record.iteration}"
        elapsed = record.end - record.start
        stalls = sum(cycles for _, cycles in record.stalls)
        _require(record.compute_cycles + stalls == elapsed, f"{where}: cycles without an owner")
        _require(self._sums.pop(record.job) == elapsed, f"{where}: kernels do not fill the iteration")
        least = record.compute_cycles if self._may_beat_ideal else record.ideal_cycles
        _require(elapsed >= least, f"{where}: faster than its kernels")
        check_conservation(memory, where)
        for pool in memory.pools.values():
            pool.check()


def check_conservation(memory: Residency, where: str) -> None:
    """Check that every page of every tensor is in exactly one place. Raises InvariantError."""
    queues = memory.queues
    queued = [0] * len(memory.sizes)
    on_gpu, leaving = sum(memory.idle), Counter[int]()
    for name, kind in (("fault", queues.fault), ("prefetch", queues.prefetch), ("evict", queues.evict)):
        for run in (run for queue in kind for run in queue):
            _require(run.count > 0, f"{where}: empty run to {name}")
            queued[run.tensor] += 0 if run.is_empty else run.count
            if kind is queues.evict:
                on_gpu += run.count
                leaving[run.tensor] += run.count
    for tensor, pages in enumerate(memory.sizes):
        here = [count[tensor] for count in (*memory.pages, memory.moving)]
        _require(min(here) >= 0, f"{where}: tensor {tensor} has a negative count")
        _require(sum(here) == pages, f"{where}: tensor {tensor} has {sum(here)} of {pages} pages")
        _require(queued[tensor] == memory.moving[tensor], f"{where}: tensor {tensor} is queued wrongly")
        ordered = memory.recency.pages(tensor)
        _require(ordered == memory.idle[tensor], f"{where}: tensor {tensor} is ordered wrongly")
    _require(leaving == memory.leaving, f"{where}: pages that leave are counted wrongly")
    for place, pool in memory.pools.items():
        coming = (*queues.fault[place], *queues.prefetch[place])
        held = sum(memory.pages[place]) + sum(run.count for run in coming if not run.is_empty)
        _require(pool.used >= held, f"{where}: {held} pages in {pool.name}, {pool.used} counted")
    discarded = sum(map(memory.idle.__getitem__, memory.discarded))
    _require(discarded == memory.discarded_pages, f"{where}: discarded pages are counted wrongly")
    _require(on_gpu == memory.filled, f"{where}: {on_gpu} pages on the GPU, {memory.filled} counted")
    memory.check()
