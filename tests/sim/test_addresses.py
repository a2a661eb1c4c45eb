"""Unified memory behind a caching allocator: tensors take turns at addresses that stay mapped."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import FollowPlan, iteration_times, kernel_times, machine, simulate, trace_of
from memories import GPU, HOST, NONE, host_pool

from g10sim.api import simulate as simulate_on_preset
from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.behaviour import BehaviourSpec
from g10sim.errors import PolicyError
from g10sim.hardware.memory import Departure, Mapped
from g10sim.hardware.pools import Door, Frames
from g10sim.policies.designs.base_uvm import BaseUvm
from g10sim.policies.designs.deepum import DeepUm
from g10sim.policies.designs.tensile.tensile import Tensile
from g10sim.policies.interface.moves import Drop, Fetch
from g10sim.sim.addresses import PooledAddresses, address_map
from g10sim.trace.synthetic import random_trace

POOLED = BehaviourSpec(addresses="pooled")
PAGE = 4096

# b is born when a is dead and is as large: it gets the same addresses.
TURNS = trace_of({"a": 2, "b": 2}, [(5000, "", "a"), (5000, "a", ""), (5000, "", "b"), (5000, "b", "")])

# x lies behind a. When a is dead, its addresses are too few for b, which needs all memory beside x.
DEAD_IN_THE_WAY = trace_of(
    {"a": 2, "x": 1, "b": 3}, [(9000, "", "a x"), (9000, "a", ""), (9000, "x", "b"), (9000, "b x", "")]
)


class Drops(BaseUvm):
    """Drops the last tensor before every kernel."""

    def on_kernel_start(self, view):
        return [Drop(len(view.trace.tensors) - 1)]


def traffic(records, iteration=-1):
    moved = records.iterations[iteration].traffic
    return moved["gpu_to_host_bytes"], moved["host_to_gpu_bytes"]


def test_addresses_are_touched_for_the_first_time_once():
    own = simulate(TURNS, machine(), BaseUvm())
    assert [kernel_times(own, iteration) for iteration in (0, 1)] == [[9000, 5000, 9000, 5000]] * 2
    pooled = simulate(TURNS, machine(), BaseUvm(), POOLED)
    assert kernel_times(pooled, 0) == [9000, 5000, 5000, 5000]
    assert kernel_times(pooled, 1) == [5000] * 4
    assert [record.page_faults for record in pooled.iterations] == [2, 0]


def test_what_is_freed_just_before_a_kernel_writes_it_is_kept():
    trace = trace_of({"a": 2, "w*": 3}, [(5000, "", "a"), (9000, "w", ""), (5000, "a", "")])
    freed = simulate(trace, machine(gpu_pages=4), FollowPlan(moves=[(0, 0, NONE)]), POOLED, iterations=4)
    assert traffic(freed) == traffic(simulate(trace, machine(gpu_pages=4), BaseUvm(), POOLED, iterations=4))
    assert traffic(freed) == (2000, 2000)


def test_unified_memory_moves_what_is_dead():
    records = simulate(DEAD_IN_THE_WAY, machine(gpu_pages=4), BaseUvm(), POOLED, iterations=4)
    # b pushes out all of the dead a, and in the next iteration a pushes out two pages of the dead b.
    assert traffic(records) == (4000, 4000)
    assert iteration_times(records)[2] == iteration_times(records)[3] > 36_000


@pytest.mark.parametrize(
    "policy",
    [DeepUm(look_ahead=2), FollowPlan(moves=[(2, 0, NONE), (4, 1, NONE), (4, 2, NONE)])],
    ids=["deepum", "hints"],
)
def test_what_is_invalidated_or_freed_does_not_move(policy):
    records = simulate(DEAD_IN_THE_WAY, machine(gpu_pages=4), policy, POOLED, iterations=3)
    assert traffic(records) == (0, 0)


def test_freed_pages_stay_mapped_while_there_is_room():
    policy = FollowPlan(moves=[(2, 0, NONE), (4, 1, NONE)])
    records = simulate(TURNS, machine(), policy, POOLED)
    assert kernel_times(records, 1) == [5000] * 4


def test_freed_addresses_are_free_until_a_tensor_is_born_there():
    free = []

    class Watches(FollowPlan):
        def on_kernel_start(self, view):
            free.append(view.free_bytes)
            return ()

    trace = trace_of({"a": 2, "b": 2}, [(5, "", "a"), (5, "a", ""), (5, "", ""), (5, "", "b"), (5, "b", "")])
    simulate(trace, machine(gpu_pages=4), Watches(moves=[(2, 0, NONE)]), POOLED, iterations=1)
    assert free == [4000, 2000, 4000, 2000, 2000]


def test_migrations_name_the_tensor_whose_contents_move():
    records = simulate(
        DEAD_IN_THE_WAY, machine(gpu_pages=4), BaseUvm(), POOLED, iterations=2, record=("migrations",)
    )
    out = [(record.tensor, record.size_bytes) for record in records.migrations if record.target == HOST]
    assert out == [(0, 2000), (2, 2000), (0, 2000)]


def test_dropping_needs_own_addresses():
    with pytest.raises(PolicyError, match=r"addresses that others use .*; allowed: .*'own'"):
        simulate(TURNS, machine(), Drops(), POOLED)


def test_designs_that_free_memory_themselves_keep_own_addresses():
    system = machine(gpu_pages=4)
    own, pooled = (simulate(DEAD_IN_THE_WAY, system, Tensile(), b) for b in (BehaviourSpec(), POOLED))
    assert own.iterations == pooled.iterations


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_alive_tensors_never_share_addresses(seed):
    trace = random_trace(seed)
    addresses = PooledAddresses(address_map(trace, PAGE, 2 << 20, CachingPoolSpec()))
    for _ in range(2):
        for kernel in trace.kernels:
            addresses.enter(kernel.id)
            alive = [t.id for t in trace.tensors if t.persistent or t.id in kernel.tensors]
            alive += [t.id for t in trace.tensors if trace.births[t.id] < kernel.id < trace.deaths[t.id]]
            places = [place for tensor in set(alive) for place in addresses.held(tensor)]
            assert len(places) == len(set(places))
            seen = addresses.trace.kernels[kernel.id]
            for tensor in kernel.tensors:
                size = sum(addresses.trace.tensors[place].size_bytes for place in addresses.held(tensor))
                assert size == -(-trace.tensors[tensor].size_bytes // PAGE) * PAGE
                assert set(addresses.held(tensor)) <= set(seen.tensors)
            addresses.leave(kernel.id)


def test_addresses_are_made_for_each_size_of_pages():
    trace, spec = random_trace(1), CachingPoolSpec()
    made = [address_map(trace, page, 2 << 20, spec).trace for page in (PAGE, 4 * PAGE, PAGE)]
    sizes = [sum(tensor.size_bytes for tensor in one.tensors) for one in made]
    assert sizes[0] == sizes[2] < sizes[1]


def test_arrivals_make_their_chunk_recent():
    memory = Mapped([1, 1, 1], Frames(3), 4096, [host_pool(10)], Door(), [range(2)])
    for tensor in (1, 2, 0):
        memory.demand(tensor)
        queue = memory.queues.fault[NONE]
        memory.commit(queue, queue[0], 1, NONE, NONE)
        memory.reorder()
    order = []
    while (run := memory.recency.oldest()) is not None:
        order.append(run.tensor)
        memory.recency.remove(run.tensor)
    assert order == [2, 0, 1]


def test_a_neighbour_that_makes_room_has_left_when_its_chunk_becomes_recent():
    memory = Mapped([1, 3], Frames(3), 4096, [host_pool(10)], Door(), [range(2)])
    for tensor, victim in ((1, None), (0, 1)):
        memory.demand(tensor)
        queue = memory.queues.fault[NONE]
        run = memory.recency.oldest() if victim else None
        memory.commit(queue, queue[0], memory.sizes[tensor], NONE, HOST if victim else NONE, run)
        memory.reorder()
    assert (memory.idle, memory.pages[HOST]) == ([1, 2], [0, 1])
    assert [memory.recency.pages(tensor) for tensor in (0, 1)] == memory.idle


def test_discarded_pages_are_counted_until_they_leave_or_are_wanted_again():
    memory = Mapped([3, 2, 4, 1], Frames(9), 4096, [host_pool(10)], Door())
    for tensor in range(3):
        memory.place(tensor, GPU)
    memory.request_eviction(0, HOST, Departure(pages=1))
    for tensor in (0, 2, 2):
        memory.discard(tensor)
    assert memory.discarded_pages == 2 + 4
    memory.demand(3)
    queue = memory.queues.fault[NONE]
    memory.commit(queue, queue[0], 1, NONE, NONE, memory.recency.oldest_of(2))
    assert memory.discarded_pages == 2 + 3
    memory.cancel_eviction(0)  # what was to leave stays
    assert memory.discarded_pages == 3 + 3
    memory.reclaim([1, 0])
    assert (memory.discarded_pages, memory.discarded) == (3, {2})
    memory.discard(2, but_for_gpu=False)
    assert memory.discarded_pages == 0


class Shifting(BaseUvm):
    """Evicts nothing, fetches what the next kernel needs."""

    def on_kernel_start(self, view):
        kernels = view.trace.kernels
        return [Fetch(tensor) for tensor in kernels[(view.kernel + 1) % len(kernels)].tensors]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 60), st.sampled_from([BaseUvm, Shifting, DeepUm]))
def test_pages_that_share_a_chunk_with_their_victims_arrive_in_the_end(seed, spare, policy):
    trace = random_trace(seed, kernels=8, largest_tensor_bytes=400 << 10)
    seen = address_map(trace, PAGE, 2 << 20, CachingPoolSpec()).trace
    sizes = [tensor.size_bytes // PAGE for tensor in seen.tensors]
    working_set = max(sum(sizes[place] for place in kernel.tensors) for kernel in seen.kernels)
    system = machine(gpu_pages=working_set + spare, page=PAGE, group_pages=512, host_pages=sum(sizes))
    behaviour = BehaviourSpec(addresses="pooled", recency="arrival")
    records = simulate(trace, system, policy(), behaviour, iterations=2)
    assert len(records.iterations) == 2


def test_a_steady_iteration_that_fits_has_no_faults():
    result = simulate_on_preset(
        "traces/bert-base-b256-s128.g10t", "a100-40g-pcie3-znand", "base_uvm", compat=dict(POOLED)
    )
    assert (result.summary["page_faults"], result.performance) == (0, 1.0)
