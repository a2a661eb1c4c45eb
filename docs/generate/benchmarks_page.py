"""The page of measured speed and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from tables import table

_INTRODUCTION = """# Measured speed and memory

Written by `python docs/generate benchmarks` from the files of `python -m benchmarks cells` and
`python -m benchmarks long`. `benchmarks/README.md` says what is measured and how.

"""

_TITLES = {
    "published": """Cells of the G10 paper's figure 15 under `compat: gpg`, two iterations, traces read from
the published text files. "published / ours" is the CPU time of the published simulator over ours, without
the start of Python; "with start" counts that too. "Own plan": g10sim does the planning.""",
    "bundled": "Traces that come with g10sim, default hardware (`a100-40g-pcie3-znand`), two iterations.",
    "long": """Synthetic traces in which every kernel makes a tensor of 1 MiB and 66 MiB are alive at a time,
two iterations: with 40 GiB of GPU memory only first touches fault, with 48 MiB every kernel migrates.""",
}
_GROUP_NAMES = {"published": "Published cells", "bundled": "Bundled traces", "long": "Very long traces"}
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
    files = [path for name in ("cells", "long") if (path := results / f"{name}.csv").is_file()]
    if not files:
        raise SystemExit(
            f"{results}: found no cells.csv or long.csv; allowed: output of 'python -m benchmarks'"
        )
    rows = pd.concat([pd.read_csv(path, keep_default_na=False) for path in files])
    computer = json.loads((results / "computer.json").read_text(encoding="utf-8"))
    parts = [_INTRODUCTION, _computer(computer, rows)]
    for group, title in _TITLES.items():
        chosen = rows[rows["group"] == group]
        if len(chosen):
            parts += [f"\n## {_GROUP_NAMES[group]}\n\n{title}\n\n", _summary(chosen), _table(group, chosen)]
    if (results / "reproduce.csv").is_file():
        parts.append(_reproduction(pd.read_csv(results / "reproduce.csv")))
    return "".join(parts)


def _reproduction(rows: pd.DataFrame) -> str:
    """Section of the time that all figures of the paper take."""
    total = rows.iloc[-1]
    figures = rows.iloc[:-1]
    return f"""
## Figures of the paper

`g10sim reproduce` with {total["traces"]:.0f} bundled traces and {total["workers"]:.0f} workers, in an empty
directory, drawing included: **{total["wall_seconds"] / 60:.1f} minutes** ({total["cpu_seconds"]:.0f} s of CPU
time). The authors of the G10 paper state about 20 hours on six cores for their own simulator and traces.
Cells that several figures have are simulated once, for the first of them.

""" + table(
        ("figure",),
        ("cells", "of them new", "CPU (s)"),
        (
            (str(row["figure"]), f"{row['cells']}", f"{row['new_cells']}", f"{row['cpu_seconds']:.1f}")
            for _, row in figures.iterrows()
        ),
    )


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
