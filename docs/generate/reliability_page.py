"""The page of hard use: cases tried and faults survived."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tables import table

_INTRODUCTION = """# Hard use

Written by `python docs/generate reliability` from the files of `python tests/fuzz`; the test suite runs
a few hundred of the same cases, and every fault.

## Cases

Damaged files are valid ones with one to three damages: lines dropped, doubled, swapped or cut off,
values replaced by extreme ones, types changed, keys added, bytes overwritten, archives cut short. Each
must be read as what it says or be refused with one printable line. Random workloads are drawn together
with a system (one to three GPUs, memory from too little to plenty, links shared in every way) and a
policy, jobs that arrive, share a GPU or exchange gradients among them, and run with every invariant
tested: capacity, data present, conservation of pages, order of kernels, owners of all cycles. They must
run, or be refused because memory is too small, the design does not support them, or the combination is
not allowed.
"""


def page(results: Path) -> str:
    """Return the page. Raises OSError when the files are not there."""
    cases = pd.read_csv(results / "cases.csv", dtype=str)
    faults = pd.read_csv(results / "faults.csv", dtype=str)
    numbers = ["cases", "failures"]
    rows = [[row.kind, row.outcomes, f"{int(row.cases):,}", row.failures] for row in cases.itertuples()]
    parts = [
        _INTRODUCTION,
        table(("kind", "outcomes"), numbers, rows),
        "## Faults\n\nIn the middle of a sweep of twelve cells on two workers:\n",
        table(("fault", "outcome"), (), faults.itertuples(index=False)),
    ]
    return "\n".join(parts)
