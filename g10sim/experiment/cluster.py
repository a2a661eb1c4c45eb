"""Simulates cells on an existing Dask cluster.

Every cell runs in its own process on a worker and is stored in the directory of results. If a worker
dies, other workers repeat the cells that it was simulating; finished cells are found in the directory and
not repeated.
"""

from __future__ import annotations

import logging
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from g10sim.errors import ConfigError
from g10sim.experiment.cells import CellResult, CellTask, one_line
from g10sim.experiment.child import CellOrder, run_in_child, versions
from g10sim.experiment.workers import Results, crashed

if TYPE_CHECKING:
    from distributed import Client, Future

_SECONDS_TO_CONNECT, _SECONDS_TO_ANSWER = 15, 25
_MARKER = ".running-"

_log = logging.getLogger(__name__)


class DaskCluster:
    """Cells on the workers of a Dask scheduler, one per thread of a worker.

    ``scheduler`` is the scheduler's address (``tcp://host:8786``) or the path of its scheduler file.
    Workers need the same version of g10sim and its libraries, and the file system of this machine. Raises
    ConfigError when Dask is not installed or the scheduler does not answer.
    """

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._client = _connect(scheduler)

    def run(self, tasks: Sequence[CellTask]) -> Results:
        """Simulate cells: see :class:`g10sim.experiment.workers.CellExecutor`; closes the connection."""
        if self._client.status == "closed":
            self._client = _connect(self._scheduler)
        try:
            if tasks:
                with _marker(tasks[0].directory.resolve()) as marker:
                    yield from self._results(tasks, marker)
        finally:
            self._client.close()

    def _results(self, tasks: Sequence[CellTask], marker: Path) -> Results:
        from distributed import as_completed

        futures: dict[Future, CellTask] = {}
        try:
            for task in tasks:
                order = CellOrder(task, versions(), tuple(sys.path), str(Path.cwd()))
                name = f"g10sim-{task.cell.index}-{marker.name.removeprefix(_MARKER)}"
                futures[self._client.submit(_on_worker, pickle.dumps(order), str(marker), key=name)] = task
            for future in as_completed(list(futures), loop=self._client.loop):
                yield futures.pop(future), _outcome(future)
        finally:
            self._client.cancel(list(futures), force=True)


@contextmanager
def _away() -> Iterator[None]:
    """Import nothing from the working directory: Dask looks for many modules, and for entry points."""
    before, here = list(sys.path), Path.cwd()
    sys.path[:] = [path for path in before if path and Path(path).resolve() != here]
    try:
        yield
    finally:
        sys.path[:] = before


def _connect(scheduler: str) -> Client:
    with _away():
        client = _within(_SECONDS_TO_ANSWER, scheduler)
        if not client.scheduler_info()["workers"]:
            _log.warning("scheduler %s has no workers yet; cells wait until one comes", scheduler)
        return client


def _within(seconds: float, scheduler: str) -> Client:
    """Connect, or give up: what is no Dask may take bytes and never answer. Raises ConfigError."""
    found: list[Client | ConfigError] = []

    def connect() -> None:
        try:
            found.append(_connected(scheduler))
        except ConfigError as error:
            found.append(error)

    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(seconds)
    result = found[0] if found else _no_scheduler(scheduler, f"no answer within {seconds:g} s")
    if isinstance(result, ConfigError):
        raise result
    return result


def _no_scheduler(scheduler: str, reason: str) -> ConfigError:
    allowed = "the address of one that runs, such as tcp://HOST:8786, or its scheduler file"
    return ConfigError.at(f"scheduler {scheduler}", f"no Dask scheduler there ({reason})", allowed)


def _connected(scheduler: str) -> Client:
    try:
        from distributed import Client, Security
    except ImportError as error:
        problem = f"scheduler {scheduler}: needs Dask, which is not installed"
        raise ConfigError(f"{problem}; allowed after: pip install 'g10sim[distributed]'") from error
    from_file = Path(scheduler).is_file()
    try:
        address = Path(scheduler).read_text(encoding="utf-8") if from_file else scheduler
        if "tls://" in address and Security().get_connection_args("client")["ssl_context"] is None:
            found = "no certificates for TLS in Dask's configuration"
            allowed = "keys client.cert, client.key and ca-file of distributed.comm.tls"
            raise ConfigError.at(f"scheduler {scheduler}", found, allowed)
        known: dict[str, Any] = {"scheduler_file" if from_file else "address": scheduler}
        return Client(**known, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, AssertionError) as error:  # an assertion: no event loop in time
        raise _no_scheduler(scheduler, one_line(error)) from error


def _on_worker(order: bytes, marker: str) -> CellResult:
    """Run a cell; called by a worker of the cluster."""
    from distributed import get_worker

    worker = get_worker()
    address, key = str(worker.address), worker.get_current_task()
    if not _is_there(marker):
        problem = f"worker {address} does not see {Path(marker).parent}"
        return crashed(f"{problem}; allowed: workers that share this directory")

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)  # is cancelled when the connection of the client ends
        return task is not None and task.state != "cancelled" and _is_there(marker)

    return run_in_child(order, address, is_wanted)


def _is_there(path: str) -> bool:
    try:
        Path(path).stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)  # a network file system may hesitate
    return True


def _outcome(future: Future) -> CellResult:
    try:
        result: CellResult = future.result()
    except (Exception, CancelledError) as error:
        return crashed(f"the cluster lost it: {type(error).__name__}: {one_line(error)}")
    return result


@contextmanager
def _marker(directory: Path) -> Iterator[Path]:
    """Make a file that exists while the run lasts; a worker that cannot see it shares no directory."""
    path = directory / "cells" / f"{_MARKER}{uuid4().hex}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
