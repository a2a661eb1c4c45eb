"""CPU time of cells over that of a loop in C that does the same: the least that a simulation could cost.

The loop (``lean/floor.c`` of the reference data) knows one GPU, demand paging and tensors with separate
addresses. Both must give the same cycles.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from operator import attrgetter, truediv
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cells import DEFAULT_SYSTEM
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.config.system import SystemSpec
from g10sim.errors import ConfigError, InvariantError
from g10sim.experiment.execution import simulate
from g10sim.policies.interface.registry import create
from g10sim.sim.stages.working_set import released_after
from g10sim.trace.format import load_trace
from g10sim.trace.model import Trace
from g10sim.trace.repetition import each
from g10sim.trace.workload import Job, Workload

TRACES = ("bert-base-b512-s128", "resnet152-b1024", "gpt2-xl-b8-s1024", "vit-base-b1024")
_BEHAVIOUR = BehaviourSpec(addresses="own")
_ITERATIONS = 2
_LOOPS = 200
_FOUND = re.compile(r"iter cycles (\d+) (\d+) events \d+ best ([\d.]+) s")


def measure(reference: Path, repeats: int) -> list[dict[str, Any]]:
    """Return a row for each trace: cycles of the last iteration, CPU seconds of both, and their ratio.

    Both run in turn, and each number is the median over the turns. Raises ConfigError without
    the loop or a compiler, InvariantError for other cycles.
    """
    source, compiler = reference / "lean" / "floor.c", shutil.which("cc")
    if not source.is_file() or compiler is None:
        raise ConfigError(f"{source}: found no such file, or no C compiler 'cc'; allowed: both")
    system = load_system(DEFAULT_SYSTEM)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        program, cell = Path(directory) / "floor", Path(directory) / "cell"
        subprocess.run([compiler, "-O2", "-w", "-o", program, source], check=True)
        for name in TRACES:
            trace = load_trace(data_path("traces", f"{name}.g10t"))
            cell.write_text("\n".join(_lines(trace.in_order_of_use, system)) + "\n")
            ours, theirs = [], []
            for _ in range(repeats):
                ended = subprocess.run([program, cell, str(_LOOPS)], capture_output=True, text=True)
                found = _FOUND.match(ended.stdout)
                cycles, seconds = _simulated(trace, system)
                if found is None or int(found.group(2)) != cycles:
                    raise InvariantError(
                        f"{name}: found {cycles} cycles, and {found and found.group(2)} in the loop"
                    )
                ours.append(seconds)
                theirs.append(float(found.group(3)))
            costs = {"cpu_seconds": round(median(ours), 4), "loop_seconds": median(theirs)}
            ratio = round(median(map(truediv, ours, theirs)))
            rows.append({"trace": name, "exec_cycles": cycles, **costs, "ratio": ratio})
    return rows


def _simulated(trace: Trace, system: SystemSpec) -> tuple[int, float]:
    """Return the cycles of the last iteration, and the CPU seconds."""
    workload, start = Workload((Job(trace, iterations=_ITERATIONS),)), time.process_time()
    _, rows = simulate(workload, system, create("base_uvm"), _BEHAVIOUR)
    return int(rows[0]["exec_cycles"]), time.process_time() - start


def _lines(trace: Trace, system: SystemSpec) -> Iterator[str]:
    """Yield the cell as the loop reads it: the machine, tensors, kernels with what is dead after them."""
    gpu, fault, page = system.gpu, system.page_fault, system.gpu.page_size
    host, ssd = system.all_tiers
    pages = trace.page_sizes(page)
    memory = (gpu.memory - gpu.beside_tensors) // page
    machine = (
        *(len(trace.tensors), len(trace.kernels), page, gpu.clock, memory),
        *(host.capacity // page, ssd.capacity // page, fault.latency, host.latency, ssd.latency),
        *(system.pcie.inward, system.pcie.outward, ssd.read_bandwidth, ssd.write_bandwidth),
        *(gpu.allocation_rate, int(fault.eviction == "serial")),
    )
    yield " ".join(map(str, machine))
    for size, lasts in zip(pages, each(trace.tensors, attrgetter("persistent")), strict=True):
        yield f"{size} {int(lasts)}"
    for kernel, dying in zip(trace.kernels, released_after(trace), strict=True):
        duration = trace.duration_cycles(kernel, gpu.clock)
        yield " ".join(map(str, (duration, len(kernel.tensors), *kernel.tensors, len(dying), *dying)))
    leaf = max(1, min(fault.leaf, fault.group) // page)
    yield f"{leaf} {fault.batch or 0} {fault.group // page} {fault.group} {fault.threshold}"
