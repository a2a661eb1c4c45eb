"""Simulation of one cell, and its outcome."""

from __future__ import annotations

import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import Any

import g10sim
from g10sim.checksums import data_hash
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, UnsupportedError
from g10sim.experiment.cells import Cell, not_written
from g10sim.experiment.program import plug_in
from g10sim.experiment.store import CellStore
from g10sim.experiment.watching import Watch
from g10sim.policies.base import Policy
from g10sim.records import RunRecords
from g10sim.sim.engine import run
from g10sim.sim.hooks import TimeInHooks, time_in_hooks
from g10sim.sim.preparation import as_recorded
from g10sim.stats.bounds import Conditions, bound_row
from g10sim.stats.summary import Row, describe_jobs, summarize
from g10sim.trace.workload import Workload

OK, UNSUPPORTED, FAILED = "ok", "unsupported", "failed"
CHANGED = "changed"
"""Status of a cell whose code or files changed while it was simulated: its numbers belong to no key."""


@dataclass(frozen=True)
class CellResult:
    """Outcome of a cell: ``ok`` with one row per job, ``unsupported`` or ``failed`` with a message.

    ``timing`` holds wall and CPU seconds, those of the policy, peak memory in bytes, and the worker.
    ``origin`` says what computed it: ``key`` of the result, ``stored`` (key of the cell, which names its
    file), versions, ``plug_in`` with the path and hash of each module, ``files`` that it depends on besides,
    and those ``written``.
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


def simulate(
    workload: Workload,
    system: SystemSpec,
    policy: Policy,
    behaviour: BehaviourSpec,
    *,
    tables: tuple[str, ...] = (),
    check: bool = False,
) -> tuple[RunRecords, list[Row]]:
    """Run a workload and summarize it: the records and one row per job.

    Raises UnsupportedError, CapacityError, PolicyError, PlanError or InvariantError.
    """
    records = run(workload, system, policy, behaviour, record=tables, check=check)
    rows = summarize(
        workload,
        system,
        behaviour,
        records.iterations,
        events=records.events,
        moves_ahead=policy.requirements.moves_ahead,
        copies_tensors=policy.requirements.placement == "contiguous",
    )
    described = describe_jobs(workload, system, records.jobs, records.iterations, behaviour)
    conditions = Conditions(
        policy.requirements,
        behaviour,
        keeps_kernels=policy.keeps_kernels,
        drops=any(job.drops for job in records.jobs),
        uses_in_place=any(record.uses_in_place for record in records.iterations),
    )
    bounds = (bound_row(workload, system, conditions, row) if row else {} for row in rows)
    return records, [row | bound | more for row, bound, more in zip(rows, bounds, described, strict=True)]


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
        return CellResult(
            result.status,
            intern(result.message),
            tuple(map(self._named, result.rows)),
            self._named(result.timing),
            {intern(name): self._one(value) for name, value in result.origin.items()},
            result.traceback,
        )

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            intern(name): intern(value) if type(value) is str else value for name, value in values.items()
        }

    def _one(self, value: Any) -> Any:
        """Return what is known to be equal to a value, texts aside: most of these are different."""
        if type(value) is str:
            return value
        return self._known.setdefault(json.dumps(value, sort_keys=True), value)


def finished(task: CellTask) -> CellResult | None:
    """Return the stored result of a cell that has run to its end with all its tables, else None."""
    outcome = CellStore(task.directory).load(task.cell.key, task.cell.tables)
    if outcome is None or not task.cell.is_still(outcome["origin"]):
        return None
    return CellResult(**outcome | {"rows": tuple(outcome["rows"])})


def run_cell(task: CellTask, worker: int | str) -> CellResult:
    """Simulate a cell and store its outcome, unless it failed: a failure is tried again next time.

    ``worker`` is the number or address of the worker, for ``timing.csv``.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    store, hooks = CellStore(task.directory), TimeInHooks()

    def result(status: str, message: str, rows: Sequence[Row] = ()) -> CellResult:
        timing = {
            "wall_seconds": round(time.perf_counter() - wall, 6),
            "cpu_seconds": round(time.process_time() - cpu, 6),
            "policy_seconds": round(hooks.seconds, 6),
            "planning_cpu_seconds": round(hooks.planning_cpu_seconds, 6),
            "peak_memory_bytes": peak_memory_bytes(),
            "worker": worker,
        }
        return CellResult(status, message, tuple(rows), timing)

    try:
        with Watch() as watch, time_in_hooks(hooks):
            return _attempt(task.cell, store, watch, result)
    except G10SimError as error:
        return replace(result(FAILED, one_line(error)), traceback=traceback.format_exc())
    except Exception as error:
        message = f"internal error: {type(error).__name__}: {one_line(error)}"
        return replace(result(FAILED, message), traceback=traceback.format_exc())


def _attempt(cell: Cell, store: CellStore, watch: Watch, result: Callable[..., CellResult]) -> CellResult:
    start = _Start(cell)
    records: RunRecords | None = None
    try:
        workload, policy = cell.workload(), cell.make_policy()
        records, rows = simulate(
            workload, cell.system, policy, cell.behaviour, tables=cell.tables, check=cell.check
        )
    except UnsupportedError as error:
        verdict = one_line(error)
    changed = start.changed(watch)
    if changed:
        return result(CHANGED, f"{changed}: was changed while the cell ran")
    origin = start.origin(watch)
    try:
        if records is None:
            found, tables = result(UNSUPPORTED, verdict), tuple[str, ...]()
        else:
            tables = cell.tables
            shown = as_recorded(workload, cell.system, policy) if tables else workload
            store.save_tables(origin["stored"], tables, records, shown, cell.system, origin["key"])
            found = result(OK, records.note, rows)
        found = replace(found, origin=origin)
        store.save(origin["stored"], _kept(found), tables)
    except OSError as error:
        return result(FAILED, f"{store.directory}: cannot be written: {error.strerror}")
    return found


def _kept(found: CellResult) -> dict[str, Any]:
    """Return what is stored of a result."""
    return {name: value for name, value in vars(found).items() if name != "traceback"}


class _Start:
    """Code and files that decide the result of a cell, as they are when its simulation starts."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._code = plug_in(cell.policy["name"])
        self._key = cell.key_now(self._code)
        self._files = cell.named_files()

    def changed(self, watch: Watch) -> str:
        """Return the first file that is not what it was, if any; those that the cell wrote do not count."""
        loaded, now = watch.loaded(self._code), plug_in(self._cell.policy["name"])
        for name, source in self._code.sources.items():
            if now.sources.get(name) != source or loaded.get(source.path, source.sha256) != source.sha256:
                return source.path
        files = self._cell.named_files()
        for path in not_written(self._files | files, watch.written):
            if self._files.get(path) != files.get(path):
                return path
        return "" if self._cell.key_now(now) == self._key else "a file that the policy reads"

    def origin(self, watch: Watch) -> dict[str, Any]:
        """Return the origin of the result: see :class:`CellResult`."""
        files = not_written(self._files, watch.written) | self._others(watch)
        named = self._files | self._cell.named_files()
        return {
            "key": data_hash([self._key, files]) if files else self._key,
            "stored": self._key,
            "g10sim": g10sim.__version__,
            "python": platform.python_version(),
            "program_sha256": self._cell.program.sha256,
            "libraries": self._cell.program.libraries,
            "plug_in": {name: asdict(source) for name, source in self._code.sources.items()},
            "files": files,
            "written": sorted(watch.written & set(map(os.path.realpath, named))),
        }

    def _others(self, watch: Watch) -> dict[str, str]:
        """Return modules that a plug-in loaded although no import statement names them."""
        if not self._code.sources:  # what other plug-ins need is loaded to find a policy of g10sim
            return {}
        known = {source.path for source in self._code.sources.values()}
        loaded = watch.loaded(self._code)
        return {path: found for path, found in sorted(loaded.items()) if path not in known}


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())


_PROCESS = Path("/proc/self")


def restart_peak_memory() -> None:
    """Begin to look for the most resident memory anew, where the system can (Linux)."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had resident, since it was last restarted if it was."""
    with suppress(OSError):
        for line in (_PROCESS / "status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
