"""Tables as files: CSV, and Parquet that carries the keys of the cells that it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from g10sim.errors import ConfigError
from g10sim.files import write_text, writing
from g10sim.text import inert

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

KEYS_FIELD = "g10sim.cells"
"""Entry of a table's metadata: numbers of cells and the keys of their results, as JSON."""

TIMELINE = "timeline"


def write_keyed(table: pa.Table, keys: Mapping[str, str], path: Path) -> None:
    """Write a table that carries keys by the number of the cell (empty for a table of one cell)."""
    import pyarrow.parquet as pq

    pq.write_table(table.replace_schema_metadata({KEYS_FIELD: json.dumps(keys)}), path)


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV that no spreadsheet computes, whole or not at all. Raises ConfigError."""
    with writing(path, ConfigError):
        inert_table = table.rename(columns=inert).map(inert)
        write_text(path, inert_table.to_csv(index=False, lineterminator="\n"))


def keys_of(schema: pa.Schema) -> dict[str, str]:
    """Return the keys that a table carries; none if it was written by another program."""
    found = json.loads((schema.metadata or {}).get(KEYS_FIELD.encode(), b"{}"))
    return found if isinstance(found, dict) else {}


def timeline_name(cell: int) -> str:
    """Return the name of a cell's timeline in a directory of results."""
    return f"{TIMELINE}/{cell}.json.gz"
