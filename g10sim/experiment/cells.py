"""A cell: one workload under one policy on one system, with everything that decides its result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from g10sim.analysis.gpus import load_gpu
from g10sim.analysis.kernel_times import retimed
from g10sim.checksums import data_hash, file_hash
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, PolicyError, TraceError
from g10sim.experiment.program import PlugIn, Program, plug_in
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
    """A trace file: its name in the configuration, where it lies, and what identifies its contents.

    ``sends``: it is a stage of a pipeline, which sends to others or receives. ``gpu`` names the GPU whose
    kernel times it is given, by a description with the hash ``gpu_sha256``; empty: it keeps its own.
    """

    name: str
    path: str
    sha256: str
    model: str
    batch_size: int
    sends: bool = False
    gpu: str = ""
    gpu_sha256: str = ""


@dataclass(frozen=True)
class CellJob:
    """One job of a cell; ``arrival_picoseconds`` after the start of the simulation."""

    trace: TraceInput
    iterations: int | Literal["auto"] = 2
    gpu: int = 0
    arrival_picoseconds: int = 0
    priority: int = 1


@dataclass(frozen=True)
class Cell:
    """One simulation of an experiment.

    ``policy`` has the key ``name`` and the parameters; with ``reference_plan`` the policy follows that
    plan of the published simulator instead. ``swept`` holds the values of swept keys as text.
    ``tables`` names the records to keep.
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
        """The key at the time of the first look at it: see :meth:`key_now`."""
        return self.key_now()

    def key_now(self, code: PlugIn | None = None) -> str:
        """SHA-256 (hexadecimal) over the settings and the code that computes the result, as files are now.

        ``code`` is the plug-in if it has been looked at already. Files that other parameters than those
        called ``*_file`` name are left to :meth:`named_files`. Raises PolicyError.
        """
        code = code or plug_in(self.policy["name"])
        parts = [
            self._settings,
            self.program.sha256,
            {name: source.sha256 for name, source in code.sources.items()},
            {parameter: _contents(parameter, value) for parameter, value in self.policy.items()},
            "" if self.reference_plan is None else file_hash(self.reference_plan),
        ]
        return data_hash(parts)

    @cached_property
    def program(self) -> Program:
        """The code of g10sim and the libraries that simulate the cell. Raises PolicyError."""
        return plug_in(self.policy["name"]).program

    def named_files(self) -> dict[str, str]:
        """Hashes of the files that parameters of the policy name, other than those called ``*_file``."""
        values = [value for name, value in self.policy.items() if name != "name" and not _is_file(name)]
        return {text: found for text in _texts(values) if (found := _hash_if_file(text))}

    def is_still(self, origin: Mapping[str, Any]) -> bool:
        """Return True if the files that a stored result depends on are what they were."""
        files = origin["files"]
        now = {path: _hash_if_file(path) for path in files}
        return {**now, **not_written(self.named_files(), origin["written"])} == dict(files)

    @property
    def copies_tensors(self) -> bool:
        """Tell whether the policy copies whole tensors into consecutive GPU memory."""
        return self.make_policy().requirements.placement == "contiguous"

    @property
    def sends(self) -> bool:
        """Tell whether replicas have collectives, or stages of a pipeline send to each other."""
        if any(job.trace.sends for job in self.jobs):
            return True
        return len(self.jobs) > 1 and self.exchange is not None and self.make_policy().partitions

    def workload(self, load: Callable[[TraceInput], Trace] | None = None) -> Workload:
        """Load the traces, with ``load`` if it is given. Raises TraceError, also for one that has changed."""
        clock, load = self.system.gpu.clock, load or load_input
        traces = {trace: load(trace) for trace in dict.fromkeys(job.trace for job in self.jobs)}
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

    @cached_property
    def _settings(self) -> str:
        settings = {
            "jobs": [
                [
                    *filter(None, (job.trace.sha256, job.trace.gpu_sha256)),
                    *(job.iterations, job.gpu, job.arrival_picoseconds, job.priority),
                ]
                for job in self.jobs
            ],
            "exchange": None if self.exchange is None else self.exchange.model_dump(mode="json"),
            "sharing": self.sharing.model_dump(mode="json"),
            "system": _described(_Same(self.system)),
            "behaviour": self.behaviour.model_dump(mode="json"),
            "variation": None if self.variation is None else self.variation.model_dump(),
            "seed": self.seed,
            "tables": sorted(self.tables),
            "check": self.check,
        }
        return json.dumps(settings, sort_keys=True, default=str)


@dataclass(frozen=True, eq=False)
class _Same:
    """A system as the key of a cache: the same object, where comparing values would take as long."""

    system: SystemSpec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.system is self.system

    def __hash__(self) -> int:
        return id(self.system)


_NO_NUMBERS: Any = {"name": True, "description": True, "sources": True, "gpu": {"name"}}


@lru_cache(maxsize=16)  # neighbouring cells have one system
def _described(same: _Same) -> dict[str, Any]:
    return same.system.model_dump(mode="json", exclude=_NO_NUMBERS)


def load_input(named: TraceInput) -> Trace:
    """Load a trace of a run, with the kernel times that it is given.

    Raises TraceError, also for one that is not what it was when the run began.
    """
    trace = load_trace(named.path)
    if trace_hash(trace) != named.sha256:
        raise TraceError(
            f"{named.path}: is not the trace that the run began with (sha256 {named.sha256[:12]}); "
            "allowed: leaving traces alone while a run lasts, the same files for all workers"
        )
    return retimed(trace, load_gpu(named.gpu), named.path) if named.gpu else trace


def make_policy(spec: Mapping[str, Any], seed: int) -> Policy:
    """Make a policy from its name and parameters; one that takes a ``seed`` gets that of the run.

    Raises PolicyError or ConfigError, also for a plug-in whose constructor raises.
    """
    try:
        return registry.create({**spec, "seed": seed} if takes_seed(spec) else spec)
    except G10SimError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy '{spec['name']}': its constructor raised {type(error).__name__}: {error}"
        ) from error


def not_written(files: Mapping[str, str], written: Collection[str]) -> dict[str, str]:
    """Leave out of some files those that a simulation has written."""
    return {path: found for path, found in files.items() if os.path.realpath(path) not in written}


def _is_file(parameter: str) -> bool:
    return parameter.endswith(FILE_PARAMETER_SUFFIX)


def takes_seed(spec: Mapping[str, Any]) -> bool:
    """Tell whether a policy takes the seed of the run. Raises PolicyError for one that is not known."""
    return "seed" not in spec and "seed" in registry.find(spec["name"]).parameter_names()


def _contents(parameter: str, value: object) -> object:
    """Return a parameter's value; for the path of a file the hash of what is in it."""
    return file_hash(value) if _is_file(parameter) and isinstance(value, str) else value


def _texts(value: object) -> Iterator[str]:
    """Yield all texts, and paths as texts, in lists and mappings."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from _texts(list(value.values()))
    elif isinstance(value, list | tuple | set):
        for one in value:
            yield from _texts(one)


def _hash_if_file(text: str) -> str:
    with suppress(OSError, ValueError):  # text that is too long for a path, or holds a null byte
        if Path(text).is_file():
            return file_hash(text)
    return ""
