"""Records that the simulator emits: plain and immutable, interpreted elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from g10sim.places import tier_word
from g10sim.reasons import StallReason as StallReason


class Location(int):
    """A place where pages of a tensor can be: an index and a name, with one object for each such pair.

    Index 0 is nowhere, 1 the GPU; memory tiers follow, the fastest first.
    """

    name: str
    NONE: ClassVar[Location]
    """Nowhere: pages without contents."""
    GPU: ClassVar[Location]
    """The GPU."""
    _known: ClassVar[dict[tuple[int, str], Location]] = {}

    def __new__(cls, index: int, name: str) -> Location:
        """Return the place with this index and name."""
        place = cls._known.get((index, name))
        if place is None:
            place = cls._known[index, name] = super().__new__(cls, index)
            place.name = name
        return place

    def __reduce__(self) -> tuple[type[Location], tuple[int, str]]:
        """Return what makes the same place again."""
        return Location, (int(self), self.name)

    def __repr__(self) -> str:
        """Write the place with its name."""
        return f"<Location.{self.name}: {int(self)}>"


Location.NONE = Location(0, "NONE")
Location.GPU = Location(1, "GPU")


class MigrationCause(StrEnum):
    """Cause for which pages moved; ``words`` say it of a tensor."""

    words: str

    PAGE_FAULT = "page_fault", "demanded"
    PREFETCH = "prefetch", "prefetched"
    PLANNED_EVICTION = "planned_eviction", "evicted as planned"
    MAKING_ROOM = "making_room", "pushed out to make room"

    def __new__(cls, value: str, words: str) -> MigrationCause:
        """Make a member that compares as its value."""
        made = str.__new__(cls, value)
        made._value_, made.words = value, words
        return made


Tiers = Mapping[str, str]
"""Kinds (memory or ssd) of a system's memory tiers by name, the fastest first."""

USUAL_TIERS: Tiers = {"host": "memory", "ssd": "ssd"}
"""Those of a system that lists none: host memory and an SSD."""


EXCHANGED_COLUMN = "exchanged_bytes"
"""Column of the bytes that a replica sent to others, where a design partitions the training."""


def traffic_columns(tiers: Iterable[str]) -> list[str]:
    """Return the columns of bytes that moved, the slowest tier first, in before out."""
    pairs = ((f"{name}_to_gpu_bytes", f"gpu_to_{name}_bytes") for name in reversed(tuple(tiers)))
    return [column for pair in pairs for column in pair]


def memory_columns(tiers: Tiers, form: str) -> list[str]:
    """Return columns of a form such as ``peak_{}_bytes`` for the tiers of kind memory."""
    return [form.format(name) for name, kind in tiers.items() if kind == "memory"]


def word_columns(tiers: Iterable[str], form: str) -> list[str]:
    """Return columns of a form such as ``{}_fault_pages`` for the words of all tiers."""
    return [form.format(tier_word(name)) for name in tiers]


class TierRecord:
    """A record some of whose columns depend on the memory tiers of the system.

    A field that maps names of columns to values stands for these columns.
    """

    __slots__ = ()

    @classmethod
    def column_names(cls, tiers: Tiers) -> list[str]:
        """Return the names of all columns on a system with these tiers, in order."""
        by_field = {
            "traffic": traffic_columns(tiers),
            "peaks": memory_columns(tiers, "peak_{}_bytes"),
            "fault_pages": word_columns(tiers, "{}_fault_pages"),
            "tier_pages": memory_columns(tiers, "{}_pages"),
            "tier_bytes": word_columns(tiers, "{}_bytes"),
        }
        names = (by_field.get(field.name, [field.name]) for field in fields(cls))  # type: ignore[arg-type]
        return [name for group in names for name in group]

    def columns(self) -> dict[str, Any]:
        """Return every column with its value, in order."""
        found: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            found.update(value if isinstance(value, Mapping) else {one.name: value})
        return found

    def __repr__(self) -> str:
        """Write the record by its columns."""
        columns = ", ".join(f"{name}={value!r}" for name, value in self.columns().items())
        return f"{type(self).__name__}({columns})"


@dataclass(frozen=True, slots=True, repr=False)
class KernelRecord(TierRecord):
    """One execution of a kernel; times in cycles, faults in pages, occupancy in pages at its end.

    ``end - start`` equals ``compute_cycles`` plus the sum of ``stalls``. Transfers were in flight for
    ``in_flight_cycles`` of it, and for ``overlap_cycles`` of the computing. ``in_transfer_pages`` were on
    their way when it started. ``fault_pages`` has a column for each tier, ``tier_pages`` one for each tier of
    kind memory.
    """

    job: int
    gpu: int
    iteration: int
    kernel: int
    start: int
    end: int
    compute_cycles: int
    overlap_cycles: int
    in_flight_cycles: int
    stalls: tuple[tuple[StallReason, int], ...]
    in_transfer_pages: int
    fault_pages: Mapping[str, int]
    first_touch_pages: int
    gpu_pages: int
    tier_pages: Mapping[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class MigrationRecord(TierRecord):
    """Pages of one tensor of a job that moved between two locations during [start, end] (cycles).

    Source NONE is an allocation, target NONE the dropping of dead pages.
    """

    gpu: int
    tensor: int
    source: Location
    target: Location
    cause: MigrationCause
    start: int
    end: int
    size_bytes: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class TrafficRecord:
    """Bytes of any tensors that moved between two locations at a steady rate during [start, end] (cycles)."""

    gpu: int
    source: Location
    target: Location
    start: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """Bytes that one kernel read and wrote where they lie, in a memory tier, during [start, end] (cycles)."""

    gpu: int
    job: int
    kernel: int
    tier: Location
    start: int
    end: int
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class MemoryRecord(TierRecord):
    """Bytes in use at a time (cycles); ``tier_bytes`` has a column for each tier."""

    time: int
    gpu: int
    gpu_bytes: int
    tier_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Cycles at which a job arrived, was let on its GPU, and left it; a refused job was never let on it.

    ``drops`` counts the moves that dropped contents of its tensors.
    """

    job: int
    gpu: int
    arrival: int
    start: int
    end: int
    refused: bool = False
    drops: int = 0


@dataclass(frozen=True, slots=True)
class ContiguousRecord:
    """Contiguous memory during an iteration, in bytes.

    ``reserved_gpu_bytes`` is what the allocator needed at some time, ``largest_hole_bytes`` the largest hole
    when most was in use, ``peak_pinned_bytes`` the most pinned host memory, of all jobs. ``mean_gpu_bytes``
    is the GPU memory in use, averaged over time.
    """

    reserved_gpu_bytes: int
    largest_hole_bytes: int
    peak_pinned_bytes: int
    mean_gpu_bytes: float


@dataclass(frozen=True, slots=True)
class CpuRecord:
    """Kernels of a job on the CPU during an iteration, whichever iteration they belong to.

    They computed for ``busy_cycles``; ``fetched_bytes`` came to host memory from other tiers for them.
    """

    busy_cycles: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True)
class BesideRecord:
    """One execution of a kernel on the CPU, or of a collective: its launch, begin and end (cycles)."""

    job: int
    gpu: int
    iteration: int
    kernel: int
    launch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FlashRecord:
    """Work of the SSD during an iteration, in bytes and for all jobs, where its flash is modelled.

    ``written_bytes`` came from hosts, ``copied_bytes`` were moved by garbage collection, ``folded_bytes``
    from the part with one bit per cell to the rest; ``erased_bytes`` are whole superblocks.
    ``run_written_bytes`` came from hosts since time started, ``run_programmed_bytes`` went to flash for it.
    """

    read_bytes: int
    written_bytes: int
    copied_bytes: int
    folded_bytes: int
    erased_bytes: int
    run_written_bytes: int
    run_programmed_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class IterationRecord(TierRecord):
    """One iteration of one job: times in cycles, traffic in bytes, page faults in pages.

    ``peak_gpu_bytes`` is what this job used of its GPU, ``peak_gpu_bytes_of_all`` what all jobs on it used.
    ``traffic`` has a column for each tier and direction, ``peaks`` one for each tier of kind memory.
    ``contiguous`` is there for designs that copy whole tensors, ``flash`` where the SSD's is modelled, and
    ``cpu`` where the system has one.
    ``in_place_read_bytes`` and ``in_place_written_bytes`` are what kernels used in memory tiers, each byte as
    often as they did. Where replicas have collectives, ``exchanged`` has the column of the bytes that this
    one sent to others. ``steady`` says whether those to come go like the last ones; the first one cannot
    tell. ``period``: the last that many iterations come again exactly; None where that is not known.
    """

    job: int
    gpu: int
    iteration: int
    start: int
    end: int
    ideal_cycles: int
    compute_cycles: int
    overlap_cycles: int
    in_flight_cycles: int
    stalls: tuple[tuple[StallReason, int], ...]
    traffic: Mapping[str, int]
    page_faults: int
    peak_gpu_bytes: int
    peaks: Mapping[str, int]
    contiguous: ContiguousRecord | None = None
    peak_gpu_bytes_of_all: int = 0
    flash: FlashRecord | None = None
    cpu: CpuRecord | None = None
    steady: bool | None = None
    period: int | None = None
    in_place_read_bytes: int = 0
    in_place_written_bytes: int = 0
    exchanged: Mapping[str, int] = field(default_factory=dict)

    @property
    def uses_in_place(self) -> bool:
        """Return whether kernels used tensors where they lie."""
        return bool(self.in_place_read_bytes or self.in_place_written_bytes)


@dataclass(frozen=True)
class RunRecords:
    """Everything a run emitted; ``events`` counts kernel executions and steps of the transfers.

    ``note`` is the policy's remark on the run, ``tiers`` are the memory tiers of the system.
    """

    iterations: tuple[IterationRecord, ...]
    kernels: tuple[KernelRecord, ...] = ()
    migrations: tuple[MigrationRecord, ...] = ()
    memory: tuple[MemoryRecord, ...] = ()
    events: int = 0
    jobs: tuple[JobRecord, ...] = ()
    traffic: tuple[TrafficRecord, ...] = ()
    accesses: tuple[AccessRecord, ...] = ()
    note: str = ""
    tiers: Tiers = field(default_factory=lambda: USUAL_TIERS)
    cpu_kernels: tuple[BesideRecord, ...] = ()
    collectives: tuple[BesideRecord, ...] = ()
