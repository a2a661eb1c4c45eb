"""Inactive periods of traces, from the table ``inactive_periods``."""

from __future__ import annotations

import pandas as pd

from g10sim.plots.traces import records, that_ran
from g10sim.stats.one_cell import of_cell, seconds_per_cycle


def periods_of_traces(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of the table by trace, with their length in a column ``seconds``, if they have one.

    Of several cells with one trace the first that ran counts: the table depends on the trace alone.
    """
    some = inactive_periods[inactive_periods["cycles"] > 0]
    found = {}
    for cell in records(that_ran(results).drop_duplicates("trace")):
        rows = of_cell(some, cell)
        found[cell["trace"]] = rows.assign(seconds=rows["cycles"] * seconds_per_cycle(cell))
    return found
