"""Memory that policies save, and the time that it costs: MSR, EOR and CBR of TENSILE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from g10sim.errors import ConfigError, choices_text
from g10sim.results.cases import case_keys
from g10sim.results.columns import CONTEXT, OK, fault_pages, traffic

if TYPE_CHECKING:
    import pandas as pd


def savings(
    results: pd.DataFrame,
    vanilla: str,
    kernels: pd.DataFrame | None = None,
    *,
    context_bytes: int | None = None,
    page_bytes: int = 4096,
    settled: int = 2,
) -> pd.DataFrame:
    """Return one row per cell that ran: its results columns that tell cells apart, and what it saved.

    For the cell's jobs together, against the cell of policy ``vanilla`` with the same trace, seed and swept
    values (TENSILE, IEEE TKDE 2022):

    - ``peak_gpu_bytes``: most memory of a GPU in use at a time, in the iterations that results report
    - ``exec_cycles``: cycles of an iteration, summed over jobs
    - ``msr``, memory saving ratio: 1 - peak / vanilla's peak
    - ``eor``, extra overhead ratio: cycles / vanilla's cycles - 1
    - ``cbr``, cost-benefit ratio: msr / eor; infinite without overhead, empty for vanilla

    With the table ``kernels`` cycles are the mean of the iterations from number ``settled`` on while all jobs
    of the cell are at it, and there is ``passive_ratio``: of the bytes that came in during the reported
    iterations, the share that kernels had to demand; pages have ``page_bytes``. Without it, cycles are those
    of the reported iterations. ``context_bytes`` is memory that each job takes beyond its tensors, under
    every policy; None: as much as in the runs (``system.gpu.context_memory``). Raises ConfigError when there
    is no cell to compare with, or it migrates (vanilla has memory for everything), and for jobs that never
    settle.
    """
    cells = _cells(results[results.status == OK], context_bytes)
    if kernels is not None:
        cells["exec_cycles"] = cells.cell.map(_steady_cycles(kernels, settled))
        cells["passive_ratio"] = cells.cell.map(_passive_bytes(kernels, page_bytes)) / cells.bytes_in
    base = cells[cells.policy == vanilla]
    _check_vanilla(base, results, vanilla)
    keys = case_keys(results, set())
    merged = cells.merge(base[[*keys, "peak_gpu_bytes", "exec_cycles"]], on=keys, suffixes=("", "_vanilla"))
    if len(merged) < len(cells):
        lost = cells[~cells.cell.isin(merged.cell)].iloc[0]
        problem = f"found no cell of policy '{vanilla}' to compare with"
        raise ConfigError(f"cell {lost.cell} ({lost.trace}): {problem}")
    merged["msr"] = 1 - merged.peak_gpu_bytes / merged.peak_gpu_bytes_vanilla
    merged["eor"] = merged.exec_cycles / merged.exec_cycles_vanilla - 1
    merged["cbr"] = merged.msr / merged.eor
    return merged.drop(columns=["peak_gpu_bytes_vanilla", "exec_cycles_vanilla", "bytes_in", "moved"])


def _cells(rows: pd.DataFrame, context_bytes: int | None) -> pd.DataFrame:
    """Sum up the rows of every cell: one for each job."""
    moves = traffic(rows)
    arriving = [column for column, (_, target) in moves.items() if target == "gpu"]
    rows = rows.assign(
        bytes_in=rows[arriving].sum(axis=1),
        moved=rows[list(moves)].sum(axis=1),
        peak=rows.get("peak_gpu_bytes_of_all", rows.peak_gpu_bytes),
        gpu=rows.get("gpu", 0),
        contexts=rows.reindex(columns=CONTEXT.names).fillna(0).sum(axis=1),
    )
    per_gpu = rows.groupby(["cell", "gpu"]).agg(
        peak=("peak", "max"), contexts=("contexts", "max"), jobs=("peak", "size")
    )
    contexts = per_gpu.contexts if context_bytes is None else context_bytes * per_gpu.jobs
    peaks = (per_gpu.peak + contexts).groupby("cell").max()
    cells = rows.drop_duplicates("cell")[["cell", *case_keys(rows, set()), "policy"]]
    sums = rows.groupby("cell")[["exec_cycles", "bytes_in", "moved"]].sum()
    return cells.assign(peak_gpu_bytes=cells.cell.map(peaks)).join(sums, on="cell")


def _passive_bytes(kernels: pd.DataFrame, page_bytes: int) -> pd.Series:
    """Bytes that kernels demanded from other memory, by cell, in the last iteration of every job."""
    last = kernels.groupby(["cell", "job"]).iteration.transform("max")
    reported = kernels[kernels.iteration == last]
    pages = reported[list(fault_pages(reported))].sum(axis=1)
    return pages.groupby(reported.cell).sum() * page_bytes


def _steady_cycles(kernels: pd.DataFrame, settled: int) -> pd.Series:
    """Mean cycles of an iteration, summed over jobs, by cell. Raises ConfigError."""
    keys = ["cell", "job", "iteration"]
    times = kernels.groupby(keys).agg(start=("start", "min"), end=("end", "max")).reset_index()
    begin = times[times.iteration == settled].groupby("cell").start.max()
    end = times.groupby(["cell", "job"]).end.max().groupby("cell").min()
    inside = (times.start >= times.cell.map(begin)) & (times.end <= times.cell.map(end))
    steady = times[inside & (times.iteration >= settled)]
    missing = set(zip(times.cell, times.job, strict=True)) - set(zip(steady.cell, steady.job, strict=True))
    if missing:
        cell, job = min(missing)
        found = f"no iteration of job {job} from number {settled} on while all jobs are at it"
        raise ConfigError.at(f"cell {cell}", found, "more iterations")
    means = (steady.end - steady.start).groupby([steady.cell, steady.job]).mean()
    return means.groupby("cell").sum()


def _check_vanilla(base: pd.DataFrame, results: pd.DataFrame, vanilla: str) -> None:
    if base.empty:
        policies = sorted(set(results.policy))
        raise ConfigError(f"found no cell of policy '{vanilla}' that ran; allowed: {choices_text(policies)}")
    if base.moved.any():
        cell = base[base.moved > 0].iloc[0].cell
        raise ConfigError(
            f"cell {cell}: found policy '{vanilla}' migrating tensors; allowed to compare with: a policy that"
            " has memory for everything (unlimited memory, or a system with more)"
        )
