"""The page of measured speed and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from tables import fill, table

_GROUPS = ("published", "bundled", "long", "decode")
_FILES = ("cells", "long", "decode")
_COLUMNS = {
    "cpu_seconds": "CPU (s)",
    "load_seconds": "load (s)",
    "plan_seconds": "plan (s)",
    "simulate_seconds": "simulate (s)",
    "events": "events",
    "memory_bytes": "memory (MB)",
    "ratio": "published / ours",
    "process_ratio": "with start",
}


def page(results: Path) -> str:
    """Return the page as Markdown. Raises OSError when no CSV file is there."""
    files = [path for name in _FILES if (path := results / f"{name}.csv").is_file()]
    if not files:
        raise SystemExit(
            f"{results}: found no {', '.join(f'{name}.csv' for name in _FILES)}; "
            "allowed: output of 'python -m benchmarks'"
        )
    rows = pd.concat([pd.read_csv(path, keep_default_na=False) for path in files])
    computer = json.loads((results / "computer.json").read_text(encoding="utf-8"))
    groups = {group: rows[rows["group"] == group] for group in _GROUPS}
    parts = {
        group: _summary(chosen) + (_by_policy(chosen) if group == "bundled" else _table(group, chosen))
        for group, chosen in groups.items()
        if len(chosen)
    }
    reproduced = results / "reproduce.csv"
    reproduction = _reproduction(pd.read_csv(reproduced)) if reproduced.is_file() else {}
    return fill(
        "benchmarks",
        computer=_computer(computer, rows),
        **{**dict.fromkeys((*_GROUPS, "reproduced"), ""), **parts, **reproduction},
        processes=_sweep(results / "sweep.csv") + _start(results / "start.csv"),
    )


def _sweep(path: Path) -> str:
    """Say what a sweep of tiny cells takes, where it was measured."""
    if not path.is_file():
        return ""
    (row,) = pd.read_csv(path).to_dict("records")
    return (
        f"A sweep of {row['cells']:,} cells of six kernels with `-j {row['workers']}`: "
        f"{row['cells_per_second']:.1f} cells a second. The process that starts the workers takes "
        f"{row['memory_bytes'] / 1e6:.0f} MB. Run again when all are finished, it ends after "
        f"{row['resume_seconds']:.1f} s.\n\n"
    )


def _start(path: Path) -> str:
    """Return the table of how long the program takes to start, where it was measured."""
    if not path.is_file():
        return ""
    rows = pd.read_csv(path).to_dict("records")
    lines = (
        (row["command"], f"{row['cpu_seconds']:.2f}", f"{row['memory_bytes'] / 1e6:.0f}") for row in rows
    )
    return table(("command",), ("CPU (s)", "memory (MB)"), lines)


def _reproduction(rows: pd.DataFrame) -> dict[str, str]:
    """Return the numbers of the section on all figures of the paper."""
    total, figures = rows.iloc[-1], rows.iloc[:-1]
    lines = (
        (str(row["figure"]), f"{row['cells']}", f"{row['new_cells']}", f"{row['cpu_seconds']:.1f}")
        for _, row in figures.iterrows()
    )
    return {
        "traces": f"{total['traces']:.0f}",
        "workers": f"{total['workers']:.0f}",
        "minutes": f"{total['wall_seconds'] / 60:.1f}",
        "cpu_seconds": f"{total['cpu_seconds']:.0f}",
        "reproduced": table(("figure",), ("cells", "of them new", "CPU (s)"), lines),
    }


def _computer(computer: dict[str, Any], rows: pd.DataFrame) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in computer["libraries"].items())
    base = rows["base_memory_bytes"].astype(float).median() / 1e6
    repeats = sorted(set(rows["repeats"].astype(int)))
    return (
        f"Measured on {computer['processor']}, {computer['cores']} cores, "
        f"{computer['memory_bytes'] / 2**30:.0f} GiB of memory, {computer['system']}, {computer['python']}, "
        f"{libraries}; each cell on one core, median of {' or '.join(map(str, repeats))} run(s). Python "
        f"with the libraries takes {base:.0f} MB; memory is what a cell takes beyond that.\n"
    )


def _summary(rows: pd.DataFrame) -> str:
    seconds, memory = rows["cpu_seconds"].astype(float), rows["memory_bytes"].astype(float) / 1e6
    rate = rows["events_per_second"].astype(float).median()
    return (
        f"CPU seconds: median {seconds.median():.2f}, at most {seconds.max():.2f}. Memory: at most "
        f"{memory.max():.0f} MB. Median of {rate:,.0f} events a second.\n\n"
    )


def _table(group: str, rows: pd.DataFrame) -> str:
    columns = {name: title for name, title in _COLUMNS.items() if (rows[name] != "").any()}
    return table(
        ("trace", "policy"),
        tuple(columns.values()),
        (
            (*_names(group, row), *(_number(name, row[name]) for name in columns))
            for _, row in rows.iterrows()
        ),
    )


def _by_policy(rows: pd.DataFrame) -> str:
    """Return a table with a line per policy: medians over the traces that it can run, and the worst."""
    measures = ["cpu_seconds", "plan_seconds", "simulate_seconds", "events", "memory_bytes"]
    found = []
    for policy, able in rows[rows["exec_cycles"] != ""].groupby("policy"):
        numbers = able[measures].astype(float)
        typical, most = numbers.median(), numbers.max()
        worst = able.loc[numbers["cpu_seconds"] == most["cpu_seconds"], "model"].iloc[0]
        medians = [_number(name, typical[name]) for name in measures[:-1]]
        most_of = (f"{most['cpu_seconds']:.2f} ({worst})", f"{most['memory_bytes'] / 1e6:.0f}")
        found.append((f"`{policy}`", f"{len(able)}", *medians, *most_of))
    titles = [_COLUMNS[name] for name in measures[:-1]]
    return table(("policy",), ("traces", *titles, "CPU at most (s)", "memory at most (MB)"), found)


def _names(group: str, row: pd.Series[Any]) -> tuple[str, str]:
    trace = f"{row['model']} {row['batch_size']}" if group == "published" else str(row["model"])
    notes = [f"{row['plan']} plan"] if row["plan"] else []
    notes += ["unsupported"] if row["exec_cycles"] == "" else []
    return trace, f"{row['policy']} ({', '.join(notes)})" if notes else str(row["policy"])


def _number(name: str, value: Any) -> str:
    if value == "":
        return ""
    number = float(value)
    if name == "events":
        return f"{number:,.0f}"
    if name == "memory_bytes":
        return f"{number / 1e6:.0f}"
    return f"{number:.0f}" if name.endswith("ratio") else f"{number:.2f}"
