"""Runs each task in a process of its own: one that crashes or is killed takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

_PRELOADED = "g10sim.experiment.execution"
_COMMANDS = "g10sim.cli.main"


@dataclass(frozen=True)
class Crash:
    """A process that ended without a result, and why."""

    reason: str


@dataclass
class _Running(Generic[Task]):
    task: Task
    slot: int
    process: BaseProcess


def run_in_processes(
    function: Callable[[Task, int], Result], tasks: Iterable[Task], workers: int
) -> Iterator[tuple[Task, Result | Crash]]:
    """Call ``function(task, slot)`` for every task, ``workers`` at a time; yield results as they come.

    ``slot`` is 0 to ``workers`` - 1. Function, tasks and results must pickle. Processes still running
    when the caller stops listening are ended.
    """
    context = _context()
    waiting = deque(tasks)
    free = deque(range(workers))
    running: dict[Connection, _Running[Task]] = {}
    try:
        while waiting or running:
            while waiting and free:
                connection, started = _start(context, function, waiting.popleft(), free.popleft())
                running[connection] = started
            for ready in wait(list(running)):
                if not isinstance(ready, Connection):
                    continue
                finished = running.pop(ready)
                outcome = _outcome(ready, finished.process)
                free.append(finished.slot)
                yield finished.task, outcome
    finally:
        for left in running.values():
            left.process.terminate()
        for left in running.values():
            left.process.join()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # A process starts as a copy of one that has imported everything: milliseconds instead of a second.
    context.set_forkserver_preload([_PRELOADED, *([_COMMANDS] if _COMMANDS in sys.modules else [])])
    return context


def _start(
    context: BaseContext, function: Callable[[Task, int], Result], task: Task, slot: int
) -> tuple[Connection, _Running[Task]]:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, function, task, slot), daemon=True)  # type: ignore[attr-defined]
    process.start()
    theirs.close()
    return ours, _Running(task, slot, process)


def _child(connection: Connection, function: Callable[[Task, int], Result], task: Task, slot: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    connection.send(function(task, slot))
    connection.close()


def _outcome(connection: Connection, process: BaseProcess) -> Result | Crash:
    try:
        result: Result = connection.recv()
    except EOFError:
        process.join()
        return Crash(_reason(process.exitcode))
    finally:
        connection.close()
    process.join()
    return result


def _reason(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"the worker process ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = str(-exit_code)
    return f"the worker process was killed by signal {name}"
