"""Cells whose exact numbers are kept in ``cells/POLICY.json``, and what is kept of each.

A cell is a policy with parameters on a machine, under a workload; which workload, follows from the places of
the parameters and of the machine in their lists.
"""

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

from recorded_designs import designs_on
from recorded_machines import MACHINES, WITH_CPU, machine_for, workloads_on
from recorded_workloads import WORKLOADS

from g10sim.errors import G10SimError
from g10sim.experiment.execution import simulate
from g10sim.policies.registry import create

TABLES = Path(__file__).parent / "cells"

SHOWN = ("exec_cycles", "events", "page_faults", "peak_gpu_bytes", "bound_cycles")
"""Columns of results that a table shows where they are not 0, beside stalls, traffic and memory peaks."""
_RECORDS = {
    "results": ("iterations", "jobs"),
    "kernels": ("kernels", "cpu_kernels"),
    "moves": ("migrations", "traffic", "accesses"),
    "memory": ("memory",),
}


@dataclass(frozen=True)
class RecordedCell:
    """A cell by what it is made of."""

    policy: str
    parameters: str
    machine: str
    workload: str

    @property
    def name(self):
        """Name in the table of its policy."""
        return f"{self.machine} | {self.workload} | {self.parameters}"


def cells_of(policy, machine):
    """Return the cells of a policy on a machine: one for most of its parameters, two for the first."""
    names = workloads_on(machine, copies=_copies(policy))
    column = [*MACHINES, *WITH_CPU].index(machine)
    found = []
    for row, parameters in enumerate(designs_on(policy, machine)):
        text = ", ".join(f"{name}={value}" for name, value in parameters.items()) or "as they are"
        turns = (0, 7) if row == 0 else (0,) if (row + column) % 3 else ()
        turns = range(len(names)) if machine in WITH_CPU else turns
        for turn in turns:
            workload = names[(5 * row + 3 * column + turn) % len(names)]
            found.append((RecordedCell(policy, text, machine, workload), parameters))
    return found


def _copies(policy):
    return create(policy).requirements.placement == "contiguous"


@cache
def workload_of(name):
    """Return a workload, made once."""
    return WORKLOADS[name]()


def numbers(cell, parameters):
    """Simulate a cell, with every check on, and return what its table keeps.

    Numbers of several jobs are listed. ``checksums`` are those of all columns of the results and of every
    record of a run: they tell that something else has changed.
    """
    workload = workload_of(cell.workload)
    system, behaviour = machine_for(cell.machine, workload, copies=_copies(cell.policy))
    try:
        policy = create({"name": cell.policy, **parameters})
        records, rows = simulate(workload, system, policy, behaviour, tables=("timeline",), check=True)
    except G10SimError as error:
        return {"refused": type(error).__name__}
    found = {name: _of_jobs([row.get(name, 0) for row in rows]) for name in _shown(rows)}
    found["iterations"] = _of_jobs([it.end - it.start for it in records.iterations])
    parts = {part: [getattr(records, name) for name in names] for part, names in _RECORDS.items()}
    parts["results"] += [_rounded(row) for row in rows]
    return found | {"checksums": {part: _checksum(values) for part, values in parts.items()}}


def _shown(rows):
    names = dict.fromkeys(name for row in rows for name in row)
    wanted = [
        name
        for name in names
        if name in SHOWN or name.startswith(("stall_", "gpu_to_")) or name.endswith("_to_gpu_bytes")
    ]
    return [name for name in wanted if any(row.get(name) for row in rows)]


def _of_jobs(values):
    return values[0] if len(values) == 1 else values


def _rounded(row):
    """Return a row whose fractions do not depend on the last digits."""
    return {
        name: f"{value:.9g}" if isinstance(value, float) and math.isfinite(value) else value
        for name, value in row.items()
    }


def _checksum(values):
    return f"{crc32(repr(values).encode()):08x}"


def read_table(policy):
    """Return what is recorded of a policy, by the names of cells."""
    return json.loads((TABLES / f"{policy}.json").read_text(encoding="utf-8"))


def write_table(policy, table):
    """Record what was computed for a policy, one line for each cell."""
    TABLES.mkdir(exist_ok=True)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found)}" for name, found in table.items())
    (TABLES / f"{policy}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def computed(policy, machines=(*MACHINES, *WITH_CPU)):
    """Return what the cells of a policy on some machines come to, by their names."""
    return {
        cell.name: numbers(cell, parameters)
        for machine in machines
        for cell, parameters in cells_of(policy, machine)
    }


def differences(recorded, found):
    """Return a line for each cell whose numbers are not those recorded, with what was and what is."""
    lines = []
    for name, numbers in found.items():
        before = recorded[name]
        names = dict.fromkeys([*before, *numbers])
        parts = [
            f"{key} {before.get(key, 'nothing')} -> {numbers.get(key, 'nothing')}"
            for key in names
            if key != "checksums" and before.get(key) != numbers.get(key)
        ]
        sums, others = before.get("checksums", {}), numbers.get("checksums", {})
        changed = [key for key in dict.fromkeys([*sums, *others]) if sums.get(key) != others.get(key)]
        if changed:
            parts.append(f"other {', '.join(changed)}")
        if parts:
            lines.append(f"  {name}: {', '.join(parts)}")
    return lines
