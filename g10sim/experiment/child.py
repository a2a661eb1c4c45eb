"""A process for one cell on a machine of a cluster: ``python -m g10sim.experiment.child DESCRIPTOR WORKER``.

The order is read from standard input as a pickle; the process ends when standard input is closed. The
result is written to the file descriptor.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from platform import python_version

import g10sim
from g10sim.experiment.cells import CellResult, CellTask, finished
from g10sim.experiment.directory import library_versions
from g10sim.experiment.program import program
from g10sim.experiment.reads import Now, note_from_start
from g10sim.experiment.workers import crashed, reason_of_end

_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class CellOrder:
    """A cell to simulate on another machine with the same result.

    ``versions`` are those of the program and its libraries on this machine; plug-ins and relative paths are
    looked up in ``search_path`` and ``working_directory``.
    """

    task: CellTask
    versions: dict[str, str]
    search_path: tuple[str, ...]
    working_directory: str


def versions() -> dict[str, str]:
    """Return what has to be equal on two machines for equal results, plug-ins aside."""
    own = {"g10sim": g10sim.__version__, "program": program().sha256[:12], "Python": python_version()}
    return own | library_versions()


def run_in_child(order: bytes, worker: str, is_wanted: Callable[[], bool]) -> CellResult:
    """Run a pickled order in a process that ends with this one, or when the cell is no longer wanted."""
    read, write = os.pipe()
    command = [sys.executable, "-P", "-m", __name__, str(write), worker]
    with Connection(read, writable=False) as connection:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write])
        finally:
            os.close(write)
        with process:
            try:
                return _result(process, order, connection, is_wanted)
            finally:
                process.kill()


def _result(
    process: subprocess.Popen[bytes], order: bytes, connection: Connection, is_wanted: Callable[[], bool]
) -> CellResult:
    try:
        if process.stdin is not None:
            process.stdin.write(order)
            process.stdin.flush()
        while not connection.poll(_SECONDS_BETWEEN_LOOKS):
            if not is_wanted():
                return crashed("the run that wanted this cell has ended")
        result: CellResult = connection.recv()
    except (EOFError, OSError):  # it ended without a result, or with a part of one
        return crashed(reason_of_end(process.wait()))
    return result


def main() -> None:
    """Run the order on standard input."""
    note_from_start()
    order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    result = _run(order, sys.argv[2])
    with Connection(int(sys.argv[1]), readable=False) as connection:
        connection.send(result)


def _run(order: CellOrder, worker: str) -> CellResult:
    from g10sim.experiment.execution import run_cell  # loads the simulator

    sys.path[:] = [*order.search_path, *(path for path in sys.path if path not in order.search_path)]
    os.chdir(order.working_directory)
    here = versions()
    for name, wanted in order.versions.items():
        if here[name] != wanted:
            return crashed(f"worker {worker} has {name} {here[name]}; needed for the same results: {wanted}")
    return finished(order.task, Now()) or run_cell(order.task, worker)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # returns when the parent is gone
    os._exit(1)


if __name__ == "__main__":
    main()
