"""What several jobs that share a machine make of it, together and each."""

from __future__ import annotations

from collections.abc import Sequence

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.records import IterationRecord, JobRecord
from g10sim.stats.summary import reported_iteration
from g10sim.trace.workload import Workload

JOB_METRIC_COLUMNS: tuple[str, ...] = (
    "refused",
    "arrival_cycles",
    "start_cycles",
    "end_cycles",
    "slowdown",
    "peak_gpu_bytes_of_all",
    "makespan_cycles",
    "gpu_utilization",
    "total_samples_per_s",
)

JobRow = dict[str, int | float]


def describe_jobs(
    workload: Workload,
    system: SystemSpec,
    jobs: Sequence[JobRecord],
    iterations: Sequence[IterationRecord],
    behaviour: BehaviourSpec,
) -> list[JobRow]:
    """Return the columns JOB_METRIC_COLUMNS for each job, in job order.

    The last three are those of all jobs together: cycles from the first arrival to the last end, the share of
    these that the GPUs of all jobs compute, and the samples that they train on in a second. The slowdown of a
    job is its time from arrival to end over the time that its kernels take by themselves. The memory that all
    jobs on its GPU used together is the most in the iteration that results report of it.
    """
    used_gpus = len({job.gpu for job in workload.jobs})
    ran = [record for record in jobs if not record.refused]
    first = min((record.arrival for record in jobs), default=0)
    makespan = max((record.end for record in ran), default=first) - first
    computed = sum(record.compute_cycles for record in iterations)
    samples = sum(
        workload.jobs[record.job].trace.batch_size * workload.jobs[record.job].iterations for record in ran
    )
    together: JobRow = {
        "makespan_cycles": makespan,
        "gpu_utilization": computed / (makespan * used_gpus) if makespan else 0.0,
        "total_samples_per_s": samples * system.gpu.clock / makespan if makespan else 0.0,
    }
    by_job: dict[int, list[IterationRecord]] = {record.job: [] for record in jobs}
    for iteration in iterations:
        by_job[iteration.job].append(iteration)
    return [_row(record, by_job[record.job], behaviour) | together for record in jobs]


def _row(record: JobRecord, iterations: Sequence[IterationRecord], behaviour: BehaviourSpec) -> JobRow:
    row: JobRow = {
        "refused": int(record.refused),
        "arrival_cycles": record.arrival,
        "start_cycles": record.start,
        "end_cycles": record.end,
    }
    ideal_cycles = sum(iteration.ideal_cycles for iteration in iterations)
    if ideal_cycles:
        row["slowdown"] = (record.end - record.arrival) / ideal_cycles
    if iterations:
        row["peak_gpu_bytes_of_all"] = reported_iteration(iterations, behaviour).peak_gpu_bytes_of_all
    return row
