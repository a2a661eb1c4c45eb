"""Sentences about the part of what is lost that nobody could avoid."""

from types import SimpleNamespace

import pytest
from machines import machine, trace_of

from g10sim.explain.cell import bound_lines
from g10sim.trace.workload import Job, Workload

# A page crosses PCIe in 10,000 cycles; 20 of 60 pages leave before b is used, and return after it.
PEAK = trace_of({"a": 30, "b": 30}, [(10_000, "", "a"), (1000, "b", ""), (10_000, "a", "")])
SLOW = machine(40, pcie="0.1 GB/s")


def lines(system, **row):
    workload = Workload((Job(PEAK),))
    row = {"ideal_cycles": 21_000, **row}
    return [*bound_lines(SimpleNamespace(row=row, system=system, workload=workload))]


def test_what_nobody_could_avoid_is_said():
    # A closed form of 241,000 cycles: 12 whole pages each way, 10,000 cycles of it behind a kernel.
    assert lines(SLOW, bound_kind="iteration", exec_cycles=341_000) == [
        "Bound: no paged policy that drops nothing avoids 220 us of it (69%): 110 us because of GPU 0 out, "
        "110 us because of GPU 0 in",
        "Bound: the other 100 us are the most that a better policy can gain",
    ]


def test_all_of_it_may_be_avoidable():
    (line,) = lines(machine(60), bound_kind="steady", exec_cycles=341_000)
    assert line.startswith("Bound: all of it may be avoidable: the time of the kernels is the bound of every")


@pytest.mark.parametrize(
    ("row", "expected"),
    [({"bound_kind": "none: the reason"}, ["Bound: none: the reason"]), ({}, [])],
    ids=["none", "older results"],
)
def test_runs_without_a_bound_say_why(row, expected):
    assert lines(SLOW, exec_cycles=341_000, **row) == expected
