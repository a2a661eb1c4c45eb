"""One row of results per job: its reported iteration in the terms of the paper, its SSD, all jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from g10sim.analysis.contexts import context_bytes
from g10sim.analysis.footprint import footprint_bytes, oversubscription
from g10sim.analysis.reported import averaged, reported, spread
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.flash_ssd import FlashSsdSpec
from g10sim.config.system import SystemSpec
from g10sim.grouping import grouped
from g10sim.records import IterationRecord, JobRecord, RunRecords, StallReason
from g10sim.results.columns import CONTEXT, IN_PLACE, Row, stall_columns
from g10sim.trace.model import Trace
from g10sim.trace.workload import Workload
from g10sim.units import cycles_to_ms

_DAYS_PER_YEAR = 365
_SECONDS_PER_YEAR = _DAYS_PER_YEAR * 86_400


def flash_metrics(record: IterationRecord, system: SystemSpec) -> Row:
    """Return the columns ``FLASH`` of an iteration that is repeated day and night; nothing without a record.

    Of several drives whose flash is modelled they are those of the slowest tier.

    Life ends when every block has been erased (or a medium without erasing rewritten) as often as rated, or
    when the host has written what the warranty covers; infinite where nothing is written.
    """
    drives = [tier.drive for tier in system.all_tiers if isinstance(tier.drive, FlashSsdSpec)]
    if record.flash is None or not drives:
        return {}
    flash, ssd = record.flash, drives[-1]
    written = flash.written_bytes
    programmed = written + flash.copied_bytes + flash.folded_bytes
    cycles = record.end - record.start
    iterations_per_year = _SECONDS_PER_YEAR * system.gpu.clock / cycles if cycles else math.inf
    yearly, programmed_yearly = written * iterations_per_year, programmed * iterations_per_year
    return {
        "ssd_written_bytes": written,
        "ssd_flash_written_bytes": programmed,
        "ssd_write_amplification": _amplification(programmed, written),
        "ssd_run_write_amplification": _amplification(flash.run_programmed_bytes, flash.run_written_bytes),
        "ssd_erased_bytes": flash.erased_bytes,
        "ssd_written_bytes_per_year": yearly,
        "ssd_drive_writes_per_day": yearly / _DAYS_PER_YEAR / ssd.logical_bytes,
        "ssd_rated_drive_writes_per_day": ssd.rated_daily_writes(),
        "ssd_years_to_rated_cycles": _years(ssd.rating.cycles * ssd.physical_bytes, programmed_yearly),
        "ssd_years_to_rated_writes": _years(ssd.rating.written * ssd.drives, yearly),
    }


def _amplification(programmed_bytes: int, written_bytes: int) -> float:
    return programmed_bytes / written_bytes if written_bytes else 1.0


def _years(budget_bytes: float, yearly_bytes: float) -> float:
    return budget_bytes / yearly_bytes if yearly_bytes else math.inf


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
    """Return one row with the columns of ``metric_columns`` for each job; an empty one where it never ran.

    There are those of the groups of ``g10sim.results.columns.FURTHER``, too, that apply.

    ``moves_ahead`` says whether the policy asks for migrations before they are demanded, ``copies_tensors``
    whether it copies whole tensors instead of using unified memory.
    """
    rounds = copies_tensors and behaviour.reported_digits == "six"
    by_job = grouped((record.job, record) for record in iterations)
    rows: list[Row] = []
    for number, job in enumerate(workload.jobs):
        own = by_job.get(number)
        if own is None:  # a job that was refused
            rows.append({})
            continue
        counted = reported(own, fastest=behaviour.reported_iteration == "fastest")
        record = averaged(counted)
        breakdown = _breakdown(record, behaviour, moves_ahead, system.kinds)
        if rounds:
            breakdown = {key: _six_digits(int(cycles), system.gpu.clock) for key, cycles in breakdown.items()}
        rows.append(
            _times(record, system.gpu.clock, job.trace, rounds=rounds)
            | breakdown
            | {
                **record.traffic,
                "page_faults": record.page_faults,
                "peak_gpu_bytes": record.peak_gpu_bytes,
                **record.peaks,
                "footprint_bytes": footprint_bytes(job.trace),
                "oversubscription": oversubscription(job.trace, system.gpu.memory),
                "events": events,
                "iterations": len(own),
            }
            | _steady(own[-1], spread(counted))
            | ({} if copies_tensors else _in_place(record, system))
            | _cpu(record)
            | dict(record.exchanged)
            | _contexts(workload, system, number)
            | _contiguous(record)
            | flash_metrics(record, system)
        )
    return rows


def _times(record: IterationRecord, clock_hz: int, trace: Trace, *, rounds: bool) -> Row:
    cycles = record.end - record.start
    if rounds:
        cycles = _six_digits(cycles, clock_hz)
    nothing = cycles == 0  # every kernel takes less than a cycle and nothing moves
    return {
        "ideal_cycles": 0 if nothing else record.ideal_cycles,
        "exec_cycles": cycles,
        "exec_ms": cycles_to_ms(cycles, clock_hz),
        "performance": 1.0 if nothing else record.ideal_cycles / cycles,
        "samples_per_s": math.inf if nothing else _samples(trace) * clock_hz / cycles,
    }


def _samples(trace: Trace) -> float:
    """Return the samples of an iteration; not a number where it has no times, and so no rate."""
    return trace.batch_size if trace.is_timed else math.nan


def _six_digits(cycles: int, clock_hz: int) -> int:
    """Cycles of a time that was written down in milliseconds with six digits (published simulator)."""
    return int(float(f"{cycles_to_ms(cycles, clock_hz):.6g}") * (clock_hz / 1000))


def _breakdown(
    record: IterationRecord, behaviour: BehaviourSpec, moves_ahead: bool, tiers: Iterable[str]
) -> Row:
    """Split the iteration into compute alone, compute with transfers in flight, and stall (figure 12).

    The three add up to ``exec_cycles``, and the stalls by reason to ``stall_cycles``, except with breakdown
    ``in_flight``, which is how the published tables were made: compute is the time without transfers in
    flight; where a kernel stalls for longer than it has transfers in flight, the difference is counted
    both as overlap and as stall; and designs that do not move ahead report stall less overlap as stall.
    """
    by_reason = dict.fromkeys(stall_columns(tiers), 0)
    for reason, cycles in record.stalls:
        by_reason[reason.column] = by_reason.get(reason.column, 0) + cycles
    stall, overlap = sum(by_reason.values()), record.overlap_cycles
    compute = record.compute_cycles - overlap
    if behaviour.breakdown == "in_flight":
        compute = record.end - record.start - record.in_flight_cycles
        stall += overlap - (record.in_flight_cycles - stall)
        if not moves_ahead:
            stall, overlap = stall - overlap, 0
    return {"compute_cycles": compute, "overlap_cycles": overlap, "stall_cycles": stall, **by_reason}


def _steady(last: IterationRecord, apart: float) -> Row:
    """Return whether iterations go on as the last ones went; nothing where there is only one."""
    if last.steady is None:
        return {}
    period = {} if last.period is None else {"period": last.period}
    return {"steady": last.steady, **period, "spread": apart}


def _in_place(record: IterationRecord, system: SystemSpec) -> Row:
    if not any(tier.kernel_access for tier in system.all_tiers):
        return {}
    return {column: getattr(record, column) for column in IN_PLACE.names}


def _cpu(record: IterationRecord) -> Row:
    if record.cpu is None:
        return {}
    stalled = {StallReason.CPU.column: dict(record.stalls).get(StallReason.CPU, 0)}
    return {"cpu_cycles": record.cpu.busy_cycles, "cpu_fetched_bytes": record.cpu.fetched_bytes, **stalled}


def _contexts(workload: Workload, system: SystemSpec, job: int) -> Row:
    if not system.gpu.beside_tensors:
        return {}
    return dict.fromkeys(CONTEXT.names, context_bytes(workload, system, job))


def _contiguous(record: IterationRecord) -> Row:
    if record.contiguous is None:
        return {}
    fragmentation = record.contiguous.reserved_gpu_bytes / max(1, record.peak_gpu_bytes)
    return {**asdict(record.contiguous), "fragmentation": fragmentation}


def describe_jobs(
    workload: Workload, system: SystemSpec, behaviour: BehaviourSpec, records: RunRecords
) -> list[Row]:
    """Return the columns ``JOBS`` for each job, in job order.

    The last three are those of all jobs together: cycles from the first arrival to the last end, the share of
    these that the GPUs of all jobs compute, and the samples that they train on in a second. The slowdown of a
    job is its time from arrival to end over the time that its kernels take by themselves. The memory that all
    jobs on its GPU used together is the most in the iteration that results report of it.
    """
    used_gpus = len({job.gpu for job in workload.jobs})
    ran = [record for record in records.jobs if not record.refused]
    first = min((record.arrival for record in records.jobs), default=0)
    makespan = max((record.end for record in ran), default=first) - first
    computed = sum(record.compute_cycles for record in records.iterations)
    by_job = grouped((record.job, record) for record in records.iterations)
    samples = sum(
        _samples(workload.jobs[record.job].trace) * len(by_job.get(record.job, ())) for record in ran
    )
    together: Row = {
        "makespan_cycles": makespan,
        "gpu_utilization": computed / (makespan * used_gpus) if makespan else 0.0,
        "total_samples_per_s": samples * system.gpu.clock / makespan if makespan else 0.0,
    }
    return [_job_row(record, by_job.get(record.job, ()), behaviour) | together for record in records.jobs]


def _job_row(record: JobRecord, iterations: Sequence[IterationRecord], behaviour: BehaviourSpec) -> Row:
    row: Row = {
        "refused": int(record.refused),
        "arrival_cycles": record.arrival,
        "start_cycles": record.start,
        "end_cycles": record.end,
    }
    ideal_cycles = sum(iteration.ideal_cycles for iteration in iterations)
    if ideal_cycles:
        row["slowdown"] = (record.end - record.arrival) / ideal_cycles
    if iterations:
        counted = reported(iterations, fastest=behaviour.reported_iteration == "fastest")
        row["peak_gpu_bytes_of_all"] = max(record.peak_gpu_bytes_of_all for record in counted)
    return row
