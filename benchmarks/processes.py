"""Cost of whole commands: a sweep of tiny cells, run and resumed, and the start of the program."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from g10sim.files import write_yaml
from g10sim.trace.format import save_trace
from g10sim.trace.synthetic import chain

_POLICY = "base_uvm"
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SECONDS_BETWEEN_LOOKS = 0.05


@dataclass(frozen=True)
class Ended:
    """Cost of a command: seconds, CPU seconds of all its processes, and the most memory of its first one.

    ``memory_bytes`` is None where the system does not tell (it does on Linux).
    """

    seconds: float
    cpu_seconds: float
    memory_bytes: int | None


def measure_sweep(cells: int, workers: int) -> dict[str, Any]:
    """Run that many cells of six kernels that differ in GPU memory, and run the finished sweep again."""
    with tempfile.TemporaryDirectory(prefix="g10sim-") as name:
        directory = Path(name)
        config = _configuration(directory, cells)
        command = ["run", str(config), "-o", str(directory / "results"), "-j", str(workers), "--yes"]
        first, again = _run(command, directory), _run(command, directory)
    return {
        "cells": cells,
        "workers": workers,
        "seconds": round(first.seconds, 1),
        "cpu_seconds": round(first.cpu_seconds, 1),
        "cells_per_second": round(cells / first.seconds, 1),
        "memory_bytes": first.memory_bytes,
        "resume_seconds": round(again.seconds, 1),
        "resume_memory_bytes": again.memory_bytes,
    }


def measure_start(repeats: int) -> list[dict[str, Any]]:
    """Measure the help, a run of one tiny cell and that run again: medians of CPU seconds and of memory.

    The program is compiled to bytecode before, as installed packages are.
    """
    with tempfile.TemporaryDirectory(prefix="g10sim-") as name:
        directory = Path(name)
        run = ["run", str(_configuration(directory, 1)), "-o", str(directory / "results")]
        commands = {"g10sim --help": ["--help"], "g10sim run": [*run, "--force"], "g10sim run, again": run}
        _run(commands["g10sim run"], directory)
        return [_median(name, command, directory, repeats) for name, command in commands.items()]


def _median(name: str, arguments: Sequence[str], directory: Path, repeats: int) -> dict[str, Any]:
    runs = [_run(arguments, directory) for _ in range(repeats)]
    return {
        "command": name,
        "repeats": repeats,
        "cpu_seconds": round(median(one.cpu_seconds for one in runs), 3),
        "memory_bytes": runs[0].memory_bytes and int(median(one.memory_bytes or 0 for one in runs)),
    }


def _configuration(directory: Path, cells: int) -> Path:
    """Write a trace of six kernels, and a sweep over that many sizes of GPU memory."""
    save_trace(chain(2), directory / "tiny.g10t")
    path = directory / "sweep.yaml"
    data = {
        "name": "sweep",
        "workload": {"trace": "tiny.g10t"},
        "system": "a100-40g-pcie3-znand",
        "policies": [_POLICY],
        "sweep": {"system.gpu.memory": [f"{100 + number} MiB" for number in range(cells)]},
    }
    write_yaml(path, data)
    return path


def _run(arguments: Sequence[str], directory: Path) -> Ended:
    """Run g10sim in its own process, with bytecode kept in a directory. Raises SystemExit where it fails."""
    _adopt_orphans()
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(directory / "bytecode")}
    since, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "g10sim", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **bytecode}
    ) as process:
        memory = None
        while process.poll() is None:
            memory = _peak_memory_bytes(process.pid) or memory
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        errors = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise SystemExit(f"g10sim {' '.join(arguments)} failed:\n{errors}")
    seconds = time.perf_counter() - since
    _wait_for_orphans()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ended(seconds, cpu, memory)


def _adopt_orphans() -> None:
    """Become the parent of processes whose parents end before them, as that of workers does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    with suppress(ChildProcessError):
        while True:
            os.wait()


def _peak_memory_bytes(process: int) -> int | None:
    """Return the most bytes that a process has had resident so far; None where nobody tells (any more)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
