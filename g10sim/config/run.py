"""Definition of a run: workload x system x policies, what to sweep, what to record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.effects import Effect
from g10sim.config.quantities import Duration, Number, PlainName, Spec, default_time, required
from g10sim.config.sharing import BESIDE, ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import shown

Table = Literal[
    "summary", "kernels", "migrations", "memory", "timeline", "working_sets", "inactive_periods", "pools"
]


_LARGEST_SEED = 2**63 - 1


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _mapping_with(key: str) -> BeforeValidator:
    """Let a text stand for a mapping that has only this key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


def _checked_seeds(value: object) -> int | tuple[int, ...]:
    seeds: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,)
    seen: set[int] = set()
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
            problem = f"found {shown(seed)}"
            raise ValueError(f"{problem}; allowed: a whole number from 0 to 2^63-1, or a list of them")
        if seed in seen:
            raise ValueError(f"found {seed} twice; allowed: every seed once")
        seen.add(seed)
    if not seeds:
        raise ValueError("found an empty list; allowed: at least one entry")
    return seeds if isinstance(value, list | tuple) else seeds[0]


_SEED_SCHEMA = {"type": "integer", "minimum": 0, "maximum": _LARGEST_SEED}
_SEEDS_SCHEMA = {"type": "array", "items": _SEED_SCHEMA, "minItems": 1, "uniqueItems": True}
Seeds = Annotated[
    int | tuple[int, ...],
    BeforeValidator(_checked_seeds),
    WithJsonSchema({"anyOf": [_SEED_SCHEMA, _SEEDS_SCHEMA]}),
]
AUTO: Literal["auto"] = "auto"
"""Number of iterations that stands for as many as it takes."""
MOST_ITERATIONS = 12
"""Most iterations that are run with AUTO."""

_LIMIT = 10_000
_NUMBER_SCHEMA = {"type": "integer", "minimum": 1, "maximum": _LIMIT}


def checked_iterations(value: object) -> object:
    """Return a number of iterations, or ``auto``. Raises ValueError for anything else."""
    if value != AUTO and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LIMIT):
        raise ValueError(f"found {shown(value)}; allowed: auto, or a whole number from 1 to {_LIMIT}")
    return value


Iterations = Annotated[int, Field(strict=True, ge=1, le=_LIMIT, description="how often the trace is run")]
IterationsOrAuto = Annotated[
    int | Literal["auto"],
    BeforeValidator(checked_iterations),
    WithJsonSchema({"anyOf": [{"const": AUTO}, _NUMBER_SCHEMA]}),
]


def most_iterations(iterations: int | Literal["auto"], behaviour: BehaviourSpec) -> int:
    """Return the most iterations that are run: of AUTO two, where the faster of two is what counts."""
    if iterations != AUTO:
        return iterations
    return 2 if behaviour.reported_iteration == "fastest" else MOST_ITERATIONS


_COPIED = Effect(lambda run, job: job.copies > 1, "with copies, 2 or more", "there is one copy")


class JobSpec(Spec):
    """One job: a trace that a GPU runs some iterations of, from its arrival on."""

    trace: str = Field(min_length=1)
    """trace file"""
    arrival: Duration = default_time("0 s")
    """when the job may start"""
    gpu: int = Field(default=0, strict=True, ge=0)
    """GPU it runs on"""
    iterations: Iterations = 2
    priority: Annotated[int, BESIDE] = Field(default=1, strict=True, ge=1, le=100)
    """share of a GPU that it computes on alongside others"""
    copies: int = Field(default=1, strict=True, ge=1, le=1000)
    """how many such jobs there are"""
    interval: Annotated[Duration, _COPIED] = default_time("0 s")
    """time from the arrival of one copy to that of the next"""
    arrivals: Annotated[Literal["fixed", "poisson"], _COPIED] = "fixed"
    """fixed: copies arrive one interval apart; poisson: at random, one interval apart on average, by the seed
    of the run"""

    @required
    def _poisson_has_a_rate(self) -> Iterator[str]:
        if self.arrivals == "poisson" and not self.interval:
            yield "found arrivals 'poisson' without 'interval'; allowed: a mean interval above 0"


_REPLICAS = Effect(lambda run, _: run.replicas > 1, "with replicas, 2 or more", "there are no replicas")
_JOBS = Effect(lambda run, workload: bool(workload.jobs), "with jobs", "one job runs at a time")


class WorkloadSpec(Spec):
    """The workload: one trace at a time (``trace``), or several jobs together (``jobs``)."""

    trace: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    """trace file, glob pattern, or a list of them: one run per trace"""
    iterations: IterationsOrAuto = Field(
        default=AUTO,
        description="how often the trace is run; auto: until iterations repeat, at most"
        f" {MOST_ITERATIONS} times, and twice with compat.reported_iteration fastest",
    )
    jobs: tuple[JobSpec, ...] = ()
    """jobs of one run, together on the machine"""
    kernel_times: Literal["trace", "system"] = "trace"
    """those of the traces, or those that the system's GPU takes for the same kernels"""
    replicas: int | None = Field(default=None, strict=True, ge=1, le=1024)
    """data-parallel replicas of the trace, on the GPUs from 0; one row of results each"""
    gradient_exchange: Annotated[ExchangeSpec, _mapping_with("method"), _REPLICAS] = Field(
        default_factory=ExchangeSpec
    )
    """how replicas exchange gradients"""
    variation: VariationSpec | None = None
    """random factors on kernel times, unknown to the policies"""
    sharing: Annotated[SharingSpec, _JOBS] = Field(default_factory=SharingSpec)
    """how jobs on one GPU share its time and memory"""

    @required
    def _one_kind(self) -> Iterator[str]:
        if self.trace and self.jobs:
            yield "found both 'trace' and 'jobs'; allowed: one of them"
        if not self.trace and not self.jobs:
            yield "found neither 'trace' nor 'jobs'; allowed: one of them, not empty"
        if self.jobs and "iterations" in self.model_fields_set:
            yield "found 'iterations' with 'jobs'; allowed: iterations of each job"
        if self.jobs and self.replicas is not None:
            yield "found 'replicas' with 'jobs'; allowed: replicas of one trace"
        if self.trace and self.sharing != SharingSpec():
            yield "found 'sharing' without 'jobs'; allowed: with jobs that run together"


class PolicySpec(Spec):
    """A policy by name (or ``module:Class``); the other keys are its parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = Field(min_length=1)
    """policy key, or module:Class"""

    def as_mapping(self) -> dict[str, Any]:
        """Name and parameters, as the registry of policies takes them."""
        return {"name": self.name, **(self.model_extra or {})}


_WIDEST = 1000
"""Farthest that times may be off: rates of all allowed machines stay above 0."""


def _around_one(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    if not 1 / _WIDEST <= low <= 1 <= high <= _WIDEST:
        raise ValueError(
            f"found {list(span)}; allowed: a factor from {1 / _WIDEST:g} to 1, and one from 1 to {_WIDEST}"
        )
    return span


Span = Annotated[tuple[Number, Number], AfterValidator(_around_one)]
CERTAIN = (1.0, 1.0)


class UncertaintySpec(Spec):
    """Factors by which times may be off, [lowest, highest]: 1.25 is a quarter slower than simulated.

    Every cell is also run at four corners, kernels and all that moves data each at their lowest or highest
    factors, and ``draws`` times with factors that are drawn by the seed of the run: one for each class of
    operators, one for links, drives and page faults each.
    """

    kernels: Span = CERTAIN
    """times of kernels"""
    links: Span = CERTAIN
    """times of bytes on links, and of starting copies"""
    drives: Span = CERTAIN
    """times of bytes on drives, and of accesses"""
    faults: Span = CERTAIN
    """times of handling page faults"""
    draws: int = Field(default=4, strict=True, ge=0, le=64)
    """cells in addition to the four corners"""
    sources: dict[str, str] = Field(default_factory=dict)
    """where factors come from, by key"""


class RunConfig(Spec):
    """One run configuration; every cell is a trace under a policy on a system."""

    name: PlainName = "run"
    """name of the run, a column of the results"""
    workload: WorkloadSpec
    """what is simulated"""
    system: SystemSpec
    """machine: a preset, a mapping, or a preset with changes"""
    policies: tuple[Annotated[PolicySpec, _mapping_with("name")], ...] = Field(min_length=1)
    """policies to compare"""
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """values of dotted keys; every combination is run"""
    seed: Seeds = 0
    """seed of everything random; of several, each gives its own row"""
    record: tuple[Table, ...] = ("summary",)
    """tables to write"""
    compat: BehaviourSpec = Field(default_factory=BehaviourSpec)
    """behaviour of memory management: a preset, a mapping, or a preset with changes"""
    uncertainty: UncertaintySpec | None = None
    """how far times may be off: measured, a mapping, or both (preset: measured); cells also run at the ends
    of that and in between"""
    output: str | None = Field(default=None, min_length=1)
    """directory of the results"""
    resolved: bool = Field(default=False, strict=True)
    """written by a run: presets and defaults are spelled out, and keys that do nothing let be"""

    @field_validator("policies")
    @classmethod
    def _distinct(cls, policies: tuple[PolicySpec, ...]) -> tuple[PolicySpec, ...]:
        for position, policy in enumerate(policies):
            if policy in policies[:position]:
                raise ValueError(f"found policy '{policy.name}' twice with equal parameters; allowed: once")
        return policies

    @field_validator("sweep")
    @classmethod
    def _filled(cls, sweep: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for key, values in sweep.items():
            if not values:
                raise ValueError(f"found no values for '{key}'; allowed: a list with at least one")
        return sweep

    @required
    def _jobs_fit(self) -> Iterator[str]:
        gpus, replicas = self.system.gpu.count, self.workload.replicas or 0
        for position, job in enumerate(self.workload.jobs):
            if job.gpu >= gpus:
                allowed = f"0 to {gpus - 1} (system.gpu.count is {gpus})"
                yield f"workload.jobs.{position}.gpu: found {job.gpu}; allowed: {allowed}"
        if replicas > gpus:
            yield f"workload.replicas: found {replicas}; allowed: 1 to {gpus}, one on a GPU"

    @property
    def seeds(self) -> tuple[int, ...]:
        """All seeds, also of one."""
        return self.seed if isinstance(self.seed, tuple) else (self.seed,)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables to record beyond the summary."""
        return tuple(table for table in dict.fromkeys(self.record) if table != "summary")
