"""The form of the files that a run writes: keys in them, and what readers may count on, whoever wrote one."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from g10sim.errors import ConfigError, shown
from g10sim.results.columns import OK, STATUSES, metric_columns, tier_columns, tiers_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

KEYS_FIELD = "g10sim.cells"
"""Entry of a table's metadata: numbers of cells and the keys of their results, as JSON."""

TIMELINE = "timeline"

_NAMED = ("cell", "trace", "policy", "status")
_DESCRIBED = ("name", "model", "batch_size", "seed", "message")
_OPTIONAL = frozenset({"iterations", "steady", "period", "spread", "samples_per_s"})
"""Metrics that results of a cell that ran may lack."""
_TEXTS = ("policy", "trace")
_ALLOWED = "allowed: a file written by 'run'"

_SPAN = ("cell", "job", "gpu", "start", "end")
_COUNTS = {
    "kernels": (*_SPAN, "iteration", "kernel", "compute_cycles", "overlap_cycles"),
    "migrations": (*_SPAN, "tensor", "size_bytes"),
    "memory": ("cell", "time", "gpu", "gpu_bytes"),
}
"""Columns of whole numbers from 0, by table."""
_PLACES = {"migrations": ("source", "target", "cause")}
"""Columns of text, by table."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Trace(_Part):
    path: str
    sha256: str


class _Cell(_Part):
    cell: Annotated[int, Field(ge=0)]
    key: str


class _Provenance(_Part):
    traces: dict[str, _Trace]
    cells: list[_Cell] = []
    files: dict[str, str] = {}


def check_provenance(path: Path, found: dict[str, Any]) -> None:
    """Check that the contents of ``provenance.json`` have its form. Raises ConfigError."""
    try:
        _Provenance.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        problem = f"found {shown(first['input'])}: {first['msg']}"
        raise ConfigError(f"{path}: {place}: {problem}; {_ALLOWED}") from None


def check_results(path: Path, results: pd.DataFrame, *, whole: bool) -> None:
    """Check the columns of results and what is in them, those of metrics and descriptions if ``whole``.

    Raises ConfigError.
    """
    import pandas as pd

    columns = [str(column) for column in results.columns]
    metrics = metric_columns(tiers_of(columns))
    wanted = (*_NAMED, *_DESCRIBED, *metrics) if whole else _NAMED
    for name in wanted:
        if name not in columns and name not in _OPTIONAL:
            raise ConfigError(f"{path}: found no column '{name}'; {_ALLOWED}")
    ran, may_lack = results["status"] == OK, _OPTIONAL | tier_columns(columns)
    for name in (name for name in ("cell", *metrics) if name in columns):
        is_number = pd.api.types.is_numeric_dtype(results[name])
        if not is_number and not set(results[name].dropna()) <= {True, False}:
            raise ConfigError(f"{path}: found text in column '{name}'; {_ALLOWED}")
        needed = results[name] if name == "cell" else results.loc[ran, name]
        if (name == "cell" or (whole and name not in may_lack)) and needed.isna().any():
            raise ConfigError(f"{path}: found nothing in column '{name}' of a cell; {_ALLOWED}")
    if (results["cell"] % 1 != 0).any() or (results["cell"] < 0).any():
        raise ConfigError(f"{path}: found cells that are no whole numbers from 0; {_ALLOWED}")
    for name in _TEXTS:
        if not all(isinstance(value, str) for value in results[name]):
            raise ConfigError(f"{path}: found no text in column '{name}'; {_ALLOWED}")
    strange = [value for value in results["status"] if value not in STATUSES]
    if strange:
        raise ConfigError(f"{path}: status: found {shown(strange[0])}; allowed: {', '.join(STATUSES)}")


def check_columns(path: Path, table: str, names: Container[str]) -> None:
    """Check that a table of records has its columns. Raises ConfigError."""
    for name in (*_COUNTS.get(table, ("cell",)), *_PLACES.get(table, ())):
        if name not in names:
            raise ConfigError(f"{path}: found no column '{name}'; {_ALLOWED}")


def check_table(path: Path, table: str, found: pd.DataFrame) -> None:
    """Check what is in the columns of a table of records, which are there. Raises ConfigError."""
    import pandas as pd

    for name in _COUNTS.get(table, ("cell",)):
        if not pd.api.types.is_integer_dtype(found[name]) or (found[name] < 0).any():
            raise ConfigError(f"{path}: found other than whole numbers from 0 in column '{name}'; {_ALLOWED}")
    stalls = [name for name in found if str(name).startswith("stall_")]
    if any(not pd.api.types.is_integer_dtype(found[name]) for name in stalls):
        raise ConfigError(f"{path}: found stalls that are no whole numbers; {_ALLOWED}")
    for name in _PLACES.get(table, ()):
        if not all(isinstance(value, str) for value in found[name].unique()):
            raise ConfigError(f"{path}: found no text in column '{name}'; {_ALLOWED}")


def write_keyed(table: pa.Table, keys: Mapping[str, str], path: Path) -> None:
    """Write a table that carries keys by the number of the cell (empty for a table of one cell)."""
    import pyarrow.parquet as pq

    pq.write_table(table.replace_schema_metadata({KEYS_FIELD: json.dumps(keys)}), path)


def keys_of(schema: pa.Schema) -> dict[str, str]:
    """Return the keys that a table carries; none if it was written by another program."""
    found = json.loads((schema.metadata or {}).get(KEYS_FIELD.encode(), b"{}"))
    return found if isinstance(found, dict) else {}


def timeline_name(cell: int) -> str:
    """Return the name of a cell's timeline in a directory of results."""
    return f"{TIMELINE}/{cell}.json.gz"
