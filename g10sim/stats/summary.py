"""One row of results per job: the reported iteration in the terms of the paper's evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from g10sim.analysis.footprint import footprint_bytes, oversubscription
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.records import IterationRecord, StallReason
from g10sim.stats.flash import flash_metrics
from g10sim.trace.workload import Workload
from g10sim.units import cycles_to_ms

Row = dict[str, int | float]

STALL_COLUMNS = tuple(f"stall_{reason.value}_cycles" for reason in StallReason)

METRIC_COLUMNS: tuple[str, ...] = (
    "ideal_cycles",
    "exec_cycles",
    "exec_ms",
    "performance",
    "samples_per_s",
    "compute_cycles",
    "overlap_cycles",
    "stall_cycles",
    *STALL_COLUMNS,
    "ssd_to_gpu_bytes",
    "gpu_to_ssd_bytes",
    "host_to_gpu_bytes",
    "gpu_to_host_bytes",
    "page_faults",
    "peak_gpu_bytes",
    "peak_host_bytes",
    "footprint_bytes",
    "oversubscription",
    "events",
)

CONTIGUOUS_COLUMNS = ("reserved_gpu_bytes", "fragmentation", "largest_hole_bytes", "peak_pinned_bytes")
"""Further columns of designs that copy whole tensors."""


def summarize(
    workload: Workload,
    system: SystemSpec,
    behaviour: BehaviourSpec,
    iterations: Iterable[IterationRecord],
    *,
    events: int,
    moves_ahead: bool,
    copies_tensors: bool = False,
) -> list[Row]:
    """Return one row with the columns METRIC_COLUMNS for each job; an empty one where it never ran.

    Designs that copy whole tensors have the CONTIGUOUS_COLUMNS, too, and systems whose SSD is modelled as
    flash the FLASH_COLUMNS.

    ``moves_ahead`` says whether the policy asks for migrations before they are demanded, ``copies_tensors``
    whether it copies whole tensors instead of using unified memory.
    """
    rounds = copies_tensors and behaviour.reported_digits == "six"
    by_job: dict[int, list[IterationRecord]] = {number: [] for number in range(len(workload.jobs))}
    for record in iterations:
        by_job[record.job].append(record)
    rows: list[Row] = []
    for number, job in enumerate(workload.jobs):
        if not by_job[number]:  # a job that was refused
            rows.append({})
            continue
        record = reported_iteration(by_job[number], behaviour)
        rows.append(
            _times(record, system.gpu.clock, job.trace.batch_size, rounds=rounds)
            | _rounded(_breakdown(record, behaviour, moves_ahead), system.gpu.clock, rounds=rounds)
            | _traffic(record)
            | {
                "footprint_bytes": footprint_bytes(job.trace),
                "oversubscription": oversubscription(job.trace, system.gpu.memory),
                "events": events,
            }
            | _contiguous(record)
            | flash_metrics(record, system)
        )
    return rows


def reported_iteration(records: Sequence[IterationRecord], behaviour: BehaviourSpec) -> IterationRecord:
    """Pick the iteration that results report: the last, or the fastest (of equal ones the last)."""
    if behaviour.reported_iteration == "last":
        return records[-1]
    return min(reversed(records), key=lambda record: record.end - record.start)


def _times(record: IterationRecord, clock_hz: int, batch_size: int, *, rounds: bool) -> Row:
    cycles = record.end - record.start
    if rounds:
        cycles = _six_digits(cycles, clock_hz)
    if cycles == 0:  # every kernel takes less than a cycle and nothing moves
        return {
            "ideal_cycles": 0,
            "exec_cycles": 0,
            "exec_ms": 0.0,
            "performance": 1.0,
            "samples_per_s": math.inf,
        }
    return {
        "ideal_cycles": record.ideal_cycles,
        "exec_cycles": cycles,
        "exec_ms": cycles_to_ms(cycles, clock_hz),
        "performance": record.ideal_cycles / cycles,
        "samples_per_s": batch_size * clock_hz / cycles,
    }


def _rounded(breakdown: Row, clock_hz: int, *, rounds: bool) -> Row:
    return (
        {key: _six_digits(int(value), clock_hz) for key, value in breakdown.items()} if rounds else breakdown
    )


def _six_digits(cycles: int, clock_hz: int) -> int:
    """Cycles of a time that was written down in milliseconds with six digits (published simulator)."""
    return int(float(f"{cycles_to_ms(cycles, clock_hz):.6g}") * (clock_hz / 1000))


def _breakdown(record: IterationRecord, behaviour: BehaviourSpec, moves_ahead: bool) -> Row:
    """Split the iteration into compute alone, compute with transfers in flight, and stall (figure 12).

    The three add up to ``exec_cycles``, and the stalls by reason to ``stall_cycles``, except with breakdown
    ``in_flight``, which is how the published tables were made: compute is the time without transfers in
    flight; where a kernel stalls for longer than it has transfers in flight, the difference is counted
    both as overlap and as stall; and designs that do not move ahead report stall less overlap as stall.
    """
    by_reason = dict.fromkeys(STALL_COLUMNS, 0)
    for reason, cycles in record.stalls:
        by_reason[f"stall_{reason.value}_cycles"] += cycles
    stall, overlap = sum(by_reason.values()), record.overlap_cycles
    compute = record.compute_cycles - overlap
    if behaviour.breakdown == "in_flight":
        compute = record.end - record.start - record.in_flight_cycles
        stall += overlap - (record.in_flight_cycles - stall)
        if not moves_ahead:
            stall, overlap = stall - overlap, 0
    return {"compute_cycles": compute, "overlap_cycles": overlap, "stall_cycles": stall, **by_reason}


def _contiguous(record: IterationRecord) -> Row:
    if record.contiguous is None:
        return {}
    figures = record.contiguous
    return {
        "reserved_gpu_bytes": figures.reserved_gpu_bytes,
        "fragmentation": figures.reserved_gpu_bytes / max(1, record.peak_gpu_bytes),
        "largest_hole_bytes": figures.largest_hole_bytes,
        "peak_pinned_bytes": figures.peak_pinned_bytes,
    }


def _traffic(record: IterationRecord) -> Row:
    return {
        "ssd_to_gpu_bytes": record.ssd_to_gpu_bytes,
        "gpu_to_ssd_bytes": record.gpu_to_ssd_bytes,
        "host_to_gpu_bytes": record.host_to_gpu_bytes,
        "gpu_to_host_bytes": record.gpu_to_host_bytes,
        "page_faults": record.page_faults,
        "peak_gpu_bytes": record.peak_gpu_bytes,
        "peak_host_bytes": record.peak_host_bytes,
    }
