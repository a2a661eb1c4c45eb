"""The jobs of cells, and the trace files that they replay."""

from __future__ import annotations

from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from g10sim.config.behaviour import GPG
from g10sim.config.data import find_file, find_files
from g10sim.config.document import Document
from g10sim.config.run import JobSpec, RunConfig
from g10sim.errors import choices_text
from g10sim.experiment.cells import CellJob, TraceInput
from g10sim.experiment.known_traces import KnownTraces, TraceFacts
from g10sim.files import data_hash
from g10sim.grouping import grouped
from g10sim.trace.check import cut_durations, first_on_cpu, other_gpu, told_of_other_gpu, untimed
from g10sim.trace.format import load_trace, trace_hash
from g10sim.trace.repetition import each

if TYPE_CHECKING:
    from g10sim.analysis.gpus import GpuTimingSpec


class Workloads:
    """Finds and reads the trace files of a configuration, each once.

    ``count`` is the number of traces to run one at a time, or 1 for jobs that run together. ``timed_for``
    holds the GPU that kernel times are for, by the name of the trace and the GPU of the system, where these
    are not the same. Traces that are ``known`` are not read again.
    """

    def __init__(self, document: Document, config: RunConfig, known: KnownTraces) -> None:
        self._document, self._known = document, known
        self._seen: dict[tuple[str, Path, str, int], tuple[TraceInput, TraceFacts]] = {}
        self._loaded: dict[tuple[Path, str], tuple[TraceFacts, list[int], int]] = {}
        self._of_times: dict[tuple[str, str, int], str] = {}
        self.timed_for: dict[tuple[str, str], str] = {}
        found: list[tuple[str, Path]] = []
        for number, pattern in enumerate(config.workload.trace):
            with document.blaming(("workload", "trace", number)):
                found += find_files(pattern, document.directory)
        self._files = list(dict.fromkeys(found))
        self.count = max(1, len(self._files))

    def jobs(self, config: RunConfig, position: int, seed: int) -> tuple[CellJob, ...]:
        """Jobs of a cell: one with the trace at a position, or those of the configuration.

        The ``seed`` decides when jobs arrive that do so at random.
        """
        workload = config.workload
        if not workload.jobs:
            name, path = self._files[position]
            trace = self._input(name, path, config)
            gpus = range(workload.replicas or 1)
            return tuple(CellJob(trace, workload.iterations, gpu) for gpu in gpus)
        found: list[CellJob] = []
        for number, job in enumerate(workload.jobs):
            with self._document.blaming(("workload", "jobs", number, "trace")):
                path = find_file(job.trace, self._document.directory)
                trace = self._input(job.trace, path, config)
            times = arrivals(job, seed, number)
            found += [CellJob(trace, job.iterations, job.gpu, time, job.priority) for time in times]
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the kernel times of the traces."""
        alike = grouped(((timed_for, gpu), name) for (name, gpu), timed_for in self.timed_for.items())
        others = (told_of_other_gpu(names, *gpus) for gpus, names in alike.items())
        return (*self._of_times.values(), *others)

    def _input(self, name: str, path: Path, config: RunConfig) -> TraceInput:
        gpu, clock = self._timed_gpu(config), config.system.gpu.clock
        gpu_name = "" if gpu is None else gpu.name
        if (name, path, gpu_name, clock) not in self._seen:
            described = "" if gpu is None else data_hash(gpu.model_dump_json())
            facts = self._known.facts(path, lambda: self._facts(name, path, gpu, clock), described, clock)
            what = facts.sha256, facts.model, facts.batch_size, facts.sends
            found = TraceInput(name, str(path.resolve()), *what, gpu_name, described)
            self._seen[name, path, gpu_name, clock] = found, facts
        found, facts = self._seen[name, path, gpu_name, clock]
        if facts.on_cpu:
            from g10sim.sim.preparation import check_processor  # loads the simulator

            check_processor(facts.on_cpu, config.system)
        if facts.times:
            self._of_times.setdefault((found.path, gpu_name, clock), f"{name}: {facts.times}")
        timed_for = "" if gpu_name else other_gpu(facts.origin, config.system.gpu.name)
        if timed_for and config.compat != GPG:
            self.timed_for[name, config.system.gpu.name] = timed_for
        return found

    def _facts(self, name: str, path: Path, gpu: GpuTimingSpec | None, clock: int) -> TraceFacts:
        """Read a trace, unless it was for another clock. Raises TraceError, or ConfigError for its times."""
        key = path, "" if gpu is None else gpu.name
        if key not in self._loaded:
            trace = given = load_trace(path)
            if gpu is not None:
                from g10sim.analysis.gpus import retimed

                with self._document.blaming(("workload", "kernel_times")):
                    trace = retimed(given, gpu, name)
            facts = TraceFacts(
                sha256=trace_hash(given),
                model=trace.model,
                batch_size=trace.batch_size,
                sends=bool(given.link_kernels),
                origin=dict(trace.origin),
                on_cpu=first_on_cpu(given),
                times=untimed(trace),
            )
            self._loaded[key] = facts, each(trace.kernels, attrgetter("duration")), trace.ticks_per_second
        facts, durations, ticks_per_second = self._loaded[key]
        times = facts.times or cut_durations(durations, ticks_per_second, clock)
        return facts.model_copy(update={"times": times})

    def _timed_gpu(self, config: RunConfig) -> GpuTimingSpec | None:
        """Return the GPU whose times kernels are given; None where traces keep their own."""
        if config.workload.kernel_times == "trace":
            return None
        from g10sim.analysis.gpus import gpu_names, load_gpu  # loads tables that few runs need

        name = config.system.gpu.name
        if name not in gpu_names():
            allowed = f"trace, or a system with one of {choices_text(gpu_names())}"
            message = f"found system, whose gpu.name is '{name}'; allowed: {allowed}"
            raise self._document.error(("workload", "kernel_times"), message)
        return load_gpu(name)


def arrivals(job: JobSpec, seed: int, position: int) -> tuple[int, ...]:
    """Arrival of every copy of a job in picoseconds, the first at ``job.arrival``.

    A Poisson process has exponential gaps; they depend on the ``seed`` of the run and the job's ``position``
    among the jobs alone.
    """
    gaps = [job.interval] * (job.copies - 1)
    if job.arrivals == "poisson":
        generator = np.random.default_rng([seed, position])
        gaps = [round(gap) for gap in generator.exponential(job.interval, job.copies - 1)]
    return tuple(accumulate(gaps, initial=job.arrival))
