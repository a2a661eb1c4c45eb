"""Expands a run configuration into its cells, in a fixed order."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from g10sim.config.data import find_file, find_files
from g10sim.config.document import Document
from g10sim.config.load import run_config, with_values
from g10sim.config.run import JobSpec, PolicySpec, RunConfig, WorkloadSpec
from g10sim.config.sharing import ExchangeSpec
from g10sim.errors import ConfigError, PolicyError
from g10sim.experiment.cells import FILE_PARAMETER_SUFFIX, Cell, CellJob, TraceInput, make_policy
from g10sim.trace.format import load_trace, trace_hash

_POLICY_KEY = re.compile(r"policies\.(\d+)\.")


@dataclass(frozen=True)
class Experiment:
    """A checked run configuration with its cells. ``config`` is that without any swept value."""

    config: RunConfig
    cells: tuple[Cell, ...]


def expand(document: Document, *, check: bool = False) -> Experiment:
    """Check a configuration with every combination of swept values and list its cells.

    Order: traces, then combinations (the last key varies fastest), then policies, then seeds. A swept
    parameter of one policy leaves the others' cells alone. Raises ConfigError, PolicyError or TraceError.
    """
    config = run_config(document)
    made: set[str] = set()
    combinations = [
        _Combination(document, dict(zip(config.sweep, values, strict=True)), made)
        for values in itertools.product(*config.sweep.values())
    ]
    workloads = _Workloads(document, config)
    labels = [_label(policy, config.policies) for policy in config.policies]
    entries = _distinct(combinations)
    has_replicas = config.workload.replicas is not None or "workload.replicas" in config.sweep
    cells = (
        Cell(
            index=0,
            name=config.name,
            label=labels[number],
            jobs=workloads.jobs(combination.config, position, seed),
            system=combination.config.system,
            behaviour=combination.config.compat,
            policy=combination.policies[number],
            swept=combination.swept_for(number),
            variation=combination.config.workload.variation,
            sharing=combination.config.workload.sharing,
            seed=seed,
            tables=config.tables,
            check=check,
            exchange=_exchange(combination.config.workload),
            one_job=not (config.workload.jobs or has_replicas),
        )
        for position in range(workloads.count)
        for combination, number in entries
        for seed in combination.config.seeds
    )
    return Experiment(config, tuple(replace(cell, index=index) for index, cell in enumerate(cells)))


def _distinct(combinations: Sequence[_Combination]) -> list[tuple[_Combination, int]]:
    """Pair combinations with policies, leaving out where only another policy's parameter differs."""
    found: dict[tuple[int, tuple[str, ...]], tuple[_Combination, int]] = {}
    for combination in combinations:
        for number in range(len(combination.policies)):
            swept = tuple(combination.swept_for(number).values())
            found.setdefault((number, swept), (combination, number))
    return list(found.values())


def _label(policy: PolicySpec, all_policies: Sequence[PolicySpec]) -> str:
    """Name of a policy in results: its key, with its parameters where the key alone is ambiguous."""
    if sum(other.name == policy.name for other in all_policies) == 1:
        return policy.name
    parameters = ", ".join(f"{key}={value}" for key, value in (policy.model_extra or {}).items())
    return f"{policy.name}({parameters})" if parameters else policy.name


class _Combination:
    """One combination of swept values: the configuration it gives, checked, and its policies.

    ``policies`` are names and parameters, with files found. ``made`` has those that other combinations made.
    """

    def __init__(self, document: Document, values: Mapping[str, Any], made: set[str]) -> None:
        self._document = with_values(document, dict(values), ("sweep",)) if values else document
        self._text = {key: _text(value) for key, value in values.items()}
        self.config = run_config(self._document)
        self.policies = [self._checked(number, made) for number in range(len(self.config.policies))]

    def swept_for(self, policy: int) -> dict[str, str]:
        """Swept values as text; empty for a parameter of another policy."""
        found = dict(self._text)
        for key in found:
            match = _POLICY_KEY.match(key)
            if match is not None and int(match.group(1)) != policy:
                found[key] = ""
        return found

    def _checked(self, number: int, made: set[str]) -> dict[str, Any]:
        mapping = self.config.policies[number].as_mapping()
        for key, value in mapping.items():
            if key.endswith(FILE_PARAMETER_SUFFIX) and isinstance(value, str):
                with self._document.blaming(("policies", number, key)):
                    mapping[key] = str(find_file(value, self._document.directory))
        try:
            for seed in self.config.seeds:
                key = json.dumps([mapping, seed], sort_keys=True, default=str)
                if key not in made:
                    make_policy(mapping, seed)
                    made.add(key)
        except (ConfigError, PolicyError) as error:
            raise self._document.error(_blamed(number, mapping, str(error)), str(error)) from error
        return mapping


def _blamed(number: int, mapping: Mapping[str, Any], message: str) -> tuple[str | int, ...]:
    """Path of the parameter that a message of the registry names, else of the policy."""
    for key in mapping:
        if key != "name" and re.search(rf"(?:'{re.escape(key)}'|\b{re.escape(key)}:)", message):
            return ("policies", number, key)
    return ("policies", number)


class _Workloads:
    """Finds and reads the trace files of a configuration, each once.

    ``count`` is the number of traces to run one at a time, or 1 for jobs that run together.
    """

    def __init__(self, document: Document, config: RunConfig) -> None:
        self._document = document
        self._read: dict[Path, tuple[str, str, int]] = {}
        self._files = self._found(config.workload.trace)
        self.count = max(1, len(self._files))

    def _found(self, patterns: Sequence[str]) -> list[tuple[str, Path]]:
        found: list[tuple[str, Path]] = []
        for number, pattern in enumerate(patterns):
            with self._document.blaming(("workload", "trace", number)):
                found += find_files(pattern, self._document.directory)
        return list(dict.fromkeys(found))

    def jobs(self, config: RunConfig, position: int, seed: int) -> tuple[CellJob, ...]:
        """Jobs of a cell: one with the trace at a position, or those of the configuration.

        The ``seed`` decides when jobs arrive that do so at random.
        """
        workload = config.workload
        if not workload.jobs:
            name, path = self._files[position]
            trace = self._input(name, path)
            return tuple(
                CellJob(trace, workload.iterations, gpu=replica) for replica in range(workload.replicas or 1)
            )
        return tuple(
            CellJob(self._job_input(number, job.trace), job.iterations, job.gpu, arrival, job.priority)
            for number, job in enumerate(workload.jobs)
            for arrival in arrivals(job, seed, number)
        )

    def _job_input(self, number: int, name: str) -> TraceInput:
        with self._document.blaming(("workload", "jobs", number, "trace")):
            return self._input(name, find_file(name, self._document.directory))

    def _input(self, name: str, path: Path) -> TraceInput:
        if path not in self._read:
            trace = load_trace(path)
            self._read[path] = trace_hash(trace), trace.model, trace.batch_size
        sha256, model, batch_size = self._read[path]
        return TraceInput(name, str(path.resolve()), sha256, model, batch_size)


def arrivals(job: JobSpec, seed: int, position: int) -> tuple[int, ...]:
    """Arrival of every copy of a job in picoseconds, the first at ``job.arrival``.

    A Poisson process has exponential gaps; they depend on the ``seed`` of the run and the job's ``position``
    among the jobs alone.
    """
    gaps = [job.interval] * (job.copies - 1)
    if job.arrivals == "poisson":
        generator = np.random.default_rng([seed, position])
        gaps = [round(gap) for gap in generator.exponential(job.interval, job.copies - 1)]
    times = [job.arrival]
    for gap in gaps:
        times.append(times[-1] + int(gap))
    return tuple(times)


def _exchange(workload: WorkloadSpec) -> ExchangeSpec | None:
    return None if workload.replicas is None else workload.gradient_exchange


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
