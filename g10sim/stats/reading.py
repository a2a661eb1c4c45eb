"""Reading a directory of results: ``results.csv`` and the tables beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from g10sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def read_results(directory: str | Path) -> pd.DataFrame:
    """Read ``results.csv`` of a directory of results. Raises ConfigError when there is none."""
    import pandas as pd

    path = Path(directory) / "results.csv"
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read: {error}; allowed: a directory written by 'run'"
        ) from error


def read_table(directory: str | Path, table: str) -> pd.DataFrame:
    """Read ``TABLE.parquet`` of a directory of results. Raises ConfigError when there is none."""
    import pandas as pd

    path = Path(directory) / f"{table}.parquet"
    if not path.is_file():
        raise ConfigError(f"{path}: found no such file; allowed: results of a run with 'record: [{table}]'")
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; allowed: a table written by 'run'") from error


def read_provenance(directory: str | Path) -> dict[str, Any]:
    """Read ``provenance.json`` of a directory of results. Raises ConfigError when there is none."""
    path = Path(directory) / "provenance.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; allowed: a file written by 'run'") from error
    if not isinstance(found, dict) or not isinstance(found.get("traces"), dict):
        raise ConfigError(f"{path}: found no traces; allowed: a file written by 'run'")
    return found
