"""From a run configuration to its cells, in an order that depends on nothing else."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from g10sim.config.data import find_file, find_files
from g10sim.config.document import Document
from g10sim.config.exchange import ExchangeSpec
from g10sim.config.load import run_config, with_values
from g10sim.config.run import PolicySpec, RunConfig
from g10sim.errors import ConfigError, PolicyError
from g10sim.experiment.arrivals import arrivals
from g10sim.experiment.cells import FILE_PARAMETER_SUFFIX, Cell, CellJob, TraceInput, make_policy
from g10sim.trace.format import load_trace, trace_hash

_POLICY_KEY = re.compile(r"policies\.(\d+)\.")


@dataclass(frozen=True)
class Experiment:
    """A checked run configuration with its cells. ``config`` is that without any swept value."""

    config: RunConfig
    cells: tuple[Cell, ...]

    @property
    def swept_keys(self) -> tuple[str, ...]:
        """Dotted keys with more than one value, in the order of the configuration."""
        return tuple(self.config.sweep)


def expand(document: Document, *, check: bool = False) -> Experiment:
    """Check a configuration with every combination of swept values and list its cells.

    Order: traces, then combinations (the last key varies fastest), then policies, then seeds. A swept
    parameter of one policy leaves the others' cells alone. Raises ConfigError, PolicyError or TraceError.
    """
    config = run_config(document)
    policies = _Policies()
    combinations = [_Combination(document, values, policies) for values in _products(config.sweep)]
    workloads = _Workloads(document, config)
    labels = [_label(policy, config.policies) for policy in config.policies]
    entries = _distinct(combinations)
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
            exchange=_exchange(combination.config),
            one_job=not (config.workload.jobs or _has_replicas(config)),
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


def _products(sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _label(policy: PolicySpec, all_policies: Sequence[PolicySpec]) -> str:
    """Name of a policy in results: its key, with its parameters where the key alone is ambiguous."""
    if sum(other.name == policy.name for other in all_policies) == 1:
        return policy.name
    parameters = ", ".join(f"{key}={value}" for key, value in (policy.model_extra or {}).items())
    return f"{policy.name}({parameters})" if parameters else policy.name


class _Policies:
    """Checks policies by making each one once."""

    def __init__(self) -> None:
        self._good: set[str] = set()

    def check(self, mapping: Mapping[str, Any], seed: int) -> None:
        """Raise ConfigError or PolicyError for a policy that cannot be made."""
        key = json.dumps([mapping, seed], sort_keys=True, default=str)
        if key not in self._good:
            make_policy(mapping, seed)
            self._good.add(key)


class _Combination:
    """One combination of swept values: the configuration it gives, checked, and its policies.

    ``policies`` are names and parameters, with files found.
    """

    def __init__(self, document: Document, values: Mapping[str, Any], policies: _Policies) -> None:
        self._document = with_values(document, dict(values), ("sweep",)) if values else document
        self._text = {key: _text(value) for key, value in values.items()}
        self.config = run_config(self._document)
        self.policies = [self._checked(number, policies) for number in range(len(self.config.policies))]

    def swept_for(self, policy: int) -> dict[str, str]:
        """Swept values as text; empty for a parameter of another policy."""
        found = dict(self._text)
        for key in found:
            match = _POLICY_KEY.match(key)
            if match is not None and int(match.group(1)) != policy:
                found[key] = ""
        return found

    def _checked(self, number: int, policies: _Policies) -> dict[str, Any]:
        mapping = self.config.policies[number].as_mapping()
        for key, value in mapping.items():
            if key.endswith(FILE_PARAMETER_SUFFIX) and isinstance(value, str):
                mapping[key] = self._found(number, key, value)
        try:
            for seed in self.config.seeds:
                policies.check(mapping, seed)
        except (ConfigError, PolicyError) as error:
            raise self._document.error(_blamed(number, mapping, str(error)), str(error)) from error
        return mapping

    def _found(self, number: int, key: str, name: str) -> str:
        try:
            return str(find_file(name, self._document.directory))
        except ConfigError as error:
            raise self._document.error(("policies", number, key), str(error)) from None


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
            try:
                found += find_files(pattern, self._document.directory)
            except ConfigError as error:
                raise self._document.error(("workload", "trace", number), str(error)) from None
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
        try:
            return self._input(name, find_file(name, self._document.directory))
        except ConfigError as error:
            raise self._document.error(("workload", "jobs", number, "trace"), str(error)) from None

    def _input(self, name: str, path: Path) -> TraceInput:
        if path not in self._read:
            trace = load_trace(path)
            self._read[path] = trace_hash(trace), trace.model, trace.batch_size
        sha256, model, batch_size = self._read[path]
        return TraceInput(name, str(path.resolve()), sha256, model, batch_size)


def _has_replicas(config: RunConfig) -> bool:
    """Whether results have a row for each of several replicas, in some cell at least."""
    return config.workload.replicas is not None or "workload.replicas" in config.sweep


def _exchange(config: RunConfig) -> ExchangeSpec | None:
    return None if config.workload.replicas is None else config.workload.gradient_exchange


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
