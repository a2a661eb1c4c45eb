"""What the simulator emits: plain immutable records, interpreted elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Location(IntEnum):
    """Where pages of a tensor are."""

    NONE = 0
    GPU = 1
    HOST = 2
    FLASH = 3


class StallReason(StrEnum):
    """Why a kernel waited."""

    FAULT_HOST = "fault_host"
    FAULT_FLASH = "fault_flash"
    FIRST_TOUCH = "first_touch"
    LATE_PREFETCH = "late_prefetch"
    EVICTION = "eviction"
    ALLOCATION = "allocation"
    SYNCHRONIZATION = "synchronization"
    LINK_CONTENTION = "link_contention"
    BARRIER = "barrier"
    COMPUTE_SHARING = "compute_sharing"
    RECOMPUTATION = "recomputation"


class MigrationCause(StrEnum):
    """Why pages moved."""

    PAGE_FAULT = "page_fault"
    PREFETCH = "prefetch"
    PLANNED_EVICTION = "planned_eviction"
    MAKING_ROOM = "making_room"


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One execution of a kernel; times in cycles, faults in pages, occupancy in pages at its end.

    ``end - start`` equals ``compute_cycles`` plus the sum of ``stalls``. Transfers were in flight for
    ``in_flight_cycles`` of it, and for ``overlap_cycles`` of the computing. ``in_transfer_pages`` were on
    their way when it started.
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
    host_fault_pages: int
    flash_fault_pages: int
    first_touch_pages: int
    gpu_pages: int
    host_pages: int


@dataclass(frozen=True, slots=True)
class MigrationRecord:
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
class MemoryRecord:
    """Bytes in use at a time (cycles)."""

    time: int
    gpu: int
    gpu_bytes: int
    host_bytes: int
    flash_bytes: int


@dataclass(frozen=True, slots=True)
class JobRecord:
    """When a job arrived, was let on its GPU, and left it (cycles); a refused job was never let on it."""

    job: int
    gpu: int
    arrival: int
    start: int
    end: int
    refused: bool = False


@dataclass(frozen=True, slots=True)
class ContiguousRecord:
    """Contiguous memory during an iteration, in bytes.

    ``reserved_gpu_bytes`` is what the allocator needed at some time, ``largest_hole_bytes`` the largest hole
    when most was in use, ``peak_pinned_bytes`` the most pinned host memory, of all jobs.
    """

    reserved_gpu_bytes: int
    largest_hole_bytes: int
    peak_pinned_bytes: int


@dataclass(frozen=True, slots=True)
class FlashRecord:
    """What the SSD did during an iteration, in bytes and for all jobs, where its flash is modelled.

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


@dataclass(frozen=True, slots=True)
class IterationRecord:
    """One iteration of one job: times in cycles, traffic in bytes, page faults in pages.

    ``peak_gpu_bytes`` is what this job used of its GPU, ``peak_gpu_bytes_of_all`` what all jobs on it used.

    ``contiguous`` is there for designs that copy whole tensors, ``flash`` where the SSD's is modelled.
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
    ssd_to_gpu_bytes: int
    gpu_to_ssd_bytes: int
    host_to_gpu_bytes: int
    gpu_to_host_bytes: int
    page_faults: int
    peak_gpu_bytes: int
    peak_host_bytes: int
    contiguous: ContiguousRecord | None = None
    peak_gpu_bytes_of_all: int = 0
    flash: FlashRecord | None = None
