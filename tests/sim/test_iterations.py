"""How many iterations run when nobody says how many, and what counts as steady."""

from array import array
from dataclasses import replace

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import FROM_SSD, FollowPlan, iteration_times, kernel_times, machine, simulate, trace_of
from memories import GPU

from g10sim.config.behaviour import GPG, BehaviourSpec
from g10sim.config.host import HostSpec
from g10sim.config.sharing import ExchangeSpec, SharingSpec, VariationSpec
from g10sim.errors import ConfigError, PolicyError
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.registry import create
from g10sim.records import IterationRecord
from g10sim.sim.accounts.repetition import EndState, Repetition, agree
from g10sim.sim.engine import run
from g10sim.trace.workload import Job, Workload

# The weight comes from flash (1000 for the fault, 2000 of latency, 2000 to move) when it is first read.
STAYS = trace_of({"w*": 1}, [(10_000, "w", ""), (10_000, "", "")])


def verdicts(records, job=0):
    return [record.steady for record in records.iterations if record.job == job]


def auto(trace, system, policy, behaviour=None, **options):
    return simulate(trace, system, policy, behaviour, iterations="auto", **options)


def test_it_ends_when_two_iterations_in_a_row_agree():
    records = auto(STAYS, machine(), Policy())
    assert iteration_times(records) == [25_000, 20_000, 20_000]
    assert verdicts(records) == [None, False, True]
    ideal = auto(STAYS, machine(), create("ideal"))
    assert iteration_times(ideal) == [20_000, 20_000]
    assert verdicts(ideal) == [None, True]


def test_a_number_of_iterations_is_kept_and_judged():
    records = simulate(STAYS, machine(), Policy(), iterations=5)
    assert verdicts(records) == [None, False, True, True, True]
    assert verdicts(simulate(STAYS, machine(), Policy(), iterations=1)) == [None]


def test_mappings_that_are_kept_let_new_tensors_take_free_pages_at_once():
    class Keeps(Policy):
        """Pays for pages once."""

        name = "keeps"
        requirements = Requirements(addresses="own", keeps_mappings=True)

    trace = trace_of({"a": 3}, [(10_000, "", "a"), (10_000, "a", "")])
    plain = iteration_times(simulate(trace, machine(), Policy(), iterations=3))
    kept = iteration_times(simulate(trace, machine(), Keeps(), iterations=3))
    assert plain == [plain[0]] * 3
    assert kept == [plain[0], 20_000, 20_000]
    assert plain[0] > 20_000


def test_moves_behind_the_last_kernel_do_not_come_before_the_first_iteration():
    ahead = simulate(STAYS, machine(), FollowPlan(moves=[(2, 0, GPU)]))
    assert iteration_times(ahead) == iteration_times(simulate(STAYS, machine(), Policy()))


@pytest.mark.parametrize(("pins", "cycles"), [(False, 1000 + 4000), (True, 1000 + 8000)])
def test_what_may_not_be_pinned_on_use_crosses_as_pageable_memory(pins, cycles):
    class Reads(Policy):
        """Reads a weight in host memory, of which a page may be pinned."""

        name = "reads"
        requirements = Requirements(addresses="own", pins_on_use=pins)

    system = machine(group_pages=100)
    pinned = HostSpec(memory="1 MB", pinned={"limit": "1 kB", "pageable_bandwidth": "0.5 GB/s"})
    records = simulate(
        trace_of({"w*": 4}, [(9000, "w", "")]),
        system.model_copy(update={"host": pinned}),
        Reads(),
        BehaviourSpec(addresses="own"),
        iterations=1,
    )
    assert iteration_times(records) == pytest.approx([9000 + cycles], abs=1)


def test_what_transfers_leave_behind_counts():
    """Prefetches that go on over the end of an iteration make the second one fast, and no other one.

    The first one ends with b being prefetched from flash for the last kernel and a for the first one of the
    next, which therefore waits for nothing; but from then on the page that has to make room is always one
    that the kernel after the next needs.
    """
    trace = trace_of({"a*": 1, "b*": 2, "c*": 1}, [(2000, "a", ""), (10_000, "c", ""), (2000, "b", "")])
    records = auto(trace, machine(3), create({"name": "deepum", "look_ahead": 1}))
    assert [kernel_times(records, iteration) for iteration in range(4)] == [
        [7000, 10_000, 2000],
        [2000, 10_000, 3000],
        [4000, 12_000, 4000],
        [4000, 12_000, 4000],
    ]
    assert verdicts(records) == [None, False, False, True]


def lasting(cycles, **traffic):
    usual = {"ssd_to_gpu_bytes": 5000, "gpu_to_ssd_bytes": 0, "host_to_gpu_bytes": 0, "gpu_to_host_bytes": 0}
    return IterationRecord(0, 0, 0, 7, 7 + cycles, 0, 0, 0, 0, (), usual | traffic, 0, 0, {})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (lasting(1_000_000), True),
        (lasting(1_001_000), True),  # 1000 of 1,001,000 are less than 0.1 %
        (lasting(999_000), True),
        (lasting(1_001_002), False),
        (lasting(998_999), False),
        (lasting(1_000_000, ssd_to_gpu_bytes=5005), True),
        (lasting(1_000_000, ssd_to_gpu_bytes=5006), False),
        (lasting(1_000_000, gpu_to_host_bytes=1), False),
    ],
)
def test_iterations_agree_within_a_thousandth_in_time_and_all_traffic(other, expected):
    one = lasting(1_000_000)
    assert (agree(one, other), agree(other, one)) == (expected, expected)


class Evicts(Policy):
    """Evicts the weight at the second kernel of some iterations: it is fetched in 2000 cycles afterwards."""

    name = "evicts"

    def __init__(self, acts):
        self._acts = acts

    def on_kernel_start(self, view):
        return [Evict(0, "host")] if view.kernel == 1 and self._acts(view.iteration) else []


class Announced(Evicts):
    """Says that it begins with the fourth iteration."""

    def is_steady(self, view):
        return view.iteration >= 3


def test_a_policy_that_acts_later_says_so():
    def acts(iteration):
        return iteration >= 3

    records = auto(STAYS, machine(), Announced(acts))
    assert iteration_times(records) == [25_000, 20_000, 20_000, 20_000, 22_000, 22_000]
    assert verdicts(records) == [None, False, False, False, False, True]
    assert len(auto(STAYS, machine(), Evicts(acts)).iterations) == 3


def test_iterations_that_take_turns_are_a_period():
    records = auto(STAYS, machine(), Evicts(lambda iteration: iteration % 2))
    # Places in the eviction order that are empty count as well: they decide which arrivals join.
    assert iteration_times(records) == [25_000, 20_000, 22_000, 20_000, 22_000, 20_000]
    assert verdicts(records) == [None, False, False, False, False, True]
    assert [record.period for record in records.iterations] == [None] * 5 + [2]


@pytest.mark.parametrize(
    ("cycles", "periods"),
    [
        ((10, 20, 30, 30), [None, None, None, 1]),
        ((10, 20, 20, 30), [None, None, 1, None]),
        ((20, 10, 20, 10), [None, None, None, 2]),
        ((20, 10, 20, 20), [None, None, None, 1]),
        ((20, 20, 30, 20), [None, 1, None, None]),
    ],
)
def test_where_states_may_hide_something_a_period_counts_once_it_was_seen_twice(cycles, periods):
    state = EndState(array("q"), array("q"), (), (), is_settled=True)
    careful, plain = (Repetition(1000, confirms=confirms) for confirms in (True, False))
    assert [careful.judge(lasting(time), state)[1] for time in cycles] == periods
    assert [plain.judge(lasting(time), state)[1] for time in cycles] == [None, 1, 1, 1]


class Counts(Evicts):
    """Evicts by the number of the iteration, and says so."""

    def state(self, view):
        return view.iteration


def test_what_never_repeats_ends_after_twelve_iterations():
    records = auto(STAYS, machine(), Counts(lambda iteration: iteration.bit_count() % 2))
    assert verdicts(records) == [None, *[False] * 11]
    assert iteration_times(records)[-6:] == [20_000, 20_000, 22_000, 22_000, 20_000, 20_000]


def test_a_policy_that_fails_to_say_is_named():
    class Raises(Policy):
        """Does not know."""

        name = "raises"

        def is_steady(self, view):
            return [][view.kernel]

    message = "policy 'raises', kernel 1: is_steady raised IndexError: list index out of range"
    with pytest.raises(PolicyError, match=message):
        auto(STAYS, machine(), Raises())


@pytest.mark.parametrize("behaviour", [GPG, BehaviourSpec(reported_iteration="fastest")])
def test_where_the_faster_of_two_is_reported_two_are_run(behaviour):
    found = auto(STAYS, machine(), Policy(), behaviour)
    assert found == simulate(STAYS, machine(), Policy(), behaviour, iterations=2)
    assert len(found.iterations) == 2


@settings(max_examples=60, deadline=None)
@given(
    traces(trace_of, largest=4, tensors=6, kernels=6, cycles=(0, 9000)),
    st.integers(0, 6),
    st.sampled_from(["base_uvm", "deepum", "g10", "capuchin", "tensile"]),
    st.sampled_from([0, 3, 100]),
)
def test_it_is_the_beginning_of_a_longer_run(trace, spare, policy, host_pages):
    largest = max(sum(trace.tensors[t].size_bytes for t in kernel.tensors) for kernel in trace.kernels)
    system = machine(max(1, largest // 1000) + spare, host_pages)
    found = auto(trace, system, create(policy), record=())
    count = len(found.iterations)
    longer = simulate(trace, system, create(policy), iterations=12, record=())
    assert longer.iterations[:count] == found.iterations
    assert found.iterations[-1].steady or count == 12
    assert not any(record.steady for record in found.iterations[:-1])


# --- several GPUs ---


def together(first, second, iterations="auto", **options):
    jobs = Job(first, iterations=iterations), Job(second, gpu=1, iterations=iterations)
    return Workload(jobs, **options)


@pytest.mark.parametrize("exchange", [None, ExchangeSpec(method="none"), ExchangeSpec(method="host")])
def test_replicas_run_equally_many_and_no_more_than_they_need(exchange):
    system = machine(3, gpus=2, shared=[("uplink", (0, 1), "1 GB/s")])
    trace = trace_of({"w*": 2, "v*": 2}, [(3000, "w", ""), (3000, "v", "")])
    workload = together(trace, trace, exchange=exchange)
    records = run(workload, system, create("base_uvm"), check=True)
    counts = [len(verdicts(records, job)) for job in (0, 1)]
    assert counts[0] == counts[1] == 3
    assert [verdicts(records, job)[-1] for job in (0, 1)] == [True, True]
    given_number = together(trace, trace, counts[0], exchange=exchange)
    assert records == run(given_number, system, create("base_uvm"), check=True)


class EvictsOnOne(Evicts):
    """Evicts the weight of one replica."""

    def on_kernel_start(self, view):
        return super().on_kernel_start(view) if view.gpu == 1 else []


def test_a_replica_goes_on_until_the_other_is_steady_too():
    policy = EvictsOnOne(lambda iteration: iteration < 2)
    records = run(together(STAYS, STAYS), machine(gpus=2), policy, FROM_SSD, check=True)
    # Twice it comes from the host, and leaves once less. The second replica is steady at 109,000; the first
    # one has begun its sixth iteration at 105,000.
    assert iteration_times(records) == [25_000, 25_000, 20_000, 22_000, 20_000, 22_000, *[20_000] * 6]
    assert verdicts(records, 0) == [None, False, True, True, True, True]
    assert verdicts(records, 1) == [None, False, False, False, True, True]


def test_replicas_whose_kernel_times_vary_run_equally_many():
    system, variation = machine(gpus=2), VariationSpec(magnitude=0.5)
    workload = together(STAYS, STAYS, variation=variation, exchange=ExchangeSpec(method="ring"))
    records = run(workload, system, Policy(), check=True)
    assert len(verdicts(records, 0)) == len(verdicts(records, 1))
    assert [verdicts(records, job)[-1] for job in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    "jobs",
    [
        (Job(STAYS, iterations="auto"), Job(STAYS, iterations="auto")),
        (Job(STAYS, iterations="auto"), Job(STAYS, gpu=1)),
        (Job(STAYS, iterations="auto"), Job(replace(STAYS), gpu=1, iterations="auto")),
        (Job(STAYS, iterations="auto"), Job(STAYS, gpu=1, iterations="auto", arrival_cycles=1)),
    ],
)
def test_jobs_that_come_and_go_need_a_number(jobs):
    message = "iterations: found auto beside other jobs than replicas on GPUs of their own; allowed: a number"
    with pytest.raises(ConfigError, match=message):
        run(Workload(jobs), machine(gpus=2), Policy())
    with pytest.raises(ConfigError, match=message):
        run(Workload(jobs, sharing=SharingSpec(compute="time_sliced")), machine(gpus=2), Policy())
