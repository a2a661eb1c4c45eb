"""The files of a sizing: one row per search, and the curves of performance over an amount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from g10sim.checksums import unsealed
from g10sim.errors import ConfigError
from g10sim.results.reading import read_csv

if TYPE_CHECKING:
    import pandas as pd

SIZING, CURVES, DESCRIPTION = "sizing.csv", "curves.csv", "sizing.json"
"""Files of a directory that ``g10sim size`` writes."""


def read_sizing(directory: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read ``sizing.csv`` and ``curves.csv`` of a sizing.

    Raises ConfigError if there are none, or if they are not those that ``sizing.json`` describes.
    """
    directory = Path(directory)
    path = directory / DESCRIPTION
    try:
        described = unsealed(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{path}: cannot be read: {error}"
        raise ConfigError(f"{problem}; allowed: a directory written by 'size'") from error
    if described is None:
        raise ConfigError(f"{path}: is damaged or was edited; allowed: running 'size' again")
    return read_csv(directory, SIZING, described), read_csv(directory, CURVES, described)
