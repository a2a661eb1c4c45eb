"""The simulator agrees with a slow model that was written from docs/model.md alone."""

import ast
from pathlib import Path

import pytest
from comparing import gap, moves_of
from drawn_cases import POLICIES, Case, draw_case
from slow_links import fair_rates, fault_batches, rates_in_order

from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.data import data_path
from g10sim.config.presets import load_system
from g10sim.policies.interface.registry import create
from g10sim.trace.format import load_trace
from g10sim.trace.workload import Job

HERE = Path(__file__).parent
CLOSE = 0.005
SOME, MANY = range(1000, 1048), range(200)

# The simulator keeps the eviction order in runs (docs/deviations.md, number 23): a change is due when one of
# them is used up, though the next one may be of the same tensor, or when flows together have moved as much as
# there is. For the slow model it is due when the next page to leave is of another tensor, or when whole pages
# have moved. In these cases the first difference is whether a few pages push out others or take room that
# planned evictions have just made, one page of one tensor in the place of one of another, or which of two
# chunks that took in pages at one change counts as the older one.
TIES = {26, 33, 75, 123, 162, 191}


def far_apart(seeds):
    """Seeds of cases in which time, faults, or traffic of a tier in a direction is not as modelled."""
    gaps = {seed: gap(draw_case(seed)) for seed in seeds}
    return {seed for seed, found in gaps.items() if found > CLOSE}


def test_the_slow_model_shares_no_code_with_the_simulator():
    for path in HERE.glob("slow_*.py"):
        tree = ast.walk(ast.parse(path.read_text()))
        assert not [node for node in tree if isinstance(node, ast.ImportFrom) and "g10sim" in node.module]


def test_links_are_shared_as_by_hand():
    capacities = (("a", 10), ("b", 4))
    flows = ((("a", "b"), float("inf")), (("a",), float("inf")), (("a",), 1))
    assert fair_rates(capacities, (flows,)) == [pytest.approx([4, 5, 1])]
    assert fair_rates(capacities, (flows[1:2], flows[:1])) == [[10], [0]]
    assert rates_in_order(capacities, (flows,)) == [[4, 6, 0]]


@pytest.mark.parametrize(("batch", "batches"), [(1, 6), (256, 2), (None, 1)])
def test_faults_of_a_group_come_in_as_in_the_driver(batch, batches):
    assert fault_batches(512, 512, 16, batch, 0.51) == batches
    assert fault_batches(1024, 512, 16, batch, 0.51) == 2 * batches


def test_the_simulator_agrees_with_the_slow_model():
    assert len(far_apart(SOME)) <= 0.05 * len(SOME)


@pytest.mark.nightly
def test_the_simulator_agrees_with_the_slow_model_but_for_known_ties():
    apart = far_apart(MANY)
    assert len(apart) <= 0.05 * len(MANY)
    assert apart <= TIES


def real_case(policy, addresses, recency):
    """A network on a machine with half the memory that it needs; pages are large to be few."""
    changes = {"gpu": {"memory": "16 GiB", "page_size": "2 MiB"}}
    system = load_system({"preset": "a100-40g-pcie3-znand", **changes})
    behaviour = BehaviourSpec(addresses=addresses, recency=recency, tensor_order="trace")
    trace = load_trace(data_path("traces/bert-base-b256-s128.g10t"))
    moves = {}
    if policy == "scripted":
        moves = moves_of(create("g10").plan_job(Job(trace), system, behaviour))
    return Case(0, trace, system, behaviour, policy, look_ahead=8, moves=moves)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("addresses", "recency"), [("own", "use"), ("pooled", "arrival")])
def test_the_simulator_agrees_with_the_slow_model_on_a_real_trace(policy, addresses, recency):
    case = real_case(policy, addresses, recency)
    assert (policy != "scripted") or sum(map(len, case.moves.values())) > 1000
    assert gap(case) < CLOSE
