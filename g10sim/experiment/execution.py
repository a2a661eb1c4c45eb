"""Simulation of one cell, and its outcome."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.system import SystemSpec
from g10sim.errors import G10SimError, UnsupportedError
from g10sim.experiment.cells import Cell
from g10sim.experiment.store import CellStore
from g10sim.policies.base import Policy
from g10sim.records import RunRecords
from g10sim.sim.engine import run
from g10sim.stats.summary import Row, describe_jobs, summarize
from g10sim.trace.workload import Workload

OK, UNSUPPORTED, FAILED = "ok", "unsupported", "failed"


@dataclass(frozen=True)
class CellResult:
    """Outcome of a cell: ``ok`` with one row per job, ``unsupported`` or ``failed`` with a message.

    ``timing`` holds wall and CPU seconds, peak memory in bytes, and the worker.
    """

    status: str
    message: str
    rows: tuple[Row, ...]
    timing: dict[str, Any]


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
    return records, [row | described[number] for number, row in enumerate(rows)]


@dataclass(frozen=True)
class CellTask:
    """Input of a worker process: the cell and the directory of results."""

    cell: Cell
    directory: Path


def finished(task: CellTask) -> CellResult | None:
    """Return the stored result of a cell that has run to its end with all its tables, else None."""
    outcome = CellStore(task.directory).load(task.cell.key, task.cell.tables)
    return None if outcome is None else CellResult(**outcome | {"rows": tuple(outcome["rows"])})


def run_cell(task: CellTask, worker: int | str) -> CellResult:
    """Simulate a cell and store its outcome, unless it failed: a failure is tried again next time.

    ``worker`` is the number or address of the worker, for ``timing.csv``.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    store = CellStore(task.directory)
    status, message, rows = _attempt(task.cell, store)
    timing = {
        "wall_seconds": round(time.perf_counter() - wall, 6),
        "cpu_seconds": round(time.process_time() - cpu, 6),
        "peak_memory_bytes": peak_memory_bytes(),
        "worker": worker,
    }
    result = CellResult(status, message, tuple(rows), timing)
    if status != FAILED:
        try:
            store.save(task.cell.key, vars(result))
        except OSError as error:
            return CellResult(FAILED, f"{task.directory}: cannot be written: {error.strerror}", (), timing)
    return result


def _attempt(cell: Cell, store: CellStore) -> tuple[str, str, list[Row]]:
    try:
        workload, policy = cell.workload(), cell.make_policy()
        records, rows = simulate(
            workload, cell.system, policy, cell.behaviour, tables=cell.tables, check=cell.check
        )
        store.save_tables(cell.key, cell.tables, records, workload, cell.system)
    except UnsupportedError as error:
        return UNSUPPORTED, one_line(error), []
    except G10SimError as error:
        return FAILED, one_line(error), []
    except Exception as error:
        return FAILED, f"internal error: {type(error).__name__}: {one_line(error)}", []
    return OK, records.note, rows


def one_line(error: BaseException) -> str:
    """Return the message of an error as one line."""
    return " ".join(str(error).split())


def peak_memory_bytes() -> int:
    """Return the most memory that this process has had resident."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
