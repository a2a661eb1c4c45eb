"""Tensors that are dropped and computed once more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import OWN, iteration_times, machine, planned, simulate, trace_of
from memories import HOST, NONE

from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.flashneuron import FlashNeuron
from g10sim.policies.interface.moves import Drop, Evict, Fetch
from g10sim.policies.interface.plan import MigrationPlan
from g10sim.policies.interface.plan_format import load_plan, save_plan
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.records import StallReason
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

# a is made from x and read by the last kernel; between them b is made.
FORK = trace_of({"x*": 1, "a": 2, "b": 1}, [(10_000, "x", "a"), (5000, "x", "b"), (7000, "a b", "")])


class Drops(Policy):
    """Drops tensors before kernels, given as (kernel, tensor); by plan or by action."""

    name = "drops"

    def __init__(self, *, drops=(), planned=True):
        self.drops, self.planned = drops, planned

    def plan_job(self, job, system, behaviour):
        moves = [planned(kernel, tensor, NONE, drops=True) for kernel, tensor in self.drops]
        return MigrationPlan.ordered(moves) if self.planned else None

    def on_kernel_start(self, view):
        if self.planned:
            return ()
        return [Drop(tensor) for kernel, tensor in self.drops if kernel == view.kernel]


@pytest.mark.parametrize("planned", [True, False])
def test_a_dropped_tensor_is_made_again_before_its_next_reader(planned):
    records = simulate(FORK, machine(), Drops(drops=[(1, 1)], planned=planned))
    # First touches cost 2000 a page; a is touched and computed twice.
    assert iteration_times(records)[1] == (4000 + 10_000) + (2000 + 5000) + (4000 + 10_000 + 7000)
    last = records.kernels[-1]
    assert dict(last.stalls) == {StallReason.FIRST_TOUCH: 4000, StallReason.RECOMPUTATION: 10_000}
    assert last.compute_cycles == 7000


def test_a_kernel_that_computes_while_data_arrive_starts_when_they_have_been_made_again():
    behaviour = OWN.model_copy(update={"compute_overlap": "while_arriving"})
    records = simulate(FORK, machine(), Drops(drops=[(1, 1)]), behaviour)
    last = records.kernels[-1]
    assert last.end - last.start == (4000 + 10_000) + 7000


def test_dropping_saves_memory_and_moves_nothing():
    kept = simulate(FORK, machine(), BaseUvm())
    dropped = simulate(FORK, machine(), Drops(drops=[(1, 1)]))
    assert kept.iterations[1].peak_gpu_bytes == 4000
    assert dropped.iterations[1].peak_gpu_bytes == 4000  # the last kernel needs a and b, and x is there
    during = [k.gpu_pages for k in dropped.kernels if k.iteration == 1]
    assert during == [3, 2, 1]
    traffic = dropped.iterations[1].traffic
    assert traffic["gpu_to_host_bytes"] == traffic["gpu_to_ssd_bytes"] == 0


def test_a_chain_of_any_length_is_made_again():
    count = 1500
    made = [(10, f"t{number - 1}" if number else "x", f"t{number}") for number in range(count)]
    last = " ".join(f"t{number}" for number in reversed(range(count)))
    sizes = {"x*": 1} | {f"t{number}": 1 for number in range(count)}
    trace = trace_of(sizes, [*made, (10, "x", ""), (10, last, "")])
    drops = [(count, tensor) for tensor in range(1, count + 1)]
    records = simulate(trace, machine(2000), Drops(drops=drops), iterations=1)
    assert dict(records.kernels[-1].stalls)[StallReason.RECOMPUTATION] == 10 * count


def test_a_chain_is_made_again_from_where_it_still_is():
    chain = trace_of(
        {"x*": 1, "a": 1, "b": 1, "c": 1},
        [(1000, "x", "a"), (2000, "a", "b"), (4000, "x", "c"), (8000, "a b c", "")],
    )
    records = simulate(chain, machine(), Drops(drops=[(2, 1), (2, 2)]))
    stalls = dict(records.kernels[-1].stalls)
    assert stalls == {StallReason.FIRST_TOUCH: 2 * 2000, StallReason.RECOMPUTATION: 1000 + 2000}


def test_sources_that_were_evicted_come_back_first():
    class Evicts(Drops):
        def plan_job(self, job, system, behaviour):
            plan = super().plan_job(job, system, behaviour)
            moves = [*plan.moves, planned(1, 0, HOST)]
            return MigrationPlan.ordered(moves)

    trace = trace_of({"x*": 1, "a": 2, "b": 1}, [(10_000, "x", "a"), (5000, "", "b"), (7000, "a b", "")])
    records = simulate(trace, machine(), Evicts(drops=[(1, 1)]))
    stalls = dict(records.kernels[-1].stalls)
    assert stalls[StallReason.FAULT_HOST] == 2000
    assert stalls[StallReason.RECOMPUTATION] == 10_000


def test_what_a_producer_leaves_behind_is_gone_again():
    # The first kernel also makes t, which nothing reads any more when it runs again.
    trace = trace_of(
        {"x*": 1, "a": 2, "t": 3, "b": 1}, [(10, "x", "a t"), (10, "t", ""), (10, "x", "b"), (10, "a b", "")]
    )
    records = simulate(trace, machine(), Drops(drops=[(2, 1)]))
    assert records.kernels[-1].gpu_pages == 1
    assert records.iterations[1].peak_gpu_bytes == 7000  # x, a, t and, waiting, b


# s is made from x, and a from s, which nothing reads after that; u is another result of the first kernel.
THROUGH = trace_of(
    {"x*": 1, "s": 2, "u": 1, "a": 2},
    [(1000, "x", "s u"), (2000, "s", "a"), (4000, "u", ""), (8000, "a", "")],
)


@pytest.mark.parametrize("planned", [True, False])
def test_what_is_dead_is_made_again_for_what_was_dropped_and_goes(planned):
    records = simulate(THROUGH, machine(), Drops(drops=[(2, 3)], planned=planned))
    last = records.kernels[-1]
    # Pages are touched first once more: two of s, one of u, two of a.
    assert dict(last.stalls) == {StallReason.FIRST_TOUCH: 5 * 2000, StallReason.RECOMPUTATION: 1000 + 2000}
    assert last.gpu_pages == 1  # x


def test_dead_sources_of_several_dropped_tensors_are_made_again_once():
    trace = trace_of(
        {"x*": 1, "s": 1, "a": 1, "b": 1},
        [(1000, "x", "s"), (2000, "s", "a"), (4000, "s", "b"), (10, "x", ""), (8000, "a b", "")],
    )
    records = simulate(trace, machine(), Drops(drops=[(3, 2), (3, 3)]))
    stalls = dict(records.kernels[-1].stalls)
    assert stalls[StallReason.RECOMPUTATION] == 1000 + 2000 + 4000


REFUSED = {
    "persistent": (FORK, (2, 0), "which lasts from iteration to iteration"),
    "not made yet": (FORK, (1, 2), "which the running kernel needs"),
    "dead": (
        trace_of({"a": 1, "b": 1}, [(10, "", "a"), (10, "a", ""), (10, "", "b")]),
        (2, 0),
        "which has no contents that will be read again",
    ),
    "made by two kernels": (
        trace_of({"a": 1}, [(10, "", "a"), (10, "", "a"), (10, "", ""), (10, "a", "")]),
        (2, 0),
        "which 2 kernels write",
    ),
    "made in place": (
        trace_of({"w*": 1, "a": 1}, [(10, "w", "w a"), (10, "", ""), (10, "a", "")]),
        (1, 1),
        "changes what it reads",
    ),
    "source gone, made by two kernels": (
        trace_of(
            {"s": 1, "a": 1}, [(10, "", "s"), (10, "", "s"), (10, "s", "a"), (10, "", ""), (10, "a", "")]
        ),
        (3, 1),
        "reads 's', gone before kernel 4",
    ),
    "source gone, made from what has changed": (
        trace_of(
            {"w*": 1, "s": 1, "a": 1},
            [(10, "w", "s"), (10, "s", "a"), (10, "", "w"), (10, "", ""), (10, "a", "")],
        ),
        (3, 2),
        r"is made from what kernel 0 \(.*\) makes, which reads 'w', changed before kernel 4",
    ),
    "source changed": (
        trace_of({"w*": 1, "a": 1}, [(10, "w", "a"), (10, "", "w"), (10, "a", "")]),
        (1, 1),
        "reads 'w', changed before kernel 2",
    ),
    "other result changed": (
        trace_of({"a": 1, "o": 1}, [(10, "", "a o"), (10, "", "o"), (10, "a", ""), (10, "o", "")]),
        (1, 0),
        "also writes 'o', changed before kernel 2",
    ),
}


@pytest.mark.parametrize(("trace", "drop", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_made_again_is_not_dropped(trace, drop, message):
    with pytest.raises(PolicyError, match=message):
        simulate(trace, machine(), Drops(drops=[drop]))


class DropsAtEnds(Drops):
    """Drops tensors after kernels, given as (kernel, tensor)."""

    name = "drops_at_ends"

    def plan_job(self, job, system, behaviour):
        return None

    def on_kernel_start(self, view):
        return ()

    def on_kernel_end(self, view):
        return [Drop(tensor) for kernel, tensor in self.drops if kernel == view.kernel]


def test_a_tensor_can_be_dropped_right_after_the_kernel_that_made_it():
    records = simulate(FORK, machine(), DropsAtEnds(drops=[(0, 1)]))
    assert dict(records.kernels[-1].stalls) == {
        StallReason.FIRST_TOUCH: 4000,
        StallReason.RECOMPUTATION: 10_000,
    }


def test_a_tensor_that_was_just_updated_in_place_is_not_dropped():
    trace = trace_of({"a": 1}, [(10, "", "a"), (10, "a", "a"), (10, "", ""), (10, "a", "")])
    with pytest.raises(PolicyError, match="drops tensor 'a', which 2 kernels write"):
        simulate(trace, machine(), DropsAtEnds(drops=[(1, 0)]))


def test_a_dropped_tensor_that_a_kernel_writes_anew_is_there_again():
    # Nothing reads the first contents of a after kernel 2; kernel 3 writes others.
    trace = trace_of(
        {"x*": 1, "a": 1},
        [(10, "x", "a"), (10, "a", ""), (10, "", ""), (10, "x", "a"), (10, "x", ""), (10, "a", "")],
    )
    seen = []

    class Watches(Drops):
        def on_kernel_start(self, view):
            seen.append(view.is_dropped(1))
            return ()

    records = simulate(trace, machine(), Watches(drops=[(2, 1)]))
    assert seen == [False, False, True, True, False, False] * 2
    assert StallReason.RECOMPUTATION not in dict(records.iterations[1].stalls)


class MapsAhead(Drops):
    """Also maps pages of tensor 1 before kernel 1, and asks for ``more`` at once."""

    more = ()

    def on_kernel_start(self, view):
        assert view.is_dropped(1) == (view.kernel > 0)
        return [Fetch(1), *self.more] if view.kernel == 1 else []


def test_pages_of_a_dropped_tensor_are_mapped_ahead_without_traffic():
    records = simulate(FORK, machine(), MapsAhead(drops=[(1, 1)]))
    # a is mapped while kernel 1 computes, and first touches cost 2000 a page for the other pages only.
    assert iteration_times(records)[1] == (4000 + 10_000) + (2000 + 5000) + (10_000 + 7000)
    last = records.kernels[-1]
    assert dict(last.stalls) == {StallReason.RECOMPUTATION: 10_000}
    assert records.kernels[-2].gpu_pages == 4  # x, b, and a without contents
    traffic = records.iterations[1].traffic
    assert sum(traffic.values()) == 0


def test_pages_mapped_for_a_dropped_tensor_are_given_back_instead_of_evicted():
    class TakesBack(MapsAhead):
        more = (Evict(1),)

    records = simulate(FORK, machine(), TakesBack(drops=[(1, 1)]))
    assert records == simulate(FORK, machine(), Drops(drops=[(1, 1)]))


def test_pages_mapped_for_a_dropped_tensor_make_room_without_traffic():
    # The GPU has room for 4 pages; kernel 2 needs all of them while 2 are mapped for a.
    trace = trace_of(
        {"x*": 1, "a": 2, "b": 1, "c": 3},
        [(10_000, "x", "a"), (5000, "x", "b"), (3000, "x", "c"), (7000, "a x", "")],
    )
    records = simulate(trace, machine(4), MapsAhead(drops=[(1, 1)]))
    traffic = records.iterations[1].traffic
    assert traffic["gpu_to_host_bytes"] == traffic["gpu_to_ssd_bytes"] == 0
    stalls = dict(records.kernels[-1].stalls)
    assert stalls[StallReason.RECOMPUTATION] == 10_000


def test_a_dropped_tensor_that_is_written_next_is_not_computed_again():
    trace = trace_of({"a": 2, "b": 1}, [(10_000, "", "a"), (5000, "", "b"), (4000, "", "a"), (7000, "a", "")])
    records = simulate(trace, machine(), Drops(drops=[(1, 0)]))
    stalls = {reason for kernel in records.kernels for reason, _ in kernel.stalls}
    assert stalls == {StallReason.FIRST_TOUCH}


def test_dropping_is_part_of_a_plan_file(tmp_path):
    plan = Drops(drops=[(1, 1)]).plan_job(None, None, None)
    save_plan(plan, tmp_path / "plan.g10p", FORK)
    assert load_plan(tmp_path / "plan.g10p", FORK) == plan


class DropsWhatItCan(Policy):
    """Drops every tensor that may be dropped, whenever it may."""

    name = "drops_what_it_can"

    def on_kernel_start(self, view):
        from g10sim.sim.stages.recomputation import Recomputation

        rules = Recomputation(view.trace)
        return [
            Drop(tensor.id)
            for tensor in view.trace.tensors
            if not view.is_needed(tensor.id) and not rules.problem(tensor.id, view.kernel)
        ]


@st.composite
def traces(draw):
    names = [f"t{i}" for i in range(draw(st.integers(2, 6)))]
    sizes = {name + "*" * draw(st.booleans()): draw(st.integers(1, 4)) for name in names}
    some = st.lists(st.sampled_from(names), max_size=3, unique=True).map(" ".join)
    kernels = draw(st.lists(st.tuples(st.integers(1, 5000), some, some), min_size=2, max_size=10))
    return trace_of(sizes, kernels)


@settings(max_examples=80, deadline=None)
@given(traces(), st.integers(24, 40))
def test_a_policy_that_drops_all_it_can_breaks_no_invariant(trace, gpu_pages):
    records = simulate(trace, machine(gpu_pages), DropsWhatItCan())
    for record in records.iterations:
        stalls = dict(record.stalls)
        assert record.end - record.start >= record.ideal_cycles + stalls.get(StallReason.RECOMPUTATION, 0)


def test_contiguous_memory_can_drop_too():
    class Contiguous(Drops):
        name = "contiguous_drops"
        requirements = Requirements(placement="contiguous")

    records = run(
        Workload((Job(FORK, iterations=1),)),
        machine(),
        Contiguous(drops=[(1, 1)]),
        BehaviourSpec(),
        check=True,
    )
    assert dict(records.iterations[0].stalls)[StallReason.RECOMPUTATION] == 10_000
    assert FlashNeuron.requirements.placement == Contiguous.requirements.placement
