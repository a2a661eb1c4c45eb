"""A cell: one workload under one policy on one system, with everything that decides its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, PolicyError, TraceError
from g10sim.experiment.program import file_hash, program_hash
from g10sim.policies import registry
from g10sim.policies.base import Policy
from g10sim.trace.format import load_trace, trace_hash
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload
from g10sim.units import duration_to_cycles

FILE_PARAMETER_SUFFIX = "_file"
"""Ending of the names of policy parameters that are paths of files."""


@dataclass(frozen=True)
class TraceInput:
    """A trace file: its name in the configuration, where it lies, and what identifies its contents."""

    name: str
    path: str
    sha256: str
    model: str
    batch_size: int


@dataclass(frozen=True)
class CellJob:
    """One job of a cell; ``arrival_picoseconds`` after the start of the simulation."""

    trace: TraceInput
    iterations: int = 2
    gpu: int = 0
    arrival_picoseconds: int = 0
    priority: int = 1


@dataclass(frozen=True)
class Cell:
    """One simulation of an experiment.

    ``policy`` has the key ``name`` and the parameters; with ``reference_plan`` the policy follows that
    plan of the published simulator instead. ``swept`` holds the values of swept keys as text.
    ``tables`` names the records to keep. ``key`` is equal for two cells where results are.
    """

    index: int
    name: str
    label: str
    jobs: tuple[CellJob, ...]
    system: SystemSpec
    behaviour: BehaviourSpec
    policy: Mapping[str, Any]
    reference_plan: str | None = None
    swept: Mapping[str, str] = field(default_factory=dict)
    variation: VariationSpec | None = None
    sharing: SharingSpec = field(default_factory=SharingSpec)
    exchange: ExchangeSpec | None = None
    seed: int = 0
    tables: tuple[str, ...] = ()
    check: bool = False
    one_job: bool = True

    @cached_property
    def key(self) -> str:
        """SHA-256 (hexadecimal) over all that can change the result, the code that computes it included.

        Files that the policy reads count with their contents at the time of the first look at the key.
        """
        text = json.dumps(self._identity(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def copies_tensors(self) -> bool:
        """Tell whether the policy copies whole tensors into consecutive GPU memory."""
        return self.make_policy().requirements.placement == "contiguous"

    def workload(self) -> Workload:
        """Load the traces. Raises TraceError, also for one that is not what it was."""
        clock = self.system.gpu.clock
        traces = {trace: _load(trace) for trace in dict.fromkeys(job.trace for job in self.jobs)}
        jobs = tuple(
            Job(
                traces[job.trace],
                job.gpu,
                duration_to_cycles(job.arrival_picoseconds, clock),
                job.iterations,
                job.priority,
            )
            for job in self.jobs
        )
        return Workload(jobs, self.variation, self.seed, self.sharing, self.exchange)

    def make_policy(self) -> Policy:
        """Make a fresh policy. Raises PolicyError or ConfigError."""
        if self.reference_plan is not None:
            return registry.find(self.policy["name"]).with_reference_plan(Path(self.reference_plan))
        return make_policy(self.policy, self.seed)

    def _identity(self) -> dict[str, Any]:
        system = self.system.model_dump(mode="json", exclude={"name", "description", "sources"})
        return {
            "program": program_hash(self.policy["name"]),
            "jobs": [
                [job.trace.sha256, job.iterations, job.gpu, job.arrival_picoseconds, job.priority]
                for job in self.jobs
            ],
            "exchange": None if self.exchange is None else self.exchange.model_dump(mode="json"),
            "sharing": self.sharing.model_dump(mode="json"),
            "system": system,
            "behaviour": self.behaviour.model_dump(mode="json"),
            "policy": {parameter: _contents(parameter, value) for parameter, value in self.policy.items()},
            "reference plan": "" if self.reference_plan is None else file_hash(Path(self.reference_plan)),
            "variation": None if self.variation is None else self.variation.model_dump(),
            "seed": self.seed,
            "tables": sorted(self.tables),
            "check": self.check,
        }


def _load(named: TraceInput) -> Trace:
    trace = load_trace(named.path)
    if trace_hash(trace) != named.sha256:
        raise TraceError(
            f"{named.path}: is not the trace that the run began with (sha256 {named.sha256[:12]}); "
            "allowed: leaving traces alone while a run lasts, the same files for all workers"
        )
    return trace


def make_policy(spec: Mapping[str, Any], seed: int) -> Policy:
    """Make a policy from its name and parameters; one that takes a ``seed`` gets that of the run.

    Raises PolicyError or ConfigError, also for a plug-in whose constructor raises.
    """
    try:
        if "seed" not in spec and "seed" in registry.find(spec["name"]).parameter_names():
            spec = {**spec, "seed": seed}
        return registry.create(spec)
    except G10SimError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy '{spec['name']}': its constructor raised {type(error).__name__}: {error}"
        ) from error


def _contents(parameter: str, value: object) -> object:
    """Return a parameter's value; for the path of a file the hash of what is in it."""
    if parameter.endswith(FILE_PARAMETER_SUFFIX) and isinstance(value, str):
        return file_hash(Path(value))
    return value
