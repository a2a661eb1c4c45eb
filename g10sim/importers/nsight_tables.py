"""Tables of reports of Nsight Systems: read in bounded time and memory, whatever is in the file.

Tables and columns are those of NVIDIA's "SQLite Export Schema Reference" (docs.nvidia.com/nsight-systems,
nsys-exporter/exported_data.html).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from g10sim.errors import TraceError, choices_text, shown

WHAT = "a report of Nsight Systems as SQLite (nsys export --type sqlite)"
KERNELS, COPIES, FILLS, GRAPHS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
MEMORY, STRINGS = "CUDA_GPU_MEMORY_USAGE_EVENTS", "StringIds"
PROCESS, MEMORY_KIND, GRAPH = "globalPid", "memKind", "graphId"
_COLUMNS: Mapping[str, Sequence[str]] = {
    KERNELS: ("start", "end", "deviceId", "shortName"),
    COPIES: ("start", "end", "deviceId", "copyKind", "bytes"),
    FILLS: ("start", "end", "deviceId", "bytes"),
    GRAPHS: ("start", "end", "deviceId"),
    MEMORY: ("start", "deviceId", "address", "bytes", "memoryOperationType"),
    STRINGS: ("id", "value"),
}
_OPTIONAL = (PROCESS, MEMORY_KIND, GRAPH)
"""Columns that older reports lack; they may be empty."""
_TEXT = "value"
_MOST = 2**62
_MOST_ROWS = 5_000_000
"""Rows of all tables that are read; a step of a large model has some 100,000."""
_LEAST_ROW_BYTES = 4
"""Bytes that a row takes in a file at the least: a cell with its header, and the pointer to it."""
_LONGEST_VALUE_BYTES = 2**20


class Tables:
    """The tables of a report that is open."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path, self._database = path, database
        self._rows_left = min(_MOST_ROWS, path.stat().st_size // _LEAST_ROW_BYTES)

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table as they lie in the file; none of a table that is not there.

        Raises TraceError for a view, a table without a column that is needed, values that are no whole
        numbers, ends before starts, and more rows than a file of this size can hold.
        """
        if not self._is_table(table):
            return
        present = [row[1] for row in self._database.execute(f"PRAGMA table_info({table})")]
        missing = set(_COLUMNS[table]) - set(present)
        if missing:
            raise self._refusal(table, f"no column {choices_text(missing)}", WHAT)
        columns = [*_COLUMNS[table], *(name for name in _OPTIONAL if name in present)]
        names = ", ".join(f'"{name}"' for name in columns)
        for row in self._database.execute(f"SELECT {names} FROM {table}"):
            self._rows_left -= 1
            if self._rows_left < 0:
                room = "no more than the file has room for (nsys profile --duration records less)"
                raise self._refusal(table, "rows without an end", f"at most {_MOST_ROWS} rows, and {room}")
            found = dict(zip(columns, row, strict=True))
            self._check(table, found)
            yield found

    def _is_table(self, name: str) -> bool:
        """Return whether there is such a table. Raises TraceError for a view, or a table made by code."""
        query = "SELECT type, sql FROM sqlite_master WHERE name = ?"
        for kind, sql in self._database.execute(query, (name,)):
            words = str(sql).split(maxsplit=2)
            if kind != "table" or [word.upper() for word in words[:2]] != ["CREATE", "TABLE"]:
                found = kind if kind != "table" else "virtual table"
                raise self._refusal(name, f"a {found}", "a table, as nsys export writes it")
            return True
        return False

    def _check(self, table: str, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            is_number = isinstance(value, int) and 0 <= value < _MOST
            if name != _TEXT and not is_number and not (name in _OPTIONAL and value is None):
                raise self._refusal(f"{table}.{name}", shown(value), "a whole number, at least 0")
        if row.get("end", _MOST) < row.get("start", 0):
            raise self._refusal(table, "an end before its start", WHAT)

    def _refusal(self, place: str, found: str, allowed: str) -> TraceError:
        return TraceError.at(f"{self._path}: {place}", found, allowed)


@contextmanager
def open_report(path: Path) -> Iterator[Tables]:
    """Open a report, which is read only. Raises TraceError for a file that is none, or is not finished."""
    if not path.is_file():
        raise TraceError(f"{path}: found no such file; allowed: {WHAT}")
    for end in ("-wal", "-journal"):
        beside = path.with_name(f"{path.name}{end}")
        if beside.exists() and beside.stat().st_size:
            raise TraceError(f"{path}: found {beside.name} next to it; allowed: an export that has ended")
    # An immutable file is read without locks and without files next to it.
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
            yield Tables(path, database)
    except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}; allowed: {WHAT}") from error
