"""A cell: one workload under one policy on one system, with all that decides its result; and that."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from sys import intern
from typing import Any, Literal

from pydantic import BaseModel

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, PolicyError, TraceError, is_bundled, is_raised_by_plug_in, own_lines
from g10sim.experiment.program import program
from g10sim.experiment.reads import Now, reads
from g10sim.experiment.store import CellStore
from g10sim.files import data_hash
from g10sim.grouping import Same
from g10sim.policies.interface import registry
from g10sim.policies.interface.policy import Policy
from g10sim.results.columns import Row
from g10sim.trace.format import load_trace, trace_hash
from g10sim.trace.model import Trace
from g10sim.trace.workload import Job, Workload, times_factors
from g10sim.units import duration_to_cycles

_log = logging.getLogger(__name__)

CHANGED = "changed"
"""Status of a cell whose code or files changed while it was simulated: its numbers belong to no key."""


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
    ``tables`` names the records to keep. ``kernel_factors`` multiply kernel times by class of operators, ""
    for kernels without a class; policies see these times. ``cases`` are what the cell is run as besides,
    under other assumptions.
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
    kernel_factors: Mapping[str, float] = field(default_factory=dict)
    cases: tuple[Cell, ...] = ()

    @cached_property
    def key(self) -> str:
        """SHA-256 (hexadecimal) over the settings, the traces and the program.

        What the policy reads is not part of it: see :mod:`g10sim.experiment.reads`.
        """
        return data_hash([self.settings, program().sha256])

    @property
    def title(self) -> str:
        """Number, trace and policy, for messages."""
        return f"{self.index} ({self.jobs[0].trace.name}, {self.label})"

    @property
    def plug_in(self) -> str:
        """Name of the module of the policy if it is a plug-in; nothing for one that comes with g10sim."""
        module = registry.module_of(self.policy["name"])
        return "" if is_bundled(module) else module

    @property
    def copies_tensors(self) -> bool:
        """Return whether the policy copies whole tensors into consecutive GPU memory."""
        return self.make_policy().requirements.placement == "contiguous"

    @property
    def sends(self) -> bool:
        """Return whether replicas have collectives, or stages of a pipeline send to each other."""
        if any(job.trace.sends for job in self.jobs):
            return True
        return len(self.jobs) > 1 and self.exchange is not None and self.make_policy().partitions

    def workload(self, load: Callable[[TraceInput], Trace] | None = None) -> Workload:
        """Load the traces, with ``load`` if it is given. Raises TraceError, also for one that has changed."""
        clock, load_once = self.system.gpu.clock, cache(load or load_input)
        jobs = []
        for job in self.jobs:
            trace = times_factors(load_once(job.trace), self.kernel_factors)
            arrival = duration_to_cycles(job.arrival_picoseconds, clock)
            jobs.append(Job(trace, job.gpu, arrival, job.iterations, job.priority))
        return Workload(tuple(jobs), self.variation, self.seed, self.sharing, self.exchange)

    def make_policy(self) -> Policy:
        """Make a fresh policy. Raises PolicyError or ConfigError."""
        if self.reference_plan is not None:
            return registry.find(self.policy["name"]).with_reference_plan(Path(self.reference_plan))
        return make_policy(self.policy, self.seed)

    @cached_property
    def settings(self) -> str:
        """Everything but the program that decides the result, as JSON."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _ASIDE}
        own["jobs"] = [{**vars(job), "trace": (job.trace.sha256, job.trace.gpu_sha256)} for job in self.jobs]
        own |= {"system": _described(Same(self.system)), "tables": sorted(self.tables)}
        return json.dumps(own, sort_keys=True, default=_plain)


_ASIDE = ("index", "name", "label", "swept", "one_job", "cases")
"""Fields of a cell that do not decide its result."""
_NO_NUMBERS: Any = {"name": True, "description": True, "sources": True, "gpu": {"name"}}


@lru_cache(maxsize=16)  # neighbouring cells have one system
def _described(same: Same[SystemSpec]) -> dict[str, Any]:
    return same.value.model_dump(mode="json", exclude=_NO_NUMBERS)


def _plain(part: object) -> object:
    return part.model_dump(mode="json") if isinstance(part, BaseModel) else str(part)


def load_input(named: TraceInput) -> Trace:
    """Load a trace of a run, with the kernel times that it is given.

    Raises TraceError, also for one that is not what it was when the run began.
    """
    trace = load_trace(named.path)
    if trace_hash(trace) != named.sha256:
        problem = f"{named.path}: is not the trace that the run began with (sha256 {named.sha256[:12]})"
        allowed = "leaving traces alone while a run lasts, the same files for all workers"
        raise TraceError(f"{problem}; allowed: {allowed}")
    if not named.gpu:
        return trace
    from g10sim.analysis.gpus import load_gpu, retimed  # loads tables that few runs need

    return retimed(trace, load_gpu(named.gpu), named.path)


def make_policy(spec: Mapping[str, Any], seed: int) -> Policy:
    """Make a policy from its name and parameters; one that takes a ``seed`` gets that of the run.

    Raises PolicyError or ConfigError, also for a plug-in whose constructor raises.
    """
    try:
        return registry.create({**spec, "seed": seed} if takes_seed(spec) else spec)
    except G10SimError:
        raise
    except BaseException as error:
        if not is_raised_by_plug_in(error):
            raise
        raised = f"{type(error).__name__}: {error}{own_lines(error)}"
        raise PolicyError(f"policy '{spec['name']}': its constructor raised {raised}") from error


def takes_seed(spec: Mapping[str, Any]) -> bool:
    """Return whether a policy takes the seed of the run. Raises PolicyError for one that is not known."""
    return "seed" not in spec and "seed" in registry.find(spec["name"]).parameter_names()


@dataclass(frozen=True)
class CellResult:
    """Outcome of a cell: ``ok`` with one row per job, ``unsupported`` or ``failed`` with a message.

    ``timing`` holds wall and CPU seconds, those of the policy, peak memory in bytes, and the worker.
    ``origin`` says what computed it: ``key`` of the result, ``stored`` (key of the cell, which names its
    file), versions, the module of the ``plug_in``, and what it has read: see :meth:`Reads.of_plug_in`.
    ``traceback`` says of a failure where it arose.
    """

    status: str
    message: str
    rows: tuple[Row, ...]
    timing: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""

    @property
    def key(self) -> str:
        """Key of the result; empty for a cell whose worker ended without one."""
        return str(self.origin.get("key", ""))


@dataclass(frozen=True)
class CellTask:
    """Input of a worker process: the cell and the directory of results."""

    cell: Cell
    directory: Path


class EqualParts:
    """Keeps what is equal in results once: names of columns, texts, and how cells were computed."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def shared(self, result: CellResult) -> CellResult:
        """Return a result with the same contents, which shares what it can with the earlier ones."""
        rows, timing = tuple(map(self._named, result.rows)), self._named(result.timing)
        origin = {intern(name): self._one(value) for name, value in result.origin.items()}
        return replace(result, message=intern(result.message), rows=rows, timing=timing, origin=origin)

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {intern(key): intern(value) if type(value) is str else value for key, value in values.items()}

    def _one(self, value: Any) -> Any:
        """Return what is known to be equal to a value, texts aside: most of these are different."""
        if type(value) is str:
            return value
        return self._known.setdefault(json.dumps(value, sort_keys=True), value)


def change_since(origin: Mapping[str, Any], now: Now, *, own: bool = True) -> str:
    """Name something that a result has read and that is not as it was; empty if all of it is.

    What its cell has changed itself counts if ``own``.
    """
    place = origin["place"]
    if place and place != reads().place(origin["plug_in"], origin["names"], sys.path):
        return f"where {origin['plug_in']} lies"
    return now.first_change(origin, own=own)


def finished(task: CellTask, now: Now) -> CellResult | None:
    """Return the stored result of a cell that has run to its end with all its tables, else None.

    ``now``: files as they are.
    """
    outcome = CellStore(task.directory).load(task.cell.key, task.cell.tables)
    if outcome is None:
        return None
    if changed := change_since(outcome["origin"], now):
        _log.info("cell %s runs again: changed: %s", task.cell.index, changed)
        return None
    _log.info("cell %s is reused: %s, %s", task.cell.index, task.cell.jobs[0].trace.name, task.cell.label)
    return CellResult(**outcome | {"rows": tuple(outcome["rows"])})


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())
