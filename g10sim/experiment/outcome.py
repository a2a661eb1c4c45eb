"""Outcome of a cell: its result, kept in the directory of results."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import Any

from g10sim.experiment.cells import Cell
from g10sim.experiment.reads import Now, reads
from g10sim.experiment.store import CellStore
from g10sim.results.columns import Row

_log = logging.getLogger(__name__)

CHANGED = "changed"
"""Status of a cell whose code or files changed while it was simulated: its numbers belong to no key."""


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
        return {
            intern(name): intern(value) if type(value) is str else value for name, value in values.items()
        }

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
