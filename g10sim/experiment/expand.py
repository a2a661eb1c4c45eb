"""Expands a run configuration into its cells, in a fixed order."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from g10sim.config.data import find_file
from g10sim.config.document import Document
from g10sim.config.load import run_config, with_values
from g10sim.config.run import PolicySpec, RunConfig
from g10sim.config.setting import IdleKeys, PolicyTraits, Setting
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, PlanError, PolicyError, all_of
from g10sim.experiment.cells import Cell, make_policy, takes_seed
from g10sim.experiment.known_traces import KnownTraces
from g10sim.experiment.uncertainty import with_cases
from g10sim.experiment.workloads import Workloads
from g10sim.policies.interface.parameters import Declared
from g10sim.policies.interface.plan_format import load_plan
from g10sim.policies.interface.policy import Policy

Part = TypeVar("Part")

_FILE_PARAMETER_SUFFIX = "_file"  # names of parameters that are paths of files next to the configuration
_POLICY_KEY = re.compile(r"policies\.(\d+)\.")


@dataclass(frozen=True)
class Experiment:
    """A checked run configuration with its cells, and what its author should be told about them.

    ``config`` is that without any swept value. ``system`` is the machine as a configuration says it that has
    the same cells. ``timed_for`` holds the GPU that kernel times are for, by the name of the trace and the
    GPU of the system, where these are not the same.
    """

    config: RunConfig
    cells: tuple[Cell, ...]
    system: Any
    warnings: tuple[str, ...] = ()
    timed_for: Mapping[tuple[str, str], str] = field(default_factory=dict)


def expand(
    document: Document, *, check: bool = False, limit: int | None = None, known: KnownTraces | None = None
) -> Experiment:
    """Check a configuration with every combination of swept values and list its cells.

    Order: traces, then combinations (the last key varies fastest), then policies, then seeds. A swept
    parameter of one policy leaves the others' cells alone. Raises ConfigError, PolicyError or TraceError;
    ConfigError also for more cells than the ``limit``. Traces that are ``known`` are not read again.
    """
    config = run_config(document)
    workloads = Workloads(document, config, known or KnownTraces())
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
    read = set[str]()
    for combination in combinations:
        combination.check_plans(read)
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
            variation=workload.variation,
            sharing=parts.one(workload.sharing),
            seed=seed,
            tables=config.tables,
            check=check,
            exchange=workload.gradient_exchange if workload.replicas is not None else None,
            one_job=not (config.workload.jobs or has_replicas),
        )
        for position in range(workloads.count)
        for combination, number, swept_values in entries
        for workload in [combination.config.workload]
        for seed in combination.config.seeds
    )
    return Experiment(
        config,
        with_cases(cells, config.uncertainty),
        _system(document, config, cells[0]),
        workloads.warnings,
        workloads.timed_for,
    )


def _system(document: Document, config: RunConfig, first: Cell) -> Any:
    """Return the machine, with its preset spelled out where what is swept changes nothing but numbers of it.

    It is that of the first cell: a number may stand for others of the preset, too.
    """
    swept = {key: values for key, values in config.sweep.items() if key.startswith("system.")}
    presets = any(key.endswith(".preset") for key in swept)
    sections = any(isinstance(value, Mapping) for values in swept.values() for value in values)
    return document.data["system"] if presets or sections else first.system.model_dump(mode="json")


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
    places = {path: line for path, line in document.places.items() if path[:1] != ("sweep",) or len(path) < 3}
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
    return {
        "is_paged": not copies,
        "frees_itself": not copies and needs.addresses == "own",
        "copies": copies,
        "copies_to_host": copies and needs.host_memory != "none",
        "unpins": copies and needs.host_memory != "none" and not needs.keeps_host_buffers,
        "plans": design.plan is not Policy.plan or design.plan_job is not Policy.plan_job,
        "keeps_service": needs.link_service is None,
        "pins": design.pageable is not Policy.pageable and needs.host_memory == "any",
        "pins_on_use": not copies and needs.pins_on_use,
    }


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

    def check_plans(self, read: set[str]) -> None:
        """Raise ConfigError for a plan file that is none; those that are ``read`` are left out.

        Whether a plan fits a trace is up to the cell.
        """
        for number, (policy, mapping) in enumerate(zip(self._made, self.policies, strict=True)):
            for key in policy.plan_files() if isinstance(policy, Declared) else ():
                path = mapping.get(key)
                if path is not None and path not in read:
                    try:
                        load_plan(path)
                    except PlanError as error:
                        raise self._document.error(("policies", number, key), str(error)) from error
                    read.add(path)

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


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
