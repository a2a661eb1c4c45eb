"""From measurements to rows, a table on the terminal, and files."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from math import log
from pathlib import Path
from statistics import linear_regression, mean, median
from typing import Any

from benchmarks.cells import Cell
from benchmarks.measure import Measurement
from benchmarks.yardstick import MOST_DRIFT
from g10sim.cli.output import say, show_table
from g10sim.files import write_csv, write_json
from g10sim.sim import IS_COMPILED

_LIBRARIES = ("g10sim", "numpy", "pydantic", "simpy")
_SHOWN = {
    "cpu_seconds": ("CPU\n(s)", "{:.2f}"),
    "load_seconds": ("load\n(s)", "{:.2f}"),
    "plan_seconds": ("plan\n(s)", "{:.2f}"),
    "simulate_seconds": ("simulate\n(s)", "{:.2f}"),
    "events": ("events", "{:,}"),
    "memory_bytes": ("memory\n(MB)", "{:.0f}"),
    "yardstick_seconds": ("yardstick\n(s)", "{:.3f}"),
    "ratio": ("published\n/ ours", "{:.0f}"),
    "process_ratio": ("whole\nprocess", "{:.0f}"),
}


def summarize(cell: Cell, runs: Sequence[Measurement], yardsticks: tuple[float, float]) -> dict[str, Any]:
    """Return one row: medians over the runs of a cell, and the ratios to the published simulator.

    ``ratio`` compares its CPU time with loading, planning and simulating; ``process_ratio`` with the
    whole process, interpreter and imports included. Both are in units of the yardstick of its machine, here
    the mean of those before and after the runs; where these differ too much there is no ratio.
    """
    seconds = {
        name: round(median(getattr(one, name) for one in runs), 4)
        for name in ("load_seconds", "plan_seconds", "simulate_seconds", "process_seconds")
    }
    totals = [one.load_seconds + one.plan_seconds + one.simulate_seconds for one in runs]
    cpu, whole, yardstick = round(median(totals), 4), seconds["process_seconds"], mean(yardsticks)
    drifted = max(yardsticks) > (1 + MOST_DRIFT) * min(yardsticks)
    published = None if drifted or cell.published is None else cell.published * yardstick
    events = int(median(one.events for one in runs))
    return {
        "group": cell.group,
        "model": cell.model,
        "batch_size": cell.batch_size,
        "policy": cell.policy,
        "plan": cell.plan,
        "repeats": len(runs),
        "cpu_seconds": cpu,
        **seconds,
        "events": events,
        "events_per_second": round(events / max(seconds["simulate_seconds"], 1e-6)),
        "memory_bytes": int(median(one.memory_bytes for one in runs)),
        "base_memory_bytes": int(median(one.base_memory_bytes for one in runs)),
        "exec_cycles": runs[0].exec_cycles,
        "yardstick_seconds": round(yardstick, 4),
        "drifted": drifted,
        "ratio": None if published is None else round(published / cpu, 1),
        "process_ratio": None if published is None else round(published / whole, 1),
    }


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table."""
    shown = {name: how for name, how in _SHOWN.items() if any(row[name] is not None for row in rows)}
    lines = ([*cells_of(row), *(_text(row, name, how) for name, (_, how) in shown.items())] for row in rows)
    show_table(("trace", "policy"), [header for header, _ in shown.values()], lines, title=title)
    if drifted := sum(row["drifted"] for row in rows):
        say(f"{drifted} rows without ratio: the yardstick moved by more than {MOST_DRIFT:.0%} while they ran")


def show_planning(rows: Sequence[dict[str, Any]], kernels: Sequence[int]) -> None:
    """Print the CPU seconds of planning: a line per policy, a column per trace, and how they grow.

    The exponent is the slope of their logarithms over those of ``kernels``, the first columns. A policy that
    refuses a trace has its seconds in brackets.
    """
    traces = list(dict.fromkeys(str(row["model"]) for row in rows))
    lines = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        own = {row["model"]: row for row in rows if row["policy"] == policy}
        seconds = [own[trace]["plan_seconds"] for trace in traces]
        texts = [
            f"{spent:.2f}" if own[trace]["exec_cycles"] is not None else f"({spent:.2f})"
            for trace, spent in zip(traces, seconds, strict=True)
        ]
        lines.append([policy, *texts, _exponent(kernels, seconds)])
    show_table(("policy",), [*traces, "exponent"], lines, title="CPU seconds of planning")


def _exponent(counts: Sequence[int], seconds: Sequence[float]) -> str:
    """Return the exponent with which seconds grow; nothing for what is too short or too few to tell."""
    known = [(log(count), log(spent)) for count, spent in zip(counts, seconds, strict=False) if spent > 0.005]
    return f"{linear_regression(*zip(*known, strict=True)).slope:.2f}" if len(known) > 1 else ""


def cells_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return how a row names its trace and its policy."""
    trace = f"{row['model']} {row['batch_size']}" if row["group"] == "published" else str(row["model"])
    notes = [f"{row['plan']} plan"] if row["plan"] else []
    notes += ["unsupported"] if row["exec_cycles"] is None else []
    return trace, f"{row['policy']} ({', '.join(notes)})" if notes else str(row["policy"])


def write(directory: Path, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Write ``DIRECTORY/NAME.csv`` and a description of this computer next to it. Raises ConfigError.

    The columns are the keys of the last row.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.csv"
    write_csv(path, list(rows[-1]), rows)
    write_json(directory / "computer.json", computer())
    return path


def computer() -> dict[str, Any]:
    """Describe processor, cores, memory and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    libraries = {name: version(name) for name in _LIBRARIES}
    if IS_COMPILED:
        libraries["g10sim"] += " (compiled)"
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": pages,
        "system": platform.system(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": libraries,
    }


def _text(row: dict[str, Any], name: str, how: str) -> str:
    if row[name] is None:
        return ""
    return how.format(row[name] / 1e6 if name == "memory_bytes" else row[name])
