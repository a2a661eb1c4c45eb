"""Planning that may take a time: enough changes nothing, none leaves a plan that can be carried out."""

import pytest
from machines import OWN, machine, simulate

from g10sim.analysis.footprint import peak_live_bytes
from g10sim.errors import UnsupportedError
from g10sim.policies.interface.registry import available, create
from g10sim.policies.planning.limit import Limited
from g10sim.trace.synthetic import chain

PLANNED = [name for name, policy in available().items() if issubclass(policy, Limited)]


def simulated(policy):
    trace = chain(12)
    pages = peak_live_bytes(trace) * 4 // 5 // 4096
    return simulate(trace, machine(pages, host_pages=10 * pages, page=4096), policy, OWN)


def test_many_policies_can_be_limited():
    assert {"capuchin", "g10", "teraio", "tensile"} <= set(PLANNED)


@pytest.mark.parametrize("name", PLANNED)
def test_time_enough_changes_no_plan(name):
    try:
        unlimited = simulated(create({"name": name}))
    except UnsupportedError as error:
        pytest.skip(str(error))
    limited = create({"name": name, "planning_limit": 1e6})
    assert simulated(limited).iterations == unlimited.iterations
    assert "planning ended" not in limited.note


@pytest.mark.parametrize("name", ["capuchin", "g10", "g10_paced", "pressurefit", "teraio"])
def test_without_time_a_plan_is_the_best_so_far_and_says_so(name):
    policy = create({"name": name, "planning_limit": 0})
    records = simulated(policy)
    assert len(records.iterations) == 2
    assert "planning ended at its limit of 0 s" in records.note
