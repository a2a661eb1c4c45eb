"""The page of TENSILE: what it does here, and what it saves, from results of two experiments."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tables import fill, table

from g10sim.results.reading import TIMING, read_results, read_table
from g10sim.results.savings import savings

_RATIOS = ("peak (GB)", "MSR", "EOR", "CBR")
_REASONS = ("fault_host", "late_prefetch", "eviction", "synchronization", "link_contention", "recomputation")


def page(single: Path, shared: Path) -> str:
    """Return the page from results of one job at a time and of jobs that share a GPU. Raises ConfigError."""
    return fill("tensile", single=_single(single), shared=_shared(shared))


def _single(directory: Path) -> str:
    found = savings(read_results(directory), "ideal", read_table(directory, "kernels"))
    live = found[found.policy == "base_uvm"].set_index("trace").peak_gpu_bytes
    rows = [
        [Path(row.trace).stem, row.policy, *_ratios(row), f"{1 - row.peak_gpu_bytes / live[row.trace]:.3f}"]
        for _, row in found.iterrows()
        if row.policy not in ("ideal", "base_uvm")
    ]
    return table(("trace", "policy"), (*_RATIOS, "MSR, dead tensors freed"), rows)


def _shared(directory: Path) -> str:
    rows = []
    results = read_results(directory)
    found = savings(results, "ideal", read_table(directory, "kernels"))
    stalls = results.groupby("cell").sum(numeric_only=True)
    traces = results.groupby("cell").trace.agg(list)
    planning = pd.read_csv(directory / TIMING).set_index("cell").planning_cpu_seconds
    for _, row in found.iterrows():
        if row.policy == "ideal":
            continue
        waits, jobs = stalls.loc[row.cell], traces[row.cell]
        shares = [f"{waits[f'stall_{reason}_cycles'] / waits.ideal_cycles:.3f}" for reason in _REASONS]
        name = Path(row.trace).stem if len(set(jobs)) == 1 else "all five"
        told = (*_ratios(row), f"{row.passive_ratio:.3f}", *shares)
        rows.append([name, str(len(jobs)), row.policy, *told, f"{planning[row.cell] / len(jobs):.2f}"])
    reasons = [reason.replace("_", " ") for reason in _REASONS]
    return table(("trace", "jobs", "policy"), (*_RATIOS, "passive", *reasons, "planning (s)"), rows)


def _ratios(row: pd.Series) -> list[str]:
    benefit = f"{row.cbr:.1f}" if row.eor >= 0.0005 else ""
    return [f"{row.peak_gpu_bytes / 1e9:.2f}", f"{row.msr:.3f}", f"{row.eor:.3f}", benefit]
