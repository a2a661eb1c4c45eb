"""Exact results of every registered policy on small machines of every kind, compared with recorded ones.

These tests characterise: what they expect is what the simulator computed when it was recorded, with every
check on. They say that something has changed, not that it was right; tests worked out by hand do that. After
a change that is meant to give other numbers, ``python tests/recorded`` records anew, and the differences of
``tests/recorded/cells`` show which.
"""

import pytest
from recorded_cells import cells_of, differences, numbers, read_table
from recorded_designs import DESIGNS
from recorded_machines import MACHINES, WITH_CPU

from g10sim.policies.registry import available


@pytest.mark.parametrize("machine", [*MACHINES, *WITH_CPU])
@pytest.mark.parametrize("policy", DESIGNS)
def test_results_are_those_recorded(policy, machine):
    table = read_table(policy)
    cells = cells_of(policy, machine)
    found = {cell.name: numbers(cell, parameters) for cell, parameters in cells}
    lines = differences({name: table.get(name, {}) for name in found}, found)
    if lines:
        pytest.fail(
            f"{policy}: other results than recorded (recorded -> found):\n"
            + "\n".join(lines)
            + f"\nIf that is meant: python tests/recorded {policy}",
            pytrace=False,
        )


@pytest.mark.parametrize("policy", DESIGNS)
def test_tables_have_the_cells_that_there_are(policy):
    names = {cell.name for machine in (*MACHINES, *WITH_CPU) for cell, _ in cells_of(policy, machine)}
    assert set(read_table(policy)) == names, f"allowed: what python tests/recorded {policy} writes"


def test_every_policy_is_recorded():
    built_in = {name for name, policy in available().items() if policy.__module__.startswith("g10sim.")}
    assert set(DESIGNS) == built_in - {"replay"}


def test_differences_name_the_cell_and_its_numbers():
    recorded = {"a": {"exec_cycles": 3, "checksums": {"kernels": "00", "jobs": "11"}}, "b": {"events": 1}}
    found = {"a": {"exec_cycles": 5, "checksums": {"kernels": "22", "jobs": "11"}}, "b": {"events": 1}}
    assert differences(recorded, found) == ["  a: exec_cycles 3 -> 5, other kernels"]
    assert differences({"b": {}}, {"b": {"events": 1}}) == ["  b: events nothing -> 1"]
