"""Records as pandas tables, one row per record; the columns are the fields of the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from g10sim.records import KernelRecord, MemoryRecord, MigrationRecord
from g10sim.stats.summary import STALL_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

TABLES: Mapping[str, type] = {
    "kernels": KernelRecord,
    "migrations": MigrationRecord,
    "memory": MemoryRecord,
}


_COLUMN_TYPES = {"int": "int64", "tuple[tuple[StallReason, int], ...]": "object"}


def kernels_table(records: Iterable[KernelRecord]) -> pd.DataFrame:
    """One row per kernel execution; times in cycles, ``stalls`` spread over one column per reason."""
    import pandas as pd

    records = tuple(records)
    table = _table(KernelRecord, records).drop(columns="stalls")
    spread = [
        {f"stall_{reason.value}_cycles": cycles for reason, cycles in record.stalls} for record in records
    ]
    stalls = pd.DataFrame(spread, columns=list(STALL_COLUMNS), index=table.index)
    return table.join(stalls.fillna(0).astype("int64"))


def migrations_table(records: Iterable[MigrationRecord]) -> pd.DataFrame:
    """One row per migration; ``source`` and ``target`` by name (GPU, HOST, FLASH, NONE)."""
    return _table(MigrationRecord, tuple(records))


def memory_table(records: Iterable[MemoryRecord]) -> pd.DataFrame:
    """One row per change of the bytes in use."""
    return _table(MemoryRecord, tuple(records))


def _table(kind: type, records: tuple[Any, ...]) -> pd.DataFrame:
    """Make a table whose column types depend on the kind of record alone, also where there is none."""
    import pandas as pd

    types = {field.name: _COLUMN_TYPES.get(str(field.type), "string") for field in fields(kind)}
    table = pd.DataFrame({name: [_plain(getattr(record, name)) for record in records] for name in types})
    return table.astype(types)


def _plain(value: object) -> object:
    return value.name if isinstance(value, Enum) else value
