"""The directory of results: finished cells for resuming, and the files made from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError
from g10sim.files import replacing, write_text
from g10sim.records import RunRecords
from g10sim.stats.tables import TRACE_TABLES, records_table
from g10sim.stats.timeline import chrome_trace
from g10sim.trace.workload import Job, Workload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.parquet as pq

_CELLS = "cells"
_LOCK = "lock"


class CellStore:
    """Finished cells under ``DIR/cells``, by key: one JSON file each, and its tables beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cells = directory / _CELLS

    def prepare(self) -> None:
        """Make the directories. Raises ConfigError when they cannot be written."""
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
            with replacing(self._cells / "probe") as probe:
                probe.write_text("")
            (self._cells / "probe").unlink()
        except OSError as error:
            raise ConfigError(
                f"output {self._directory}: cannot be written: "
                f"{error.strerror}; allowed: a writable directory"
            ) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the directory against other runs; the lock ends with the process at the latest.

        Raises ConfigError if another run holds the lock. Does nothing on file systems without locks.
        """
        lock = filelock.FileLock(self._cells / _LOCK)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout as error:
            raise ConfigError(
                f"output {self._directory}: is being written by another run; allowed: another directory, or "
                "the same one when that run has ended"
            ) from error
        except NotImplementedError:
            pass
        try:
            yield
        finally:
            lock.release()

    def save(self, key: str, outcome: Mapping[str, Any]) -> None:
        """Keep the outcome of a cell. Raises OSError."""
        write_text(self._cells / f"{key}.json", json.dumps(outcome, sort_keys=False) + "\n")

    def load(self, key: str, tables: Iterable[str]) -> dict[str, Any] | None:
        """Return the outcome of a cell that ran to its end with all its tables, else None."""
        try:
            outcome = json.loads((self._cells / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = isinstance(outcome, dict) and outcome.keys() == {"status", "message", "rows", "timing"}
        if not whole or (outcome["status"] == "ok" and not all(self.table(key, t).is_file() for t in tables)):
            return None
        return dict(outcome)

    def forget(self, key: str) -> None:
        """Drop the outcome of a cell, so that it counts as not run. Raises OSError."""
        (self._cells / f"{key}.json").unlink(missing_ok=True)

    def table(self, key: str, table: str) -> Path:
        """Path of a table of a cell."""
        return self._cells / f"{key}.{table}.{'json' if table == 'timeline' else 'parquet'}"

    def save_tables(
        self, key: str, tables: Iterable[str], records: RunRecords, workload: Workload, system: SystemSpec
    ) -> None:
        """Keep the tables that were asked for. Raises OSError."""
        for table in tables:
            with replacing(self.table(key, table)) as temporary:
                if table == "timeline":
                    timeline = chrome_trace(workload, system, records)
                    temporary.write_text(json.dumps(timeline), encoding="utf-8")
                else:
                    frame = _frame(table, records, workload.jobs, system.gpu.clock)
                    frame.to_parquet(temporary, index=False)

    def merge_table(self, table: str, cells: Iterable[tuple[int, str]], directory: Path) -> None:
        """Write ``DIRECTORY/TABLE.parquet`` (``timeline/CELL.json``) from tables of cells (index, key)."""
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        if table == "timeline":
            target = directory / "timeline"
            target.mkdir(exist_ok=True)
            for index, key in cells:
                write_text(target / f"{index}.json", self.table(key, table).read_text(encoding="utf-8"))
            return
        writer: pq.ParquetWriter | None = None
        with replacing(directory / f"{table}.parquet") as temporary:
            try:
                for index, key in cells:
                    part = pq.read_table(self.table(key, table))
                    column = pa.array([index] * part.num_rows, type=pa.int64())
                    part = part.add_column(0, "cell", column).replace_schema_metadata(None)
                    writer = writer or pq.ParquetWriter(temporary, part.schema)
                    writer.write_table(part)
            finally:
                if writer is not None:
                    writer.close()
            if writer is None:
                empty = _frame(table, RunRecords(()), (), 1)
                empty.insert(0, "cell", pd.Series(dtype="int64"))
                empty.to_parquet(temporary, index=False)


def _frame(table: str, records: RunRecords, jobs: Sequence[Job], clock_hz: int) -> pd.DataFrame:
    if table in TRACE_TABLES:
        return TRACE_TABLES[table](jobs, clock_hz)
    return records_table(table, records)
