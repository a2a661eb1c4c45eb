"""The directory of results: finished cells for resuming, and the files made from them."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from g10sim.config.run import Table
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.experiment.known_traces import KnownTraces
from g10sim.files import file_hash, replacing, sealed, stamped, unsealed, writing
from g10sim.records import RunRecords
from g10sim.results.columns import OK
from g10sim.results.written import KEYS_FIELD, TIMELINE, keys_of, timeline_name, write_keyed
from g10sim.trace.workload import Job, Workload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CELLS = "cells"
"""Directory of the finished cells inside that of the results."""

_LOCK, _TRACES = "lock", "traces"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_log = logging.getLogger(__name__)

Origins = Mapping[int, Mapping[str, Any]]
"""Origins of results by the numbers of their cells: see :class:`g10sim.experiment.cells.CellResult`."""


class CellStore:
    """Finished cells under ``DIR/cells``, by key: one JSON file each, and its tables next to it.

    What is known about their traces lies there, too.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cells = directory / CELLS

    @cached_property
    def known_traces(self) -> KnownTraces:
        """Facts that earlier runs of this directory have found about traces."""
        return KnownTraces(self._cells / _TRACES)

    def prepare(self) -> None:
        """Make the directories. Raises ConfigError when they cannot be written."""
        with writing(f"output {self.directory}", ConfigError, "a writable directory"):
            self._cells.mkdir(parents=True, exist_ok=True)
            with replacing(self._cells / "probe") as probe:
                probe.write_text("")
            (self._cells / "probe").unlink()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the directories and lock them against other runs; it ends with the process at the latest.

        Raises ConfigError if they cannot be written, or if another run holds the lock. Nothing is locked on
        file systems without locks.
        """
        self.prepare()
        lock = self._locked()
        if lock is None:
            yield
            return
        try:
            self._clear()
            yield
        finally:
            self._clear()
            os.close(lock)

    def _locked(self) -> int | None:
        """Return the open file whose lock this process holds; None on file systems without locks."""
        lock = os.open(self._cells / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                problem = f"output {self.directory}: is being written by another run"
                allowed = "another directory, or the same one when that run has ended"
                raise ConfigError(f"{problem}; allowed: {allowed}") from error
            if error.errno not in _NO_LOCKS:
                raise
            return None
        return lock

    def _clear(self) -> None:
        """Remove what processes that were killed left half-written; no other may be writing it."""
        for place in (self.directory, self._cells):
            for stray in place.glob(".*.tmp"):
                stray.unlink(missing_ok=True)

    def save(self, key: str, outcome: Mapping[str, Any], tables: Iterable[str]) -> None:
        """Keep the outcome of a cell and the checksums of its tables. Raises OSError."""
        hashes = {table: file_hash(self.table(key, table)) for table in tables}
        with _lasting(self._cells / f"{key}.json") as temporary:
            temporary.write_text(json.dumps(sealed({**outcome, "tables": hashes})) + "\n", encoding="utf-8")

    def load(self, key: str, tables: Iterable[str]) -> dict[str, Any] | None:
        """Return the outcome of a cell that ran to its end with all its tables, else None.

        A file that is not as it was written is named in a warning.
        """
        path = self._cells / f"{key}.json"
        outcome = self._outcome(key)
        if outcome is None:
            if path.exists():
                _warn(path)
            return None
        hashes = outcome.pop("tables")
        for table in tables:
            if outcome["status"] == OK and hashes.get(table) != file_hash(self.table(key, table)):
                _warn(self.table(key, table))
                return None
        return outcome

    def result_key(self, key: str) -> str:
        """Return the key of the stored result of a cell; without one that of the cell."""
        outcome = self._outcome(key)
        return key if outcome is None else str(outcome["origin"]["key"])

    def _outcome(self, key: str) -> dict[str, Any] | None:
        """Return the stored outcome of a cell; None where there is none, or it is not as it was written."""
        try:
            return unsealed(json.loads((self._cells / f"{key}.json").read_bytes()))
        except (OSError, ValueError, RecursionError):
            return None

    def forget(self, key: str) -> None:
        """Drop the outcome of a cell, so that it counts as not run. Raises OSError."""
        (self._cells / f"{key}.json").unlink(missing_ok=True)

    def table(self, key: str, table: str) -> Path:
        """Path of a table of a cell."""
        return self._cells / f"{key}.{table}.{'json.gz' if table == TIMELINE else 'parquet'}"

    def save_tables(
        self,
        key: str,
        tables: Iterable[str],
        records: RunRecords,
        workload: Workload,
        system: SystemSpec,
        carried: str,
    ) -> None:
        """Keep the tables that were asked for; each carries the key ``carried``. Raises OSError."""
        from g10sim.results.timeline import chrome_trace  # only who simulates makes tables

        for table in tables:
            with _lasting(self.table(key, table)) as temporary:
                if table == TIMELINE:
                    text = json.dumps(chrome_trace(workload, system, records, carried), separators=(",", ":"))
                    # Without a time they are the same bytes every time.
                    temporary.write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
                else:
                    frame = _frame(table, records, workload.jobs, system.gpu.clock)
                    write_keyed(_arrow(frame), {"": carried}, temporary)

    def merge_table(self, table: str, origins: Origins, directory: Path) -> dict[str, str]:
        """Write ``DIRECTORY/TABLE.parquet`` (``timeline/CELL.json.gz``) from tables of cells.

        Returns the checksums of the files by their names. Raises ConfigError.
        """
        with writing(directory / table, ConfigError):
            if table == TIMELINE:
                return self._copy_timelines(origins, directory)
            path = directory / f"{table}.parquet"
            with replacing(path) as temporary:
                self._merge(table, origins, temporary)
            return {path.name: file_hash(path)}

    def _copy_timelines(self, origins: Origins, directory: Path) -> dict[str, str]:
        (directory / TIMELINE).mkdir(exist_ok=True)
        hashes = {}
        for cell, origin in origins.items():
            name = timeline_name(cell)
            with replacing(directory / name) as temporary:
                _share(self.table(origin["stored"], TIMELINE), temporary)
            hashes[name] = file_hash(directory / name)
        return hashes

    def _merge(self, table: str, origins: Origins, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        keys = {str(cell): origin["key"] for cell, origin in origins.items()}
        schema = self._schema(table, origins).insert(0, pa.field("cell", pa.int64()))
        schema = schema.with_metadata({KEYS_FIELD: json.dumps(keys)})
        with pq.ParquetWriter(path, schema) as writer:
            for cell, origin in origins.items():
                part = self._part(table, origin)
                for name in set(schema.names).difference(part.column_names):
                    value = pa.scalar(cell if name == "cell" else 0, schema.field(name).type)
                    part = part.append_column(name, pa.repeat(value, part.num_rows))
                writer.write_table(part.select(schema.names))
            if not origins:
                writer.write_table(schema.empty_table())

    def _schema(self, table: str, origins: Origins) -> pa.Schema:
        """Return the columns of the tables of cells; some tables may lack numbers, which are 0 then."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schemas = []
        for origin in origins.values():
            path = self.table(origin["stored"], table)
            with _undamaged(path):
                schemas.append(pq.read_schema(path))
        return pa.unify_schemas(schemas or [_arrow(_frame(table, RunRecords(()), (), 1)).schema])

    def _part(self, table: str, origin: Mapping[str, Any]) -> pa.Table:
        """Read the table of a cell. Raises ConfigError if it was damaged since it was checked."""
        import pyarrow.parquet as pq

        path = self.table(origin["stored"], table)
        with _undamaged(path):
            part = pq.read_table(path)
            if keys_of(part.schema) != {"": origin["key"]}:
                raise ValueError("it is that of another cell")
        return part


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    """Raise ConfigError for a table that was damaged since it was checked."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        problem = f"{path}: is damaged"
        raise ConfigError(f"{problem}; allowed: running the same again, which repeats its cell") from error


def _share(source: Path, target: Path) -> None:
    """Give a file a second name, which takes no room; where that cannot be, copy it. Raises OSError."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def remove_tables(directory: Path) -> None:
    """Remove the tables and timelines of an earlier run. Raises OSError."""
    for table in set(get_args(Table)) - {"summary", TIMELINE}:
        (directory / f"{table}.parquet").unlink(missing_ok=True)
    for path in (directory / TIMELINE).glob("*.json*"):
        if path.name.partition(".")[0].isdigit():
            path.unlink()
    with suppress(OSError):  # it has none, or holds files of others
        (directory / TIMELINE).rmdir()


def remove_pictures(paths: Iterable[Path], keys: Collection[str]) -> None:
    """Remove those of some files that show cells with other keys; others' files stay. Raises OSError."""
    for path in list(paths):
        shown = stamped(path.read_bytes()) if path.is_file() else None
        if shown is not None and not shown <= set(keys):
            path.unlink()


@contextmanager
def _lasting(path: Path) -> Iterator[Path]:
    """Replace a file so that after a power failure the old or the new one is there, whole."""
    with replacing(path) as temporary:
        yield temporary
        _flush(temporary)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _warn(path: Path) -> None:
    _log.warning("%s: is damaged, missing or was edited; its cell is run again", path)


def _arrow(frame: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)


def _frame(table: str, records: RunRecords, jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    from g10sim.results.tables import TRACE_TABLES, records_table  # only who simulates makes tables

    if table in TRACE_TABLES:
        return TRACE_TABLES[table](jobs, clock_hz)
    return records_table(table, records, jobs)
