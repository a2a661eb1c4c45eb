"""The page of hard use: cases tried and faults survived."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tables import fill, table


def page(results: Path) -> str:
    """Return the page. Raises OSError when the files are not there."""
    cases = pd.read_csv(results / "cases.csv", dtype=str)
    faults = pd.read_csv(results / "faults.csv", dtype=str)
    numbers = ["cases", "failures", "memory (MB)"]
    rows = [
        [row.kind, row.outcomes, f"{int(row.cases):,}", row.failures, row.memory_mb]
        for row in cases.itertuples()
    ]
    return fill(
        "reliability",
        cases=table(("kind", "outcomes"), numbers, rows),
        faults=table(("fault", "outcome"), (), faults.itertuples(index=False)),
    )
