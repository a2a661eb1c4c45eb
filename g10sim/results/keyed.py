"""Tables as Parquet files that carry the keys of the cells that they come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

KEYS_FIELD = "g10sim.cells"
"""Entry of a table's metadata: numbers of cells and the keys of their results, as JSON."""

TIMELINE = "timeline"


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
