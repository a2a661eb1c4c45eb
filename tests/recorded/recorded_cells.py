"""Cells whose exact numbers are kept in ``cells/POLICY.json``, and what is kept of each.

A cell is a policy with parameters on a machine, under a workload; which workload, follows from the places of
the parameters and of the machine in their lists.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

from recorded_designs import designs_on
from recorded_machines import MACHINES, WITH_CPU, machine_for, workloads_on
from recorded_workloads import WORKLOADS

from g10sim.errors import G10SimError
from g10sim.experiment.execution import simulate
from g10sim.policies.interface.registry import create

TABLES = Path(__file__).parent / "cells"

_RECORDS = {
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

    That is every column of its results and every field of its iterations and jobs, as a list where there are
    several, and checksums of the other records. Nothing that is zero or empty is kept: a column that says
    nothing of a cell changes nothing in its table.
    """
    workload = workload_of(cell.workload)
    system, behaviour = machine_for(cell.machine, workload, copies=_copies(cell.policy))
    try:
        policy = create({"name": cell.policy, **parameters})
        records, rows = simulate(workload, system, policy, behaviour, tables=("timeline",), check=True)
    except G10SimError as error:
        return {"refused": type(error).__name__}
    sums = {part: checksum([getattr(records, name) for name in names]) for part, names in _RECORDS.items()}
    return {
        "results": columns(rows),
        "iterations": columns(records.iterations),
        "jobs": columns(records.jobs),
        "checksums": sums,
    }


def columns(records):
    """Return what is neither zero nor empty in some record, by the name of its column."""
    said = [dict(_said(record)) for record in records]
    names = dict.fromkeys(name for record in said for name in record)
    return {name: _of_all([record.get(name, 0) for record in said]) for name in names}


def _of_all(values):
    return values[0] if len(values) == 1 else values


def _said(value):
    """Return names and values of what is neither zero nor empty in a record, records within it included."""
    found = []
    _note(value, "", found)
    return found


def _note(value, name, found):
    kind = type(value)
    if names := _fields_of(kind):
        for key in names:
            _note(getattr(value, key), f"{name}.{key}" if name else key, found)
    elif not value:
        return
    elif kind in (int, str, bool):
        found.append((name, value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _note(inner, f"{name}.{key}" if name else str(key), found)
    elif isinstance(value, list | tuple):
        for key, inner in enumerate(value):
            named = isinstance(inner, tuple) and len(inner) == 2 and isinstance(inner[0], str)
            _note(inner[1] if named else inner, f"{name}.{inner[0] if named else key}", found)
    elif isinstance(value, float):
        found.append((name, float(f"{value:.9g}") if math.isfinite(value) else str(value)))
    else:
        found.append((name, value if isinstance(value, str) else repr(value)))


@cache
def _fields_of(kind):
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


def checksum(records):
    """Return a checksum over what is neither zero nor empty in records, or lists or mappings of them."""
    return f"{crc32(repr(_said(records)).encode()):08x}"


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
    """Return a line for each number that is not the one recorded: of which cell, column and iteration."""
    return [
        f"  {cell}: {line}"
        for cell, numbers in found.items()
        for line in _unlike(recorded[cell], numbers, "")
    ]


def _unlike(before, after, name):
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _unlike(before.get(key), after.get(key), f"{name}.{key}" if name else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _unlike(old, new, f"{name}[{position}]")
    else:
        yield f"{name} {_written(before)} -> {_written(after)}"


def _written(value):
    return "nothing" if value is None else json.dumps(value)
