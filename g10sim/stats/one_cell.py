"""One cell of a directory of results: its row, its tables, and its time in seconds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from g10sim.errors import ConfigError
from g10sim.stats.summary import STALL_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_OK = "ok"


def row_of_cell(results: pd.DataFrame, cell: int | None = None, job: int = 0) -> dict[str, Any]:
    """Return the row of a cell (and of one of its jobs) by column; without a number of the only one that ran.

    Raises ConfigError where there is no such cell or job, or it did not run.
    """
    ran = results[results["status"] == _OK]
    numbers = [int(number) for number in ran["cell"].unique()]
    if cell is None and len(numbers) != 1:
        raise ConfigError(f"cell: found none; allowed: one of those that ran, {_listed(numbers)}")
    chosen = numbers[0] if cell is None else cell
    if chosen not in numbers:
        known = results[results["cell"] == chosen]
        why = "no such cell" if known.empty else f"status '{known['status'].iloc[0]}'"
        raise ConfigError(f"cell {chosen}: found {why}; allowed: one that ran, {_listed(numbers)}")
    rows = ran[ran["cell"] == chosen]
    if not 0 <= job < len(rows):
        raise ConfigError(f"job {job}: found no such job in cell {chosen}; allowed: 0 to {len(rows) - 1}")
    return {str(column): value for column, value in rows.iloc[job].items()}


def of_cell(table: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of a table that belong to the cell (and, where tables know jobs, the job) of a row."""
    import pandas as pd

    mine = pd.Series(True, index=table.index)
    for column in ("cell", "job"):  # tables of a single simulation have no cells
        if column in table and column in row:
            mine &= table[column] == row[column]
    return pd.DataFrame(table[mine]).drop(columns="cell", errors="ignore").reset_index(drop=True)


def reported_kernels(kernels: pd.DataFrame, row: dict[str, Any]) -> pd.DataFrame:
    """Return the kernels (of one cell and job) of the iteration that the row reports.

    That is the last one whose time is ``exec_cycles``, or the last one where results were rounded.
    """
    import pandas as pd

    spans = kernels.groupby("iteration").agg(start=("start", "min"), end=("end", "max"))
    exact = spans[spans["end"] - spans["start"] == row["exec_cycles"]]
    iteration = (spans if exact.empty else exact).index[-1]
    found = pd.DataFrame(kernels[kernels["iteration"] == iteration]).reset_index(drop=True)
    found["stall_cycles"] = found[[column for column in STALL_COLUMNS if column in found]].sum(axis="columns")
    return found


def seconds_per_cycle(row: dict[str, Any]) -> float:
    """Return the length of a cycle; 0 for a run that took none."""
    return float(row["exec_ms"] / 1000 / row["exec_cycles"]) if row["exec_cycles"] else 0.0


def busy_share(starts: pd.Series[int], ends: pd.Series[int], edges: list[float]) -> list[float]:
    """Return for each bin between neighbouring ``edges`` the share of it that some interval covers."""
    merged: list[list[float]] = []
    for start, end in sorted(zip(starts.tolist(), ends.tolist(), strict=True)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    shares, place = [], 0
    for low, high in pairwise(edges):
        while place < len(merged) and merged[place][1] <= low:
            place += 1
        covered, here = 0.0, place
        while here < len(merged) and merged[here][0] < high:
            covered += min(high, merged[here][1]) - max(low, merged[here][0])
            here += 1
        shares.append(covered / (high - low) if high > low else 0.0)
    return shares


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:12])) or "of which there is none"
    return f"{shown} and {len(numbers) - 12} more" if len(numbers) > 12 else shown
