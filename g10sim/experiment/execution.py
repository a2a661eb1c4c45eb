"""Simulation of one cell, and its outcome."""

from __future__ import annotations

import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import g10sim
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, InvariantError, UnsupportedError, own_lines
from g10sim.experiment.cells import CHANGED, Cell, CellResult, CellTask, one_line
from g10sim.experiment.program import program
from g10sim.experiment.reads import NOTHING_ELSE, Now, Reads, of_cell, of_plug_in
from g10sim.experiment.store import CELLS, CellStore
from g10sim.files import data_hash
from g10sim.policies.interface.policy import Policy
from g10sim.records import RunRecords
from g10sim.results.bounds import Premises, bound_row
from g10sim.results.columns import FAILED, OK, UNSUPPORTED, Row
from g10sim.results.summary import describe_jobs, summarize
from g10sim.sim.engine import run
from g10sim.sim.hooks import TimeInHooks, time_in_hooks
from g10sim.sim.preparation import as_recorded
from g10sim.trace.workload import Workload


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
    needs, iterations = policy.requirements, records.iterations
    rows = summarize(
        workload,
        system,
        behaviour,
        iterations,
        events=records.events,
        moves_ahead=needs.moves_ahead,
        copies_tensors=needs.placement == "contiguous",
    )
    described = describe_jobs(workload, system, behaviour, records)
    drops, in_place = any(job.drops for job in records.jobs), any(one.uses_in_place for one in iterations)
    premises = Premises(
        needs, behaviour, keeps_kernels=policy.keeps_kernels, drops=drops, uses_in_place=in_place
    )
    bounds = (bound_row(workload, system, premises, row) if row else {} for row in rows)
    return records, [row | bound | more for row, bound, more in zip(rows, bounds, described, strict=True)]


def run_cell(task: CellTask, worker: int | str) -> CellResult:
    """Simulate a cell and store its outcome, unless it failed: a failure is tried again next time.

    ``worker`` is the number or address of the worker, for ``timing.csv``.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    store, hooks = CellStore(task.directory), TimeInHooks()

    def result(status: str, message: str, rows: Sequence[Row] = (), **more: Any) -> CellResult:
        timing = {
            "wall_seconds": round(time.perf_counter() - wall, 6),
            "cpu_seconds": round(time.process_time() - cpu, 6),
            "policy_seconds": round(hooks.seconds, 6),
            "planning_cpu_seconds": round(hooks.planning_cpu_seconds, 6),
            "peak_memory_bytes": peak_memory_bytes(),
            "worker": worker,
        }
        return CellResult(status, message, tuple(rows), timing, **more)

    try:
        with _reads(task) as read, time_in_hooks(hooks):
            return _attempt(task.cell, store, read, result)
    except G10SimError as error:
        return result(FAILED, one_line(error), traceback=traceback.format_exc())
    except BaseException as error:  # a plug-in may raise anything; the process that asked has signals blocked
        if not isinstance(error, Exception) and not own_lines(error):
            raise
        kind = "internal error" if isinstance(error, Exception) else f"policy {task.cell.policy['name']}"
        message = f"{kind}: {type(error).__name__}: {one_line(error)}{own_lines(error)}"
        return result(FAILED, message, traceback=traceback.format_exc())


def _reads(task: CellTask) -> AbstractContextManager[Reads]:
    """Note what a cell reads besides its traces, which its key names, and the cells of its run."""
    cell, aside = task.cell, [str(task.directory / CELLS), *(job.trace.path for job in task.cell.jobs)]
    if cell.plug_in:
        return of_plug_in(cell.plug_in.partition(".")[0], cell.policy, aside)
    return of_cell(aside)


def _attempt(cell: Cell, store: CellStore, read: Reads, result: Callable[..., CellResult]) -> CellResult:
    records: RunRecords | None = None
    try:
        workload, policy = cell.workload(), cell.make_policy()
        records, rows = simulate(
            workload, cell.system, policy, cell.behaviour, tables=cell.tables, check=cell.check
        )
    except UnsupportedError as error:
        verdict = one_line(error)
    except G10SimError as error:
        where = traceback.format_exc()
        return result(FAILED, one_line(error), origin=_origin(cell, read), traceback=where)
    again = replace(cell)
    if again.settings != cell.settings:
        raise InvariantError(f"settings of a cell: found {again.settings}; allowed: {cell.settings}")
    if again.key != cell.key:
        return result(FAILED, "g10sim was edited while this run lasts; allowed: the same command again")
    origin = _origin(cell, read)
    changed = read.mixed or Now().first_change(origin, own=False)
    if changed:
        return result(CHANGED, f"{changed}: was changed while the cell ran", origin=origin)
    try:
        if records is None:
            found, tables = result(UNSUPPORTED, verdict, origin=origin), tuple[str, ...]()
        else:
            tables = cell.tables
            shown = as_recorded(workload, cell.system, policy) if tables else workload
            store.save_tables(origin["stored"], tables, records, shown, cell.system, origin["key"])
            found = result(OK, records.note, rows, origin=origin)
        kept = {name: value for name, value in vars(found).items() if name != "traceback"}
        store.save(origin["stored"], kept, tables)
    except OSError as error:
        return result(FAILED, f"{store.directory}: cannot be written: {error.strerror}")
    return found


def _origin(cell: Cell, read: Reads) -> dict[str, Any]:
    """Return the origin of a result: see :class:`CellResult`."""
    found = read.of_plug_in(cell.plug_in) if cell.plug_in else {**NOTHING_ELSE, "files": dict(read.files)}
    hashes = sorted(found["files"].values()) + sorted(found["names"].values())
    return {
        "key": data_hash([cell.key, hashes]) if hashes else cell.key,
        "stored": cell.key,
        "g10sim": g10sim.__version__,
        "python": platform.python_version(),
        "program_sha256": program().sha256,
        "libraries": program().libraries,
        "plug_in": cell.plug_in,
        **found,
    }


_PROCESS = Path("/proc/self")


def restart_peak_memory() -> None:
    """Begin to look for the most resident memory again, where the system can (Linux)."""
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
