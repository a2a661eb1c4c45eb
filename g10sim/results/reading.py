"""A directory of results: ``results.csv``, the tables next to it, one cell with its time; or of a sizing."""

from __future__ import annotations

import io
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from g10sim.errors import ConfigError, few
from g10sim.files import bytes_hash, unsealed
from g10sim.results.columns import OK, stall_reasons, tier_columns
from g10sim.results.legends import ATTRIBUTE
from g10sim.results.swept import differing_keys
from g10sim.results.written import check_columns, check_provenance, check_results, check_table, keys_of

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

RESULTS, TIMING = "results.csv", "timing.csv"
CONFIGURATION, PROVENANCE = "config.yaml", "provenance.json"
REPORT = "report.html"
"""Files of a directory of results."""

PICTURES = "figures"
"""Directory of the pictures inside that of the results."""

KEYS = "cells"
"""Attribute of results and tables: the keys of cells by their numbers."""

TIMED_FOR = "timed_for"
"""Attribute of results: by numbers of cells the GPUs that kernel times are for, if not for the system's."""

MACHINE = "machine"
"""Attribute of results that figures have: the machine that all of them ran on, in words."""

_AGAIN = "allowed: running the configuration again, which writes it again"
_TABLE = "a table written by 'run'"
_NUMBERS_AT_ONCE = 2**22
SIZING, CURVES, DESCRIPTION = "sizing.csv", "curves.csv", "sizing.json"
"""Files of a directory that ``g10sim size`` writes."""


def read_results(directory: str | Path) -> pd.DataFrame:
    """Read ``results.csv`` of a directory of results, with legends and keys of cells as attributes.

    Results without ``provenance.json`` can be read as well. Raises ConfigError if there are none, or if they
    are not those that ``provenance.json`` describes.
    """
    directory = Path(directory)
    provenance = read_provenance(directory) if (directory / PROVENANCE).exists() else {}
    results = read_csv(directory, RESULTS, provenance)
    check_results(directory / RESULTS, results, whole=bool(provenance))
    ran = results["status"] == OK
    for name in tier_columns(results.columns).intersection(results.columns):
        results.loc[ran, name] = results.loc[ran, name].fillna(0)  # of a tier that the cell's system lacks
    legends = provenance.get(ATTRIBUTE)
    results.attrs[ATTRIBUTE] = legends if isinstance(legends, dict) else {}
    results.attrs[KEYS] = cell_keys(provenance)
    entries = provenance.get("cells", ())
    results.attrs[TIMED_FOR] = {entry["cell"]: entry[TIMED_FOR] for entry in entries if TIMED_FOR in entry}
    return results


def read_table(directory: str | Path, table: str) -> pd.DataFrame:
    """Read ``TABLE.parquet`` of a directory of results: the rows of cells that are in these results.

    Raises ConfigError if there is none, or if it is not the one that ``provenance.json`` describes.
    """
    import pandas as pd

    file = TableFile(Path(directory), table)
    with _reading(file.path, _TABLE):
        found = pd.read_parquet(io.BytesIO(file.data))
    check_table(file.path, table, found)
    if file.has_others:
        found = found[found["cell"].isin(list(file.keys))].reset_index(drop=True)
    found.attrs[KEYS] = file.keys
    return found


class TableFile:
    """``TABLE.parquet`` of a directory of results, of which parts can be read.

    ``keys`` are those of the cells in these results, by number. The table ``has_others``, too, where a
    later run wrote other results. Raises ConfigError as :func:`read_table` does.
    """

    def __init__(self, directory: Path, table: str, provenance: Mapping[str, Any] | None = None) -> None:
        import pyarrow.parquet as pq

        self._table, self.path = table, directory / f"{table}.parquet"
        if not self.path.is_file():
            raise ConfigError.at(self.path, "no such file", f"results of a run with 'record: [{table}]'")
        provenance = read_provenance(directory) if provenance is None else provenance
        self.data = read_checked(directory, self.path.name, {"files": {}, **provenance})
        with _reading(self.path, _TABLE):
            metadata = pq.read_metadata(io.BytesIO(self.data))
            schema = metadata.schema.to_arrow_schema()
            carried = keys_of(schema)
        self._names, self._count = schema.names, metadata.num_rows
        check_columns(self.path, table, self._names)
        keys = cell_keys(provenance)
        self.keys = {cell: key for cell, key in keys.items() if carried.get(str(cell)) == key}
        self.has_others = len(self.keys) < len(carried)

    def of(self, row: Mapping[str, Any]) -> pd.DataFrame:
        """Return the records of the cell and job of a row of results."""
        return self._rows(_chosen(row))

    def reported(self, row: Mapping[str, Any]) -> pd.DataFrame:
        """Return the kernels of the iteration that a row of results reports; no others are read whole."""
        chosen = _chosen(row)
        spans = self._rows(chosen, ["iteration", "start", "end"])
        if spans.empty:
            raise ConfigError(f"{self.path}: found no kernels of cell {row['cell']}; {_AGAIN}")
        chosen["iteration"] = _reported_iteration(spans, row)
        return _with_stalls(self._rows(chosen, most=len(spans)))

    def _rows(
        self, chosen: Mapping[str, int], columns: Sequence[str] | None = None, most: int | None = None
    ) -> pd.DataFrame:
        """Return rows with these values; if there may be many (at ``most``), few columns are read at once."""
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        filters = [(column, "==", int(value)) for column, value in chosen.items()]
        names = columns or self._names
        found: dict[str, Any] = {}
        with _reading(self.path, _TABLE, pa.ArrowException):
            at_once = max(1, _NUMBERS_AT_ONCE // max(1, self._count if most is None else most))
            for start in range(0, len(names), at_once):
                some = names[start : start + at_once]
                part = pq.read_table(io.BytesIO(self.data), columns=some, filters=filters)
                found |= map(_slim, part.to_pandas(split_blocks=True, self_destruct=True).items())
                del part
                pa.default_memory_pool().release_unused()
        table = pd.DataFrame(found, copy=False)
        if columns is None:
            check_table(self.path, self._table, table)
            del table["cell"]
        return table


def _slim(column: tuple[Hashable, pd.Series[Any]]) -> tuple[str, Any]:
    """Return the name and the values of a column; a number in all rows of it takes the room of one."""
    name, values = column
    if values.dtype == np.int64 and len(values) and (values == values.iloc[0]).all():
        return str(name), np.broadcast_to(values.to_numpy()[:1].copy(), len(values))
    return str(name), values


def read_provenance(directory: str | Path) -> dict[str, Any]:
    """Read ``provenance.json`` of some results. Raises ConfigError if there is none, or it changed."""
    path = Path(directory) / PROVENANCE
    with _reading(path, "a file written by 'run'"):
        found = json.loads(path.read_bytes())
    if not isinstance(found, dict) or not isinstance(found.get("traces"), dict):
        raise ConfigError(f"{path}: found no traces; allowed: a file written by 'run'")
    whole = unsealed(found) if "sha256" in found else found  # older results have no checksum
    if whole is None:
        raise ConfigError(f"{path}: is damaged or was edited; {_AGAIN}")
    check_provenance(path, whole)
    return whole


def read_checked(directory: Path, name: str, provenance: Mapping[str, Any]) -> bytes:
    """Read a file of some results. Raises ConfigError if it is not the one that ``provenance`` names."""
    path = directory / name
    with _reading(path, "a directory written by 'run'"):
        data = path.read_bytes()
    if "files" in provenance and provenance["files"].get(name) != bytes_hash(data):
        raise ConfigError(f"{path}: is damaged, was edited, or belongs to another run; {_AGAIN}")
    return data


def read_csv(directory: Path, name: str, provenance: Mapping[str, Any]) -> pd.DataFrame:
    """Read a CSV file of some results. Raises ConfigError for another one, and for one that is no table."""
    import pandas as pd

    data = read_checked(directory, name, provenance)
    with _reading(directory / name, "a directory written by 'run'"):
        return pd.read_csv(io.BytesIO(data))


def cell_keys(provenance: Mapping[str, Any]) -> dict[int, str]:
    """Return the keys of cells that have a result, by their numbers."""
    return {entry["cell"]: entry["key"] for entry in provenance.get("cells", ())}


@contextmanager
def _reading(path: Path, allowed: str, further: type[Exception] = OSError) -> Iterator[None]:
    """Turn an error of the block, which reads a file (``further``: of its reader), into a ConfigError."""
    try:
        yield
    except (OSError, ValueError, RecursionError, further) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; allowed: {allowed}") from error


def row_of_cell(results: pd.DataFrame, cell: int | None = None, job: int = 0) -> dict[str, Any]:
    """Return the row of a cell (and of one of its jobs) by column; without a number of the only one that ran.

    Raises ConfigError where there is no such cell or job, or it did not run.
    """
    rows = rows_of_cell(results, cell)
    if not 0 <= job < len(rows):
        chosen = rows[0]["cell"]
        raise ConfigError(f"job {job}: found no such job in cell {chosen}; allowed: 0 to {len(rows) - 1}")
    return rows[job]


def rows_of_cell(results: pd.DataFrame, cell: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a cell, one for each job that ran; without a number of the only cell that ran.

    Raises ConfigError where there is no such cell, or it did not run.
    """
    ran = results[results["status"] == OK]
    numbers = [int(number) for number in ran["cell"].unique()]
    if cell is None and len(numbers) != 1:
        keys = differing_keys(ran) if numbers else ()
        by_name = f", by its number or by {', '.join(keys)}" if keys else ""
        raise ConfigError(f"cell: found none; allowed: one of those that ran, {_listed(numbers)}{by_name}")
    chosen = numbers[0] if cell is None else cell
    if chosen not in numbers:
        known = results[results["cell"] == chosen]
        why = "no such cell" if known.empty else f"status '{known['status'].iloc[0]}'{_reason(known)}"
        raise ConfigError(f"cell {chosen}: found {why}; allowed: one that ran, {_listed(numbers)}")
    return records(ran[ran["cell"] == chosen])


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as mappings from column to value."""
    return [{str(column): value for column, value in row.items()} for row in table.to_dict("records")]


def _reason(rows: pd.DataFrame) -> str:
    """Say why a cell did not run, where results say so."""
    found = rows["message"].iloc[0] if "message" in rows else None
    return f" ({found})" if isinstance(found, str) and found else ""


def _chosen(row: Mapping[str, Any]) -> dict[str, int]:
    return {column: row[column] for column in ("cell", "job") if column in row}


def of_cell(table: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of a table that belong to the cell (and, where tables know jobs, the job) of a row."""
    for column in ("cell", "job"):  # tables of a single simulation have no cells
        if column in table and column in row:
            table = _rows_where(table, table[column] == row[column])
    return table.drop(columns="cell", errors="ignore").reset_index(drop=True)


def _rows_where(table: pd.DataFrame, mask: pd.Series[bool]) -> pd.DataFrame:
    """Return the rows of a table for which a mask is true: the table itself, not a copy, if all are."""
    return table if mask.all() else table.loc[mask]


def reported_kernels(kernels: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    """Return the kernels (of one cell and job) of the iteration that the row reports.

    That is the last one whose time is ``exec_cycles``; of averages and rounded results the one nearest to it.
    """
    mask = kernels["iteration"] == _reported_iteration(kernels, row)
    return _with_stalls(_rows_where(kernels, mask).reset_index(drop=True))


def _reported_iteration(kernels: pd.DataFrame, row: Mapping[str, Any]) -> int:
    spans = kernels.groupby("iteration").agg(start=("start", "min"), end=("end", "max"))
    apart = (spans["end"] - spans["start"] - row["exec_cycles"]).abs()
    return int(apart[apart == apart.min()].index[-1])


def _with_stalls(kernels: pd.DataFrame) -> pd.DataFrame:
    return kernels.assign(stall_cycles=sum(kernels[column] for column in stall_reasons(kernels)))


def seconds_per_cycle(row: dict[str, Any]) -> float:
    """Return the length of a cycle; 0 for a run that took none."""
    return float(row["exec_ms"] / 1000 / row["exec_cycles"]) if row["exec_cycles"] else 0.0


def busy_share(starts: pd.Series[int], ends: pd.Series[int], edges: list[float]) -> list[float]:
    """Return for each bin between neighbouring ``edges`` the share of it that some interval covers."""
    covered, widths = np.diff(covered_until(np.array(edges), starts, ends)), np.diff(edges)
    shares: list[float] = np.divide(covered, widths, out=np.zeros_like(widths), where=widths > 0).tolist()
    return shares


def covered_until(
    times: npt.NDArray[Any], starts: pd.Series[int], ends: pd.Series[int]
) -> npt.NDArray[np.float64]:
    """Return how much of the time until each of ``times`` is covered by some interval."""
    if starts.empty:
        return np.zeros(times.shape)
    order = np.argsort(starts.to_numpy(), kind="stable")
    first, last = starts.to_numpy()[order], np.maximum.accumulate(ends.to_numpy()[order])
    first[1:] = np.maximum(first[1:], last[:-1])
    total = np.cumsum(last - first)
    bounds = np.column_stack([first, last]).ravel()
    covered = np.column_stack([total - (last - first), total]).ravel()
    until: npt.NDArray[np.float64] = np.interp(times, bounds, covered)
    return until


def _listed(numbers: list[int]) -> str:
    return few(map(str, numbers), 12) or "of which there is none"


def read_sizing(directory: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read ``sizing.csv`` and ``curves.csv`` of a sizing.

    Raises ConfigError if there are none, or if they are not those that ``sizing.json`` describes.
    """
    directory = Path(directory)
    path = directory / DESCRIPTION
    with _reading(path, "a directory written by 'size'"):
        described = unsealed(json.loads(path.read_bytes()))
    if described is None:
        raise ConfigError(f"{path}: is damaged or was edited; allowed: running 'size' again")
    return read_csv(directory, SIZING, described), read_csv(directory, CURVES, described)
