"""Runs cells in processes, so that a crash affects no other cell."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from g10sim.errors import ConfigError
from g10sim.experiment.cells import Cell, CellResult, CellTask
from g10sim.policies.interface.registry import find, has_plug_ins
from g10sim.results.columns import FAILED

_SIMULATOR, _PREPARED = "g10sim.experiment.execution", "g10sim.experiment.warm"
_DESIGNS = "g10sim.policies.designs."
_MOST_CELLS = 500
_LONGEST_TEMPORARY = 60
"""Characters of the directory of temporary files that leave room for the name of a socket, which has 107."""
_FOR_TABLES = ("pandas", "pyarrow.parquet", "g10sim.results.tables", "g10sim.results.timeline")
_LEAST_FILES = 32
"""Open files with which processes that start others end in order: 18 were enough in a trial, 16 were not."""


Results = Generator[tuple[CellTask, CellResult], None, None]
"""Cells with their results, each as it ends."""


class CellExecutor(Protocol):
    """Simulates cells, on this machine or elsewhere."""

    def run(self, tasks: Sequence[CellTask]) -> Results:
        """Simulate cells and yield each with its result as it ends; a worker that dies is a failure.

        Closing the generator ends all cells that still run.
        """


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, ``workers`` at a time; a worker is named by its number, from 0.

    A process simulates one cell after the other of policies that come with g10sim. A cell of a plug-in has
    its own process: its code is read again, and what it leaves behind reaches no other cell. A cell that
    takes longer than ``seconds`` is ended, and has failed. Where this process does nothing else and
    ``may_copy_itself``, a single worker is a copy of it, which starts sooner.
    """

    workers: int = 1
    seconds: float | None = None
    may_copy_itself: bool = False

    def run(self, tasks: Sequence[CellTask]) -> Results:
        """Simulate cells: see :class:`CellExecutor`. Tasks and results must pickle.

        Raises ConfigError where processes may not open enough files to start others.
        """
        _check_files()
        waiting, free = deque(tasks), deque(range(min(self.workers, len(tasks))))
        context = _context([task.cell for task in tasks], self.may_copy_itself and len(free) == 1)
        running: dict[Connection, _Worker] = {}
        idle: dict[int, _Worker] = {}
        try:
            while waiting or running:
                while waiting and free:
                    task, slot = waiting.popleft(), free.popleft()
                    worker = idle.pop(slot, None)
                    if worker is not None and not worker.may_take(task):
                        worker.end()
                        worker = None
                    worker = worker or _Worker(context, slot)
                    worker.give(task)
                    running[worker.connection] = worker
                for ready in self._ready(running):
                    worker = running.pop(ready)
                    result = worker.result()
                    free.append(worker.slot)
                    idle[worker.slot] = worker
                    yield worker.task, result
        finally:
            for left in (*running.values(), *idle.values()):
                left.process.terminate()
            for left in (*running.values(), *idle.values()):
                left.end()

    def _ready(self, running: Mapping[Connection, _Worker]) -> list[Any]:
        """Wait until some worker is done, or has taken too long: that one is ended."""
        if self.seconds is None:
            return wait(list(running))
        first = min(worker.since for worker in running.values()) + self.seconds
        found = wait(list(running), max(0.0, first - time.monotonic()))
        for worker in running.values():
            if worker.connection not in found and time.monotonic() - worker.since >= self.seconds:
                worker.give_up(self.seconds)
        return found


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


class _Worker:
    """A process that simulates cells, one at a time."""

    task: CellTask

    def __init__(self, context: BaseContext, slot: int) -> None:
        self.slot, self._cells, self.since, self._why = slot, 0, 0.0, ""
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_child, args=(theirs, slot), daemon=True)  # type: ignore[attr-defined]
        if context.get_start_method() != "fork":
            resource_tracker.ensure_running()  # which unblocks the signal of Ctrl-C when it starts
        with _sheltered(), _environment("PYTHONSAFEPATH", "1"):
            self.process.start()
        theirs.close()

    def may_take(self, task: CellTask) -> bool:
        """Return whether a process that has simulated cells may simulate one more."""
        is_alive = self._cells < _MOST_CELLS and self.process.is_alive()
        return is_alive and not (task.cell.plug_in or self.task.cell.plug_in)

    def give(self, task: CellTask) -> None:
        """Begin with a cell."""
        self.task, self._cells, self.since = task, self._cells + 1, time.monotonic()
        with suppress(OSError):  # it has died: there will be no result
            self.connection.send(task)

    def result(self) -> CellResult:
        """Return the result of the cell; where the process has died, that it has."""
        try:
            result: CellResult = self.connection.recv()
        except (EOFError, OSError):  # nothing was sent, or only a part
            self.end()
            return crashed(self._why or reason_of_end(self.process.exitcode))
        return result

    def give_up(self, seconds: float) -> None:
        """End the process, whatever it does; its cell has failed."""
        self._why = f"took longer than {seconds:g} s, the limit of --seconds"
        self.process.kill()

    def end(self) -> None:
        """Let the process end, and wait for that."""
        self.connection.close()
        self.process.join()


def _check_files() -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _LEAST_FILES:
        raise ConfigError.at("open files", f"a limit of {files}", f"{_LEAST_FILES} or more (see ulimit -n)")


def _context(cells: Sequence[Cell], may_copy: bool) -> BaseContext:
    """Choose how processes start. A copy has what was imported: milliseconds instead of a second.

    A copy of this process would have its threads' locks and the code of plug-ins, too, and several copies
    each other's connections; then they are copies of one that has only imported what they need.
    """
    policies = {kind for cell in cells for kind in find(cell.policy["name"]).__mro__}
    designs = sorted({kind.__module__ for kind in policies if kind.__module__.startswith(_DESIGNS)})
    tables = _FOR_TABLES if any(cell.tables for cell in cells) else ()
    if may_copy and sys.platform == "linux" and threading.active_count() == 1 and not has_plug_ins():
        for module in (*designs, _SIMULATOR, *tables):
            import_module(module)
        return multiprocessing.get_context("fork")
    has_room = len(tempfile.gettempdir()) <= _LONGEST_TEMPORARY
    if not has_room or "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*designs, _PREPARED, *tables])
    return context


@contextmanager
def _sheltered() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: they have the signals blocked that are blocked here."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Start processes with this environment variable."""
    before = {name: os.environ[name]} if name in os.environ else {}
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


def _child(connection: Connection, slot: int) -> None:
    from g10sim.experiment.execution import restart_peak_memory, run_cell  # loads the simulator

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has no more cells
        while True:
            task = connection.recv()
            restart_peak_memory()
            connection.send(run_cell(task, slot))
    os._exit(0)  # nothing is left to be tidied up, and to tidy up takes as long as a small cell


def _end_with_parent() -> None:
    """Exit when the parent is killed, so that this process cannot disturb a later run of its cells."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
