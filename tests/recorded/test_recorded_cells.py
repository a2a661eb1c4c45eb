"""Exact results of every registered policy on small machines of every kind, compared with recorded ones.

These tests characterise: what they expect is what the simulator computed when it was recorded, with every
check on. They say that something has changed, not that it was right; tests worked out by hand do that. After
a change that is meant to give other numbers, ``python tests/recorded`` records anew, and the differences of
``tests/recorded/cells`` show which.
"""

from dataclasses import dataclass

import pytest
from recorded_cells import cells_of, checksum, columns, differences, numbers, read_table
from recorded_designs import DESIGNS
from recorded_machines import MACHINES, WITH_CPU

from g10sim.policies.interface.registry import available

MANY_TRIALS = {"g10_paced", "vdnn_multi"}


def drawn():
    """Yield designs on machines, of which every third is always tried, or with those that are slow."""
    for row, policy in enumerate(DESIGNS):
        is_long = policy in MANY_TRIALS
        often, seldom = (pytest.mark.slow, pytest.mark.nightly) if is_long else ((), pytest.mark.recorded)
        for column, machine in enumerate((*MACHINES, *WITH_CPU)):
            marks = seldom if (row + column) % 3 else often
            yield pytest.param(policy, machine, marks=marks, id=f"{policy}-{machine}")


@pytest.mark.parametrize(("policy", "machine"), [*drawn()])
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


def test_differences_name_cell_column_and_iteration():
    recorded = {
        "a": {"results": {"exec_cycles": 3}, "iterations": {"end": [4, 7]}, "checksums": {"kernels": "00"}},
        "b": {"results": {"events": 1}},
    }
    found = {
        "a": {"results": {"exec_cycles": 5}, "iterations": {"end": [4, 9]}, "checksums": {"kernels": "22"}},
        "b": {"results": {"events": 1}},
    }
    assert differences(recorded, found) == [
        "  a: results.exec_cycles 3 -> 5",
        "  a: iterations.end[1] 7 -> 9",
        '  a: checksums.kernels "00" -> "22"',
    ]
    assert differences({"b": {}}, {"b": {"events": 1}}) == ["  b: events nothing -> 1"]


@dataclass(frozen=True)
class Before:
    start: int
    stalls: tuple


@dataclass(frozen=True)
class After(Before):
    faults: int = 0
    flash: Before | None = None


def test_what_is_zero_or_empty_is_not_kept():
    before = [Before(0, (("eviction", 3),)), Before(5, ())]
    kept = {"stalls.eviction": [3, 0], "start": [0, 5]}
    assert columns(before) == kept
    assert columns([After(0, (("eviction", 3), ("novel", 0))), After(5, ())]) == kept
    assert checksum([before]) == checksum([[After(one.start, one.stalls) for one in before]])
    said = [After(0, (("eviction", 3), ("novel", 1))), After(5, (), 2, Before(1, ()))]
    assert columns(said) == kept | {"stalls.novel": [1, 0], "faults": [0, 2], "flash.start": [0, 1]}
    assert checksum([said]) != checksum([before])
