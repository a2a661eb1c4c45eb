"""Waits for copies, by timelines worked out by hand on the machines of ``machines``.

A page crosses PCIe in 1000 cycles in each direction. Whole tensors are copied to and from host memory.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import PAGE, iteration_times, kernel_times, machine, simulate, trace_of

from g10sim.config.allocator import CachingPoolSpec
from g10sim.config.host import HostSpec
from g10sim.errors import CapacityError, PolicyError, UnsupportedError
from g10sim.policies.interface.moves import Await, Evict, Fetch, KeepUncompressed
from g10sim.policies.interface.policy import (
    Place,
    PlannedPlace,
    Policy,
    Requirements,
)
from g10sim.records import StallReason
from g10sim.trace.synthetic import random_trace

SYNC, LATE, SPACE = StallReason.SYNCHRONIZATION, StallReason.LATE_PREFETCH, StallReason.ALLOCATION


class Copies(Policy):
    """Carries out actions given by kernel, at its start and at its end."""

    name = "copies"
    requirements = Requirements(placement="contiguous")

    def __init__(self, *, start=None, end=None, places=None):
        self.start, self.end, self.given = start or {}, end or {}, places

    def on_kernel_start(self, view):
        return self.start.get(view.kernel, ())

    def on_kernel_end(self, view):
        return self.end.get(view.kernel, ())

    def places(self, job, plan, behaviour):
        return self.given or super().places(job, plan, behaviour)


class Pages(Copies):
    """The same in unified memory."""

    name = "pages"
    requirements = Requirements()


def layers(x=8, y=4):
    """Two layers forward and two backward: x is read by kernel 0 and again by kernel 3."""
    tensors = {"x": x, "y": y, "z": 2, "g": 2, "h": 2}
    kernels = [(1000, "", "x"), (5000, "x", "y"), (5000, "y", "z"), (5000, "y z", "g"), (5000, "x g", "h")]
    return trace_of(tensors, kernels, "layers")


def stalls(records, iteration=0):
    return [dict(kernel.stalls) for kernel in records.kernels if kernel.iteration == iteration]


def near(value):
    return pytest.approx(value, abs=2)


OFFLOAD = {1: [Evict(0, until=1)]}


def test_a_copy_runs_while_the_kernel_reads_the_tensor():
    records = simulate(layers(), machine(100), Copies(start=OFFLOAD), record=("kernels", "migrations"))
    assert kernel_times(records)[1] == 5000
    (out,) = (record for record in records.migrations[:1])
    assert (out.tensor, out.start, out.end) == near((0, 1000, 9000))
    # Eight pages leave until 9000, kernel 1 ends at 6000, kernel 2 at 11,000.
    assert [kernel.gpu_pages for kernel in records.kernels[:3]] == [8, 12, 6]


def test_space_is_given_back_when_copy_and_reader_are_both_done():
    # Two pages leave in 2000 of kernel 1's 5000 cycles, but kernel 1 reads x to its end.
    records = simulate(layers(x=2), machine(100), Copies(start=OFFLOAD))
    assert [kernel.gpu_pages for kernel in records.kernels[:2]] == [2, 4]
    # With room for x and y only, z (2 pages) has to wait until x has left.
    records = simulate(layers(x=8), machine(12), Copies(start=OFFLOAD))
    assert stalls(records)[2] == near({SPACE: 3000})


def test_end_of_the_issuing_layer():
    joined = Copies(start=OFFLOAD, end={1: [Await(frozenset({0}))]})
    records = simulate(layers(), machine(100), joined)
    # max(5000 computing, 8000 copying).
    assert kernel_times(records)[:3] == near([1000, 8000, 5000])
    assert stalls(records)[1] == near({SYNC: 3000})
    assert records.kernels[1].overlap_cycles == near(5000)
    assert records.kernels[1].in_flight_cycles == near(8000)
    # The join makes the space free, and the copy back is demanded: 8000 cycles.
    assert stalls(records)[4] == near({StallReason.FAULT_HOST: 8000})


def test_end_of_the_layer_that_prefetches():
    actions = {**OFFLOAD, 3: [Fetch(0)]}
    joined = Copies(start=actions, end={3: [Await(evictions=False, prefetches=True)]})
    records = simulate(layers(), machine(100), joined)
    assert stalls(records)[3] == near({SYNC: 3000})
    assert stalls(records)[4] == {}


def test_start_of_the_consuming_layer():
    records = simulate(layers(), machine(100), Copies(start={**OFFLOAD, 3: [Fetch(0)]}))
    assert stalls(records)[3] == {}
    assert stalls(records)[4] == near({LATE: 3000})
    earlier = simulate(layers(), machine(100), Copies(start={**OFFLOAD, 2: [Fetch(0)]}))
    # Recalled while it was still leaving: nothing to wait for.
    assert stalls(earlier)[3:] == [{}, {}]


def test_a_join_that_the_next_kernel_pays_for():
    joined = Copies(start={**OFFLOAD, 2: [Await(frozenset({0}))]})
    records = simulate(layers(), machine(100), joined)
    assert kernel_times(records)[1:3] == near([5000, 8000])
    assert stalls(records)[2] == near({SYNC: 3000})


def test_only_when_memory_is_short():
    # 14 pages: x, y and z. Only g, of kernel 3, has to wait, and x has left by then.
    records = simulate(layers(), machine(14), Copies(start=OFFLOAD))
    assert [sum(stall.values()) for stall in stalls(records)][:4] == near([0, 0, 0, 0])
    records = simulate(layers(), machine(13), Copies(start=OFFLOAD))
    assert stalls(records)[2] == near({SPACE: 3000})


def test_all_modes_cost_the_same_where_there_is_no_room_to_go_on():
    # 12 pages: z has to wait until all of x has left, whoever waits for that.
    joined = simulate(layers(), machine(12), Copies(start=OFFLOAD, end={1: [Await()]}))
    free = simulate(layers(), machine(12), Copies(start=OFFLOAD))
    assert iteration_times(joined)[0] == near(1000 + 8000 + 5000 + 5000 + 8000 + 5000)
    assert iteration_times(free) == iteration_times(joined)
    assert (stalls(joined)[1], stalls(free)[2]) == (near({SYNC: 3000}), near({SPACE: 3000}))


def test_joins_in_unified_memory():
    # x leaves in 16,000 cycles beside kernel 2, which touches two pages for 4000 and computes for 5000, and
    # comes back in as many beside kernel 3, which does the same.
    policy = Pages(
        start={2: [Evict(0)], 3: [Fetch(0)]},
        end={2: [Await()], 3: [Await(evictions=False, prefetches=True)]},
    )
    records = simulate(layers(x=16), machine(100), policy)
    assert kernel_times(records)[2:4] == near([16_000, 16_000])
    assert stalls(records)[2] == near({StallReason.FIRST_TOUCH: 4000, SYNC: 7000})
    assert stalls(records)[3] == near({StallReason.FIRST_TOUCH: 4000, SYNC: 7000})


def test_the_input_that_the_host_has_already_is_not_copied():
    clean = Copies(start={1: [Evict(0, until=1, is_clean=True)]}, end={1: [Await()]})
    records = simulate(layers(), machine(100), clean)
    assert kernel_times(records)[1] == 5000
    assert records.iterations[0].traffic["gpu_to_host_bytes"] == 0
    assert records.iterations[0].traffic["host_to_gpu_bytes"] == 8 * PAGE
    assert records.kernels[1].gpu_pages == 4
    assert records.kernels[1].tier_pages["host_pages"] == 8


def test_space_may_be_taken_back_between_kernels_only():
    class InOrder(Copies):
        requirements = Requirements(placement="contiguous", returns_space="between_kernels")

    # The copy of two pages ends in the middle of kernel 2; its space is used by kernel 3 either way.
    start = {1: [Evict(0, until=1)]}
    for policy, free in ((Copies, 3000), (InOrder, None)):
        if free is None:
            with pytest.raises(UnsupportedError, match="tensor 'z' needs 2 kB of consecutive GPU memory"):
                simulate(layers(), machine(12), policy(start=start))
        else:
            assert stalls(simulate(layers(), machine(12), policy(start=start)))[2] == near({SPACE: free})


def test_where_nothing_is_used_all_memory_is_one_hole():
    records = simulate(trace_of({"a": 1}, [(1000, "", "")]), machine(18), Copies())
    found = records.iterations[0].contiguous
    assert (found.reserved_gpu_bytes, found.largest_hole_bytes) == (0, 18 * PAGE)


def test_planned_places():
    places = [PlannedPlace((10 * PAGE,)), PlannedPlace((0,)), *[Place.LEFT] * 3]
    records = simulate(layers(), machine(18), Copies(places=places), record=("kernels",))
    assert iteration_times(records) == [21_000, 21_000]
    assert records.iterations[0].contiguous.reserved_gpu_bytes == 16 * PAGE
    # z does not fit at page 17 and goes to the right end of the room that x and y leave.
    beyond = [*places[:2], PlannedPlace((17 * PAGE,)), *[Place.LEFT] * 2]
    records = simulate(layers(), machine(18), Copies(places=beyond))
    assert iteration_times(records) == [21_000, 21_000]
    with pytest.raises(PolicyError, match="puts tensor 'x' at address 7; allowed: one or more multiples"):
        simulate(layers(), machine(18), Copies(places=[PlannedPlace((7,)), *[Place.LEFT] * 4]))
    # x alone is placed where it does not fit; without a fallback it waits indefinitely.
    with pytest.raises(UnsupportedError, match="tensor 'x' needs 8 kB of consecutive GPU memory"):
        simulate(layers(), machine(18), Copies(places=[PlannedPlace((11 * PAGE,), None), *[Place.LEFT] * 4]))


def test_every_iteration_begins_with_the_first_of_planned_addresses():
    # If a were at page 10 in the second iteration, b would wait indefinitely.
    trace = trace_of({"a": 2, "b": 2}, [(1000, "", "a"), (1000, "a", "b"), (1000, "a b", "")])
    copies = Copies(places=[PlannedPlace((0, 10 * PAGE)), PlannedPlace((10 * PAGE,), None)])
    assert iteration_times(simulate(trace, machine(18), copies, iterations=3)) == [3000] * 3


POOL = CachingPoolSpec(
    rounding="1 kB",
    small_limit="0 B",
    large_limit="8 kB",
    large_chunk="16 kB",
    chunk_rounding="4 kB",
    least_large_rest="1 kB",
)


def test_a_caching_pool_is_a_choice_of_the_policy():
    class Pooled(Copies):
        requirements = Requirements(placement="contiguous", caching_pool=POOL)

    records = simulate(layers(), machine(32), Pooled())
    assert iteration_times(records) == [21_000, 21_000]
    # One chunk of 16 pages for y, z, g and h, one of 8 for x.
    assert records.iterations[1].contiguous.reserved_gpu_bytes == 24 * PAGE
    with pytest.raises(UnsupportedError, match=r"kernel 1 .* tensor 'y' needs 4 kB"):
        simulate(layers(), machine(16), Pooled())


def test_fragmentation_is_in_the_records():
    # a and c stay around the hole of b, too small for d: 9 pages are touched, 7 are used at most.
    trace = trace_of(
        {"a": 2, "b": 2, "c": 2, "d": 3},
        [(1000, "", "a b c"), (1000, "b", ""), (1000, "", "d"), (1000, "a c d", "")],
        "pieces",
    )
    records = simulate(trace, machine(20), Copies())
    figures = records.iterations[0].contiguous
    assert records.iterations[0].peak_gpu_bytes == 7 * PAGE
    assert figures.reserved_gpu_bytes == 9 * PAGE
    assert figures.largest_hole_bytes == 11 * PAGE


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Evict(0, until=0), "evicts tensor 'x', which the running kernel needs; allowed: until that"),
        (Evict(0, "ssd", until=1), "evicts tensor 'x', which is read, compressed or clean; allowed: to host"),
        (Evict(0, until=1, density=2), "compresses tensor 'x', which has density 2; allowed: 0 to 1"),
        (Evict(1, until=1), "copies tensor 'y', which kernel 1 writes; allowed: read-only ones"),
    ],
)
def test_impossible_copies_are_refused(action, message):
    with pytest.raises(PolicyError) as error:
        simulate(layers(), machine(100), Copies(start={1: [action]}))
    assert message in str(error.value)


def test_pages_cannot_be_read_while_they_leave():
    with pytest.raises(PolicyError, match="allowed: with contiguous memory"):
        simulate(layers(), machine(100), Pages(start=OFFLOAD))


def test_a_join_that_cannot_end_says_so():
    trace = layers()
    full = machine(100, 0, flash_pages=0)
    with pytest.raises(
        UnsupportedError, match="waits for copies that cannot go on; host memory has 0 B free"
    ):
        simulate(trace, full, Copies(start=OFFLOAD, end={1: [Await()]}))


def test_a_join_for_a_prefetch_that_finds_no_room_gives_it_up_if_the_policy_can_make_room():
    class MakesRoom(Copies):
        def on_out_of_memory(self, view):
            return []

    # 13 pages: x (8) has left, and is wanted back beside y and z (6) before kernel 3.
    end = {1: [Await()], 2: [Fetch(0), Await(evictions=False, prefetches=True)]}
    records = simulate(layers(), machine(13), MakesRoom(start=OFFLOAD, end=end), iterations=1)
    assert [stalls(records)[kernel] for kernel in (2, 3)] == [{}, {}]
    assert stalls(records)[4] == near({StallReason.FAULT_HOST: 8000})
    with pytest.raises(UnsupportedError, match="tensor 'x' needs 8 kB"):
        simulate(layers(), machine(13), Copies(start=OFFLOAD, end=end), iterations=1)


class Drawn(Policy):
    """Does something drawn at the start and at the end of every kernel, if it is legal."""

    name = "drawn"
    requirements = None

    def __init__(self, seed, **requirements):
        self.seed = seed
        self.requirements = Requirements(placement="contiguous", **requirements)

    def plan(self, workload, system, behaviour):
        self.draw = random.Random(self.seed)
        return (None,) * len(workload.jobs)

    def places(self, job, plan, behaviour):
        draw = random.Random(self.seed)
        rules = [Place.LEFT, Place.RIGHT, Place.BEST, Place.WORST, Place.LAST]
        return [draw.choice(rules) for _ in job.trace.tensors]

    def on_kernel_start(self, view):
        if self.draw.random() < 0.2:
            yield KeepUncompressed()
        for tensor in view.trace.tensors:
            if self.draw.random() < 0.3:
                yield from self.eviction(view, tensor.id)
            elif self.draw.random() < 0.2 and not view.is_dead(tensor.id):
                yield Fetch(tensor.id)
        if self.draw.random() < 0.2:
            yield Await(None, self.draw.random() < 0.5, self.draw.random() < 0.5)

    def eviction(self, view, tensor):
        last = view.kernel + self.draw.randint(0, 3)
        kernels = view.trace.kernels[view.kernel : last + 1]
        density = self.draw.choice([None, 0.0, 0.3, 1.0])
        if not any(tensor in kernel.outputs for kernel in kernels):
            yield Evict(tensor, until=last, density=density, is_clean=self.draw.random() < 0.2)
        elif not view.is_needed(tensor):
            yield Evict(tensor, self.draw.choice(["host", "ssd"]))

    def on_kernel_end(self, view):
        if self.draw.random() < 0.3:
            yield Await(None, self.draw.random() < 0.7, self.draw.random() < 0.7)

    def on_out_of_memory(self, view):
        idle = [
            tensor.id
            for tensor in view.trace.tensors
            if view.is_whole(tensor.id) and not view.is_needed(tensor.id)
        ]
        return [Evict(idle[0])] if idle else []


HOSTS = [
    {},
    {"pinned": {"pin_latency": "2 us", "pin_rate": "1 GB/s", "unpin_rate": "2 GB/s", "limit": "9 kB"}},
    {"pinned": {"limit": "9 kB", "beyond_limit": "stays", "pin_rate": "1 GB/s"}},
]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    gpu_pages=st.integers(30, 90),
    host=st.sampled_from(HOSTS),
    compresses=st.booleans(),
    keeps=st.booleans(),
    returns=st.sampled_from(["at_once", "between_kernels"]),
    pooled=st.booleans(),
)
def test_whatever_a_policy_does_no_invariant_breaks(
    seed, gpu_pages, host, compresses, keeps, returns, pooled
):
    trace = random_trace(seed, kernels=12, largest_tensor_bytes=6 * PAGE, longest_ticks=8000)
    workers = {"workers": 2, "compression_rate": "0.3 GB/s", "decompression_rate": "1 GB/s"}
    spec = HostSpec(memory="40 kB", **host, **({"compression": workers} if compresses else {}))
    system = machine(gpu_pages).model_copy(update={"host": spec})
    policy = Drawn(
        seed, keeps_host_buffers=keeps, returns_space=returns, caching_pool=POOL if pooled else None
    )
    try:
        records = simulate(trace, system, policy)
    except (UnsupportedError, CapacityError):
        return
    assert simulate(trace, system, policy) == records
