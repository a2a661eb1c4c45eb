"""Runs each cell in a process of its own, so that a crash affects no other cell."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Protocol

from g10sim.experiment.execution import FAILED, CellResult, CellTask, run_cell

_PRELOADED = "g10sim.experiment.execution"
_FOR_TABLES = ("pandas", "pyarrow.parquet")


Results = Generator[tuple[CellTask, CellResult], None, None]
"""Cells with their results, each as it ends."""


class Executor(Protocol):
    """Simulates cells, on this machine or elsewhere."""

    def run(self, tasks: Sequence[CellTask]) -> Results:
        """Simulate cells and yield each with its result as it ends; a worker that dies is a failure.

        Closing the generator ends all cells that still run.
        """


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, ``workers`` at a time; a worker is named by its number, from 0."""

    workers: int = 1

    def run(self, tasks: Sequence[CellTask]) -> Results:
        """Simulate cells: see :class:`Executor`. Tasks and results must pickle."""
        context = _context(tables=any(task.cell.tables for task in tasks))
        waiting = deque(tasks)
        free = deque(range(self.workers))
        running: dict[Connection, _Running] = {}
        try:
            while waiting or running:
                while waiting and free:
                    connection, started = _start(context, waiting.popleft(), free.popleft())
                    running[connection] = started
                for ready in wait(list(running)):
                    if not isinstance(ready, Connection):
                        continue
                    ended = running.pop(ready)
                    result = _outcome(ready, ended.process)
                    free.append(ended.slot)
                    yield ended.task, result
        finally:
            for left in running.values():
                left.process.terminate()
            for left in running.values():
                left.process.join()


def crashed(reason: str) -> CellResult:
    """Make the result of a cell whose worker ended without one."""
    return CellResult(FAILED, reason, (), {})


def reason_of_end(exit_code: int | None) -> str:
    """Say how a worker process ended: ``exit_code`` is negative for a signal."""
    if exit_code is None or exit_code >= 0:
        return f"the worker process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = str(-exit_code)
    return f"the worker process was killed by signal {name}"


@dataclass
class _Running:
    task: CellTask
    slot: int
    process: BaseProcess


def _context(*, tables: bool) -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A process starts as a copy of one that has imported everything: milliseconds instead of a second.
    context.set_forkserver_preload([_PRELOADED, *(_FOR_TABLES if tables else ())])
    return context


def _start(context: BaseContext, task: CellTask, slot: int) -> tuple[Connection, _Running]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, task, slot), daemon=True)  # type: ignore[attr-defined]
    with _sheltered():
        process.start()
    theirs.close()
    return ours, _Running(task, slot, process)


@contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach and that import nothing from the working directory first.

    Python takes both from the process that starts it: the signals that are blocked, and the environment.
    """
    name = "PYTHONSAFEPATH"
    before = os.environ.get(name)
    os.environ[name] = "1"
    resource_tracker.ensure_running()  # which unblocks the signal when it starts
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _child(connection: Connection, task: CellTask, slot: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection.send(run_cell(task, slot))
    connection.close()


def _end_with_parent() -> None:
    """Exit when the parent is killed, so that this process cannot disturb a later run of its cells."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def _outcome(connection: Connection, process: BaseProcess) -> CellResult:
    try:
        result: CellResult = connection.recv()
    except (EOFError, OSError):  # nothing was sent, or only a part
        process.join()
        return crashed(reason_of_end(process.exitcode))
    finally:
        connection.close()
    process.join()
    return result
