"""Expands a run configuration into its cells, in a fixed order."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel

from g10sim.checksums import data_hash
from g10sim.config.behaviour import GPG
from g10sim.config.data import find_file, find_files
from g10sim.config.document import Document
from g10sim.config.effects import PolicyTraits, Setting
from g10sim.config.idle_keys import IdleKeys
from g10sim.config.load import run_config, with_values
from g10sim.config.run import JobSpec, PolicySpec, RunConfig, WorkloadSpec
from g10sim.config.sharing import ExchangeSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, PolicyError, all_of
from g10sim.experiment.cells import Cell, CellJob, TraceInput, make_policy, takes_seed
from g10sim.experiment.uncertainty import with_cases
from g10sim.policies.interface.parameters import Declared
from g10sim.policies.interface.policy import Policy
from g10sim.registry import choices_text
from g10sim.trace.check import cut_durations, first_on_cpu, other_gpu, told_of_other_gpu, untimed
from g10sim.trace.format import load_trace, trace_hash
from g10sim.trace.repetition import each

if TYPE_CHECKING:
    from g10sim.analysis.gpus import GpuTimingSpec

Part = TypeVar("Part")

_FILE_PARAMETER_SUFFIX = "_file"  # names of parameters that are paths of files next to the configuration
_POLICY_KEY = re.compile(r"policies\.(\d+)\.")


@dataclass(frozen=True)
class Experiment:
    """A checked run configuration with its cells, and what its author should be told about them.

    ``config`` is that without any swept value. ``timed_for`` holds the GPU that kernel times are for, by the
    name of the trace and the GPU of the system, where these are not the same.
    """

    config: RunConfig
    cells: tuple[Cell, ...]
    warnings: tuple[str, ...] = ()
    timed_for: Mapping[tuple[str, str], str] = field(default_factory=dict)


def expand(document: Document, *, check: bool = False, limit: int | None = None) -> Experiment:
    """Check a configuration with every combination of swept values and list its cells.

    Order: traces, then combinations (the last key varies fastest), then policies, then seeds. A swept
    parameter of one policy leaves the others' cells alone. Raises ConfigError, PolicyError or TraceError;
    ConfigError also for more cells than the ``limit``.
    """
    config = run_config(document)
    workloads = _Workloads(document, config)
    number = _number_of_cells(config) * workloads.count
    if limit is not None and number > limit:
        message = f"found {number:,} cells; allowed: up to {limit:,}, or more with --yes"
        raise document.error(("sweep",) if config.sweep else ("seed",), message)
    made: dict[str, Policy] = {}
    swept = _without_sweep(document)
    combinations = [
        _Combination(swept, dict(zip(config.sweep, values, strict=True)), made)
        for values in itertools.product(*config.sweep.values())
    ]
    _refuse_idle_keys(combinations)
    labels = [_label(policy, config.policies) for policy in config.policies]
    entries = _distinct(combinations)
    has_replicas = config.workload.replicas is not None or "workload.replicas" in config.sweep
    index, parts = itertools.count(), _EqualParts()
    systems = {combination: parts.system(combination.config.system) for combination in combinations}
    cells = tuple(
        Cell(
            index=next(index),
            name=config.name,
            label=labels[number],
            jobs=workloads.jobs(combination.config, position, seed),
            system=systems[combination],
            behaviour=parts.one(combination.config.compat),
            policy=combination.policies[number],
            swept=swept_values,
            variation=combination.config.workload.variation,
            sharing=parts.one(combination.config.workload.sharing),
            seed=seed,
            tables=config.tables,
            check=check,
            exchange=_exchange(combination.config.workload),
            one_job=not (config.workload.jobs or has_replicas),
        )
        for position in range(workloads.count)
        for combination, number, swept_values in entries
        for seed in combination.config.seeds
    )
    return Experiment(config, with_cases(cells, config.uncertainty), workloads.warnings, workloads.timed_for)


def _number_of_cells(config: RunConfig) -> int:
    """Count the cells of a trace without listing them."""
    number = 0
    for policy in range(len(config.policies)):
        cells = 1 if "seed" in config.sweep else len(config.seeds)
        for key, values in config.sweep.items():
            distinct = {_text(value): value for value in values}.values()
            if key == "seed":
                cells *= sum(len(value) if isinstance(value, list) else 1 for value in distinct)
            elif _concerns(key, policy):
                cells *= len(distinct)
        number += cells
    return number


def _without_sweep(document: Document) -> Document:
    """Leave out the swept values, which every combination would copy and check again."""
    data = {key: value for key, value in document.data.items() if key != "sweep"}
    places = {
        path: place for path, place in document.places.items() if path[:1] != ("sweep",) or len(path) < 3
    }
    return replace(document, data=data, places=places)


def _refuse_idle_keys(combinations: Iterable[_Combination]) -> None:
    """Raise ConfigError for a key that the user wrote and that changes no number of any cell."""
    idle = IdleKeys()
    for combination in combinations:
        combination.note_keys(idle)
    idle.check()


def _traits(policy: Policy) -> PolicyTraits:
    needs, design = policy.requirements, type(policy)
    copies = needs.placement == "contiguous"
    return PolicyTraits(
        is_paged=not copies,
        frees_itself=not copies and needs.addresses == "own",
        copies=copies,
        copies_to_host=copies and needs.host_memory != "none",
        unpins=copies and needs.host_memory != "none" and not needs.keeps_host_buffers,
        plans=design.plan is not Policy.plan or design.plan_job is not Policy.plan_job,
        keeps_service=needs.link_service is None,
        pins=design.pageable is not Policy.pageable and needs.host_memory == "any",
        pins_on_use=not copies and needs.pins_on_use,
    )


def _distinct(combinations: Sequence[_Combination]) -> list[tuple[_Combination, int, dict[str, str]]]:
    """Pair combinations with policies and the values that concern both.

    Combinations that differ in another policy's parameter alone are left out.
    """
    found: dict[tuple[int, tuple[str, ...]], tuple[_Combination, int, dict[str, str]]] = {}
    for combination in combinations:
        for number in range(len(combination.policies)):
            swept = combination.swept_for(number)
            found.setdefault((number, tuple(swept.values())), (combination, number, swept))
    return list(found.values())


def _concerns(key: str, policy: int) -> bool:
    """Return whether a swept key is no parameter of another policy."""
    match = _POLICY_KEY.match(key)
    return match is None or int(match.group(1)) == policy


def _label(policy: PolicySpec, all_policies: Sequence[PolicySpec]) -> str:
    """Name of a policy in results: its key, with its parameters where the key alone is ambiguous."""
    if sum(other.name == policy.name for other in all_policies) == 1:
        return policy.name
    parameters = ", ".join(f"{key}={value}" for key, value in (policy.model_extra or {}).items())
    return f"{policy.name}({parameters})" if parameters else policy.name


class _EqualParts:
    """Keeps equal parts of configurations once: those of thousands of cells differ in a few keys."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, str], Any] = {}

    def one(self, part: Part) -> Part:
        """Return what is known to be equal to a part."""
        text = part.model_dump_json() if isinstance(part, BaseModel) else repr(part)
        found: Part = self._known.setdefault((type(part), text), part)
        return found

    def system(self, system: SystemSpec) -> SystemSpec:
        """Return an equal system made of the parts that are known."""
        return system.model_copy(update={name: self.one(part) for name, part in system})


class _Combination:
    """One combination of swept values: the configuration it gives, checked, and its policies.

    ``policies`` are names and parameters, with files found. ``made`` has those that other combinations made.
    """

    def __init__(self, document: Document, values: Mapping[str, Any], made: dict[str, Policy]) -> None:
        self._document = with_values(document, dict(values), ("sweep",)) if values else document
        self._text = {key: _text(value) for key, value in values.items()}
        self.config = run_config(self._document)
        self._made: list[Policy] = []
        self.policies: list[dict[str, Any]] = []
        found: list[ConfigError] = []
        for number in range(len(self.config.policies)):
            try:
                self.policies.append(self._checked(number, made))
            except ConfigError as error:
                found.append(error)
        if found:
            raise all_of(found)

    def swept_for(self, policy: int) -> dict[str, str]:
        """Swept values as text; empty for a parameter of another policy."""
        return {key: text if _concerns(key, policy) else "" for key, text in self._text.items()}

    def note_keys(self, idle: IdleKeys) -> None:
        """Note which keys count here; a configuration that a run wrote out has all keys."""
        if self.config.resolved:
            return
        limited = [policy for policy in self._made if not policy.requirements.unlimited_memory]
        setting = Setting(self.config, [_traits(policy) for policy in limited])
        idle.note_all(self._document, setting)
        for number, (policy, spec) in enumerate(zip(self._made, self.config.policies, strict=True)):
            effects = policy.parameter_effects() if isinstance(policy, Declared) else {}
            for key, value in (spec.model_extra or {}).items():
                if key in effects:
                    path = ("policies", number, key)
                    idle.note(self._document, setting, path, value, effects[key], policy)

    def _checked(self, number: int, made: dict[str, Policy]) -> dict[str, Any]:
        mapping = self.config.policies[number].as_mapping()
        for key, value in mapping.items():
            if key.endswith(_FILE_PARAMETER_SUFFIX) and isinstance(value, str):
                with self._document.blaming(("policies", number, key)):
                    mapping[key] = str(find_file(value, self._document.directory))
        try:
            seeds = self.config.seeds if takes_seed(mapping) else self.config.seeds[:1]
            for seed in seeds:
                key = json.dumps([mapping, seed], sort_keys=True, default=str)
                if key not in made:
                    made[key] = make_policy(mapping, seed)
        except (ConfigError, PolicyError) as error:
            raise self._document.error(_blamed(number, mapping, str(error)), str(error)) from error
        self._made.append(made[key])
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
        self._read: dict[str, tuple[str, str, int, bool]] = {}
        self._inputs: dict[tuple[str, Path, str], TraceInput] = {}
        self._durations: dict[tuple[str, str], tuple[list[int], int]] = {}
        self._untimed: dict[tuple[str, str], str] = {}
        self._origins: dict[str, Mapping[str, str]] = {}
        self._on_cpu: dict[str, str] = {}
        self._cut: dict[tuple[str, str, int], str] = {}
        self.timed_for: dict[tuple[str, str], str] = {}
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
            trace = self._input(name, path, config)
            return tuple(
                CellJob(trace, workload.iterations, gpu=replica) for replica in range(workload.replicas or 1)
            )
        return tuple(
            CellJob(
                self._job_input(number, job.trace, config), job.iterations, job.gpu, arrival, job.priority
            )
            for number, job in enumerate(workload.jobs)
            for arrival in arrivals(job, seed, number)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings about the kernel times of the traces."""
        alike: dict[tuple[str, str], list[str]] = {}
        for (name, gpu), timed_for in self.timed_for.items():
            alike.setdefault((timed_for, gpu), []).append(name)
        others = (told_of_other_gpu(names, *gpus) for gpus, names in alike.items())
        return (*filter(None, self._cut.values()), *others)

    def _job_input(self, number: int, name: str, config: RunConfig) -> TraceInput:
        with self._document.blaming(("workload", "jobs", number, "trace")):
            return self._input(name, find_file(name, self._document.directory), config)

    def _input(self, name: str, path: Path, config: RunConfig) -> TraceInput:
        gpu = self._timed_gpu(config)
        gpu_name = "" if gpu is None else gpu.name
        if (name, path, gpu_name) not in self._inputs:
            where = str(path.resolve())
            trace = load_trace(path)
            if where not in self._read:
                self._read[where] = trace_hash(trace), trace.model, trace.batch_size, bool(trace.link_kernels)
                self._origins[where], self._on_cpu[where] = trace.origin, first_on_cpu(trace)
            described = "" if gpu is None else data_hash(gpu.model_dump_json())
            if gpu is not None:
                from g10sim.analysis.kernel_times import retimed

                with self._document.blaming(("workload", "kernel_times")):
                    trace = retimed(trace, gpu, name)
            self._durations[where, gpu_name] = each(trace.kernels, _duration), trace.ticks_per_second
            self._untimed[where, gpu_name] = untimed(trace)
            found = TraceInput(name, where, *self._read[where], gpu_name, described)
            self._inputs[name, path, gpu_name] = found
        found = self._inputs[name, path, gpu_name]
        if self._on_cpu[found.path]:
            from g10sim.sim.beside.cpu import check_processor  # loads the simulator

            check_processor(self._on_cpu[found.path], config.system)
        self._look_at_times(found, config)
        return found

    def _timed_gpu(self, config: RunConfig) -> GpuTimingSpec | None:
        """Return the GPU whose times kernels are given; None where traces keep their own."""
        if config.workload.kernel_times == "trace":
            return None
        from g10sim.analysis.gpus import gpu_names, load_gpu  # loads tables that few runs need

        name = config.system.gpu.name
        if name not in gpu_names():
            raise self._document.error(
                ("workload", "kernel_times"),
                f"found system, whose gpu.name is '{name}'; allowed: trace, or a system with one of "
                f"{choices_text(gpu_names())}",
            )
        return load_gpu(name)

    def _look_at_times(self, found: TraceInput, config: RunConfig) -> None:
        gpu = config.system.gpu
        key = found.path, found.gpu, gpu.clock
        if key not in self._cut:
            cut = cut_durations(*self._durations[found.path, found.gpu], gpu.clock)
            warning = self._untimed[found.path, found.gpu] or cut
            self._cut[key] = warning and f"{found.name}: {warning}"
        timed_for = "" if found.gpu else other_gpu(self._origins[found.path], gpu.name)
        if timed_for and config.compat != GPG:
            self.timed_for[found.name, gpu.name] = timed_for


_duration = attrgetter("duration")


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
