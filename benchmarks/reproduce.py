"""Time of ``g10sim reproduce``: the experiments of all figures of the paper, simulated and drawn."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from g10sim.plots.registry import paper_figures

ALL = "all"


def measure(figures: str, workers: int) -> list[dict[str, Any]]:
    """Reproduce figures (comma-separated; empty: all) in an empty directory, in its own process.

    One row per figure: its cells, those among them that no figure before it has, and the CPU seconds of
    these. The last row is everything: wall seconds from start to end, and CPU seconds of the cells and of the
    process that starts them and draws. Only an idle computer gives wall seconds that mean something.
    """
    with tempfile.TemporaryDirectory(prefix="g10sim-") as directory:
        command = [sys.executable, "-m", "g10sim", "reproduce", "--figures", figures]
        command += ["-j", str(workers), "-o", directory]
        wall, cpu = time.perf_counter(), _cpu_seconds_of_children()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        wall, cpu = time.perf_counter() - wall, _cpu_seconds_of_children() - cpu
        if ended.returncode:
            raise SystemExit(f"reproduce failed:\n{ended.stderr}")
        rows = list(_figures(Path(directory)))
        traces = len({name for row in rows for name in row.pop("names")})
    total = {
        "figure": ALL,
        "cells": sum(row["cells"] for row in rows),
        "new_cells": sum(row["new_cells"] for row in rows),
        "cpu_seconds": round(cpu + sum(row["cpu_seconds"] for row in rows), 1),
        "wall_seconds": round(wall, 1),
        "workers": workers,
        "traces": traces,
    }
    return [*rows, total]


def _figures(directory: Path) -> Iterator[dict[str, Any]]:
    known: set[str] = set()
    for figure in paper_figures():
        if not (directory / figure).is_dir():
            continue
        timing = pd.read_csv(directory / figure / "timing.csv").drop_duplicates("key")
        new = timing[~timing["key"].isin(known)]
        known.update(new["key"])
        yield {
            "figure": figure,
            "cells": len(pd.read_csv(directory / figure / "results.csv")),
            "new_cells": len(new),
            "cpu_seconds": round(float(new["cpu_seconds"].sum()), 1),
            "names": set(pd.read_csv(directory / figure / "results.csv")["trace"]),
        }


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
