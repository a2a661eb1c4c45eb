"""Ids of tensors: policies see those by first use, everybody else those of the trace."""

from dataclasses import dataclass, replace

import pytest
from machines import OWN, machine, simulate, trace_of

from g10sim.config.behaviour import GPG
from g10sim.errors import PolicyError
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.designs.replay import Replay
from g10sim.policies.interface.moves import Await, Evict, Fetch, KeepUncompressed, Move, Protect
from g10sim.policies.interface.plan import MigrationPlan, Planned
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy

# In order of use: y, c, x (all at kernel 0), a, and then the unused ones by size.
TRACE = trace_of(
    {"a": 2, "large*": 9, "x": 3, "small*": 1, "y*": 4, "c*": 5},
    [(1000, "y c", "x"), (1000, "x", "a"), (1000, "a y", "")],
)
ORDER = (4, 5, 2, 0, 3, 1)


class Spy(Policy):
    """Keeps the traces that it is shown."""

    name = "spy"

    def __init__(self):
        self.seen = []

    def plan_job(self, job, system, behaviour):
        self.seen.append(job.trace)
        return None

    def on_kernel_start(self, view):
        self.seen.append(view.trace)
        return ()


def test_tensors_come_in_the_order_of_their_first_use():
    ordered = TRACE.in_order_of_use
    assert [tensor.name for tensor in ordered.tensors] == ["y", "c", "x", "a", "small", "large"]
    assert [tensor.id for tensor in ordered.tensors] == list(range(6))
    assert [kernel.tensors for kernel in ordered.kernels] == [(0, 1, 2), (2, 3), (3, 0)]
    assert ordered.given_ids == ORDER
    assert ordered.in_order_of_use is ordered
    assert ordered.as_given == TRACE


def test_policies_see_ids_in_order_of_use_and_records_have_those_of_the_trace():
    spy = Spy()
    records = simulate(TRACE, machine(), spy, record=("migrations",))
    assert all(trace == TRACE.in_order_of_use for trace in spy.seen)
    moved = {move.tensor for move in records.migrations}
    assert moved == {0, 2, 4, 5}


@pytest.mark.parametrize("behaviour", [GPG, OWN.model_copy(update={"tensor_order": "trace"})])
def test_the_order_of_the_trace_can_be_kept(behaviour):
    spy = Spy()
    simulate(TRACE, machine(), spy, behaviour, check=False)
    assert all(trace is TRACE for trace in spy.seen)


def test_plan_files_have_the_ids_of_the_trace(tmp_path):
    path, trace = tmp_path / "plan.g10p", TRACE.in_order_of_use
    plan = MigrationPlan((Planned(1, Evict(1, "ssd")), Planned(2, Protect(frozenset({0, 3})))))
    save_plan(plan, path, trace)
    as_given = MigrationPlan((Planned(1, Evict(5, "ssd")), Planned(2, Protect(frozenset({4, 0})))))
    assert load_plan(path, TRACE) == as_given
    assert load_plan(path, trace) == plan


def test_a_saved_plan_moves_the_tensors_that_it_names(tmp_path):
    path = tmp_path / "plan.g10p"
    save_plan(MigrationPlan((Planned(1, Evict(5)),)), path, TRACE)
    records = simulate(TRACE, machine(), Replay(plan_file=str(path)), record=("migrations",), iterations=1)
    assert [move.tensor for move in records.migrations if move.target.name == "HOST"] == [5]


def test_an_order_of_prefetches_names_tensors_of_the_trace(tmp_path):
    path = tmp_path / "order.g10p"
    save_plan(MigrationPlan((Planned(0, Fetch(1)),)), path)
    records = simulate(TRACE, machine(), DeepUm(order_file=str(path)), record=("migrations",), iterations=1)
    assert 1 in {move.tensor for move in records.migrations}


def test_moves_take_other_ids_in_the_fields_tensor_and_tensors():
    assert Evict(2, "ssd", until=2).with_ids(ORDER) == Evict(2, "ssd", until=2)
    assert Evict(0, until=1).with_ids(ORDER) == Evict(4, until=1)
    assert Await(frozenset({0, 1})).with_ids(ORDER) == Await(frozenset({4, 5}))
    assert Await(None).with_ids(ORDER) == Await(None)
    assert KeepUncompressed().with_ids(ORDER) == KeepUncompressed()


@dataclass(frozen=True, slots=True)
class Pair(Move):
    """Names tensors in fields of its own."""

    name = "pair"
    one: int
    other: int

    def subjects(self):
        return self.one, self.other


class GoodPair(Pair):
    """Knows how to name others."""

    def with_ids(self, ids):
        return replace(self, one=ids[self.one], other=ids[self.other])


def test_moves_with_other_fields_say_how():
    with pytest.raises(PolicyError, match=r"^move 'pair': found tensors in fields with other names"):
        Pair(0, 1).with_ids(ORDER)
    assert GoodPair(0, 1).with_ids(ORDER) == GoodPair(4, 5)
