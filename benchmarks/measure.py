"""Measures one cell in this process and writes what it found to standard output, as JSON.

``python -m benchmarks.measure CELL`` takes the cell as JSON. Every measurement is its own process, so
that nothing of an earlier one is left in memory or in a cache.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.cells import training_chain
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_behaviour, load_system
from g10sim.config.system import SystemSpec
from g10sim.errors import UnsupportedError
from g10sim.experiment.cells import make_policy
from g10sim.experiment.execution import peak_memory_bytes, restart_peak_memory, simulate
from g10sim.importers.gpg import import_gpg
from g10sim.policies.interface import registry
from g10sim.policies.interface.policy import Policy
from g10sim.sim.hooks import TimeInHooks, time_in_hooks
from g10sim.trace.format import load_trace, save_trace
from g10sim.trace.model import Trace
from g10sim.trace.synthetic import decode, long_chain
from g10sim.trace.workload import Job, Workload

Made = TypeVar("Made")


@dataclass(frozen=True)
class Measurement:
    """Cost of one run of a cell: CPU seconds by part, events, and bytes beyond the loaded libraries.

    ``process_seconds`` is everything since the process began: interpreter, imports and the three parts. A
    policy that cannot run the workload has no events and no ``exec_cycles``, only the cost of its refusal.
    """

    load_seconds: float
    plan_seconds: float
    simulate_seconds: float
    process_seconds: float
    events: int
    memory_bytes: int
    base_memory_bytes: int
    exec_cycles: int | None


def measure(cell: dict[str, Any]) -> Measurement:
    """Load, plan and simulate a cell once."""
    registry.available()
    gc.freeze()  # as in the processes of cells
    system, behaviour = load_system(cell["system"]), load_behaviour(cell["compat"])
    restart_peak_memory()
    base = peak_memory_bytes()  # interpreter and libraries
    trace, load_seconds = _timed(lambda: _trace(cell))
    policy = _policy(cell)
    workload, hooks = Workload((Job(trace, iterations=cell["iterations"]),)), TimeInHooks()
    with time_in_hooks(hooks):
        (events, cycles), seconds = _timed(lambda: _simulated(workload, system, policy, behaviour))
    return Measurement(
        load_seconds,
        hooks.planning_cpu_seconds,
        seconds - hooks.planning_cpu_seconds,
        time.process_time(),
        events,
        peak_memory_bytes() - base,
        base,
        cycles,
    )


def _simulated(
    workload: Workload, system: SystemSpec, policy: Policy, behaviour: BehaviourSpec
) -> tuple[int, int | None]:
    """Return events and the cycles of the reported iteration."""
    try:
        records, rows = simulate(workload, system, policy, behaviour)
    except UnsupportedError:
        return 0, None
    return records.events, int(rows[0]["exec_cycles"])


def _trace(cell: dict[str, Any]) -> Trace:
    source = cell["trace"]
    if "kernels" in source:
        return long_chain(source["kernels"])
    if "chain" in source:
        return training_chain(source["chain"])
    if "directory" in source:
        return import_gpg(Path(source["directory"]), source["model"], source["batch"])
    if "steps" in source:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "decode.g10t"
            save_trace(decode(source["steps"]), path)
            return load_trace(path)
    return load_trace(source["file"])


def _policy(cell: dict[str, Any]) -> Policy:
    if cell["plan_file"] is None:
        return make_policy({"name": cell["policy"]}, 0)
    return registry.find(cell["policy"]).with_reference_plan(Path(cell["plan_file"]))


def _timed(call: Callable[[], Made]) -> tuple[Made, float]:
    start = time.process_time()
    return call(), time.process_time() - start


if __name__ == "__main__":
    json.dump(asdict(measure(json.loads(sys.argv[1]))), sys.stdout)
