"""Inactive periods of traces, from the table ``inactive_periods``."""

from __future__ import annotations

import pandas as pd

from g10sim.plots.traces import records


def periods_of_traces(results: pd.DataFrame, inactive_periods: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of the table by trace, with their length in a column ``seconds``, if they have one.

    Of several cells with one trace the first counts: the table depends on the trace alone.
    """
    found = {}
    for cell in records(results.drop_duplicates("trace")):
        rows = inactive_periods[
            (inactive_periods["cell"] == cell["cell"]) & (inactive_periods["cycles"] > 0)
        ].copy()
        rows["seconds"] = rows["cycles"] * (cell["exec_ms"] / 1000 / cell["exec_cycles"])
        found[cell["trace"]] = rows
    return found
