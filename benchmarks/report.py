"""From measurements to rows, a table on the terminal, and files."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.cells import Cell
from benchmarks.measure import Measurement
from g10sim.experiment.results import write_csv, write_json

COLUMNS = (
    "group",
    "model",
    "batch_size",
    "policy",
    "plan",
    "repeats",
    "cpu_seconds",
    "load_seconds",
    "plan_seconds",
    "simulate_seconds",
    "process_seconds",
    "events",
    "events_per_second",
    "memory_bytes",
    "base_memory_bytes",
    "exec_cycles",
    "ratio",
    "process_ratio",
)

_LIBRARIES = ("g10sim", "numpy", "pydantic", "simpy")
_SHOWN = {
    "cpu_seconds": ("CPU\n(s)", "{:.2f}"),
    "load_seconds": ("load\n(s)", "{:.2f}"),
    "plan_seconds": ("plan\n(s)", "{:.2f}"),
    "simulate_seconds": ("simulate\n(s)", "{:.2f}"),
    "events": ("events", "{:,}"),
    "memory_bytes": ("memory\n(MB)", "{:.0f}"),
    "ratio": ("published\n/ ours", "{:.0f}"),
    "process_ratio": ("whole\nprocess", "{:.0f}"),
}


def summarize(cell: Cell, runs: Sequence[Measurement]) -> dict[str, Any]:
    """Return one row: medians over the runs of a cell, and the ratios to the published simulator.

    ``ratio`` compares its CPU time with loading, planning and simulating; ``process_ratio`` with the
    whole process, interpreter and imports included.
    """
    row: dict[str, Any] = {
        "group": cell.group,
        "model": cell.model,
        "batch_size": cell.batch_size,
        "policy": cell.policy,
        "plan": cell.plan,
        "repeats": len(runs),
    }
    for name in ("load_seconds", "plan_seconds", "simulate_seconds", "process_seconds"):
        row[name] = round(median(getattr(one, name) for one in runs), 4)
    totals = [one.load_seconds + one.plan_seconds + one.simulate_seconds for one in runs]
    row["cpu_seconds"] = round(median(totals), 4)
    for name in ("events", "memory_bytes", "base_memory_bytes"):
        row[name] = int(median(getattr(one, name) for one in runs))
    row["exec_cycles"] = runs[0].exec_cycles
    row["events_per_second"] = round(row["events"] / max(row["simulate_seconds"], 1e-6))
    if cell.published_seconds is not None:
        row["ratio"] = round(cell.published_seconds / row["cpu_seconds"], 1)
        row["process_ratio"] = round(cell.published_seconds / row["process_seconds"], 1)
    return row


def show(console: Console, title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table."""
    shown = {name: how for name, how in _SHOWN.items() if any(name in row for row in rows)}
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("trace", "policy"):
        table.add_column(name, no_wrap=True)
    for header, _ in shown.values():
        table.add_column(header, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*cells_of(row), *(_text(row, name, how) for name, (_, how) in shown.items()))
    console.print(table, markup=False)


def cells_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return how a row names its trace and its policy."""
    trace = f"{row['model']} {row['batch_size']}" if row["group"] == "published" else str(row["model"])
    notes = [f"{row['plan']} plan"] if row["plan"] else []
    notes += ["unsupported"] if row["exec_cycles"] is None else []
    return trace, f"{row['policy']} ({', '.join(notes)})" if notes else str(row["policy"])


def write(directory: Path, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Write ``DIRECTORY/NAME.csv`` and a description of this computer beside it. Raises ConfigError."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.csv"
    write_csv(path, COLUMNS, rows)
    write_json(directory / "computer.json", computer())
    return path


def computer() -> dict[str, Any]:
    """Describe processor, cores, memory and versions."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in _lines(info) if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": pages,
        "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _text(row: dict[str, Any], name: str, how: str) -> str:
    if name not in row:
        return ""
    return how.format(row[name] / 1e6 if name == "memory_bytes" else row[name])
