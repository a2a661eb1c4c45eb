"""Batched transfers: quotas, order, destinations, and jumps over equal batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine
from memories import FLASH, GPU, HOST, NONE, flash_pool, host_pool, memory_of, moved

from g10sim.config.behaviour import GPG
from g10sim.errors import ConfigError
from g10sim.hardware.pools import Door
from g10sim.hardware.transfers.batched import BatchedTransfers
from g10sim.records import MigrationCause
from g10sim.sim.accounts.recorder import check_conservation

INTERVAL = 50_000


class ByAge:
    """Oldest first; prefetches scan past protected tensors; ``worthless`` tensors are dropped."""

    def __init__(self, worthless=()):
        self.worthless = worthless

    def choose(self, memory, demanded):
        if not demanded and memory.protected:
            return memory.recency.scan_outside(memory.protected)
        return memory.recency.oldest()

    def upcoming(self, memory, demanded):
        if not demanded and memory.protected:
            return memory.recency.scan_ahead(memory.protected)
        return memory.recency.oldest_ahead(())

    def is_worthless(self, tensor):
        return tensor in self.worthless

    def restart(self):
        pass


class OneByOne(BatchedTransfers):
    """Computes every batch by itself."""

    def _foresee(self):
        super()._foresee()
        self._repeats = self._streamed = 0


class Bench:
    """50 pages a batch each way, of those 10 from flash and 10 to it."""

    def __init__(
        self, places, gpu=100_000, host=100_000, *, mapping="100 GB/s", worthless=(), kind=BatchedTransfers
    ):
        system = machine(gpu, host, read="0.2 GB/s", write="0.2 GB/s", mapping=mapping)
        door = Door()
        self.host, self.flash = host_pool(host, 1000), flash_pool(10**7, 1000)
        sizes = [pages for pages, _ in places]
        self.memory = memory_of(sizes, gpu, [self.host, self.flash], 1000, door)
        self.memory.restart_peaks()
        for tensor, (_, place) in enumerate(places):
            if place != NONE:
                self.memory.place(tensor, place)
        self.moves = []
        self.transfers = kind(system, GPG, lambda move, *rest: self.moves.append((*move, *rest)), door)
        self.transfers.attach(0, 0, self.memory, ByAge(worthless))
        self.now = -1

    def demand(self, *tensors):
        self.memory.hold(frozenset(tensors))
        for tensor in tensors:
            self.transfers.demand(0, tensor)
        self.transfers.changed()

    def protect(self, *tensors):
        self.memory.protect(frozenset(tensors))
        self.transfers.changed((0,))

    def prefetch(self, tensor):
        self.memory.request_prefetch(tensor)
        self.transfers.changed()

    def evict(self, tensor, target):
        self.memory.request_eviction(tensor, target)
        self.transfers.changed()

    def batch(self, count=1):
        """Let batches happen; returns (from flash, to flash, from host, to host) pages."""
        before = moved(self.memory)
        for _ in range(count):
            self.now += INTERVAL if self.now >= 0 else 1
            self.transfers.advance(self.now)
        check_conservation(self.memory, "test")
        return tuple(new - old for new, old in zip(moved(self.memory), before, strict=True))


def test_interval_is_a_batch_at_link_speed():
    assert BatchedTransfers(machine(), GPG).interval_cycles == INTERVAL
    assert BatchedTransfers(machine(pcie="3 GB/s"), GPG).interval_cycles == 16_666


def test_no_batch_is_formed_before_a_memory_is_served():
    """A job that is refused changes memory without ever being served."""
    transfers = BatchedTransfers(machine(), GPG)
    transfers.changed()
    transfers.advance(10 * INTERVAL)
    assert transfers.next_change() is None


def test_batches_serve_one_gpu():
    with pytest.raises(ConfigError, match=r"^compat\.transfers: batched transfers serve one GPU; found"):
        BatchedTransfers(machine(gpus=2), GPG)


def test_host_pages_fill_the_link():
    bench = Bench([(120, HOST)])
    bench.demand(0)
    assert [bench.batch() for _ in range(4)] == [(0, 0, 50, 0), (0, 0, 50, 0), (0, 0, 20, 0), (0, 0, 0, 0)]


def test_flash_gets_its_share_first_and_the_host_the_rest():
    bench = Bench([(30, FLASH), (200, HOST)])
    bench.demand(1, 0)
    assert [bench.batch() for _ in range(4)] == [(10, 0, 40, 0)] * 3 + [(0, 0, 50, 0)]


def test_new_pages_have_a_quota_that_fetches_use_up():
    bench = Bench([(60, HOST), (500, NONE)], mapping="4 GB/s")
    bench.demand(0, 1)
    bench.batch()
    assert (bench.memory.idle[0], bench.memory.idle[1]) == (50, 150)
    bench.batch()
    assert (bench.memory.idle[0], bench.memory.idle[1]) == (60, 340)


def test_faults_come_before_prefetches_of_the_same_kind():
    bench = Bench([(60, HOST), (60, HOST)])
    bench.prefetch(0)
    bench.demand(1)
    bench.batch()
    assert (bench.memory.idle[0], bench.memory.idle[1]) == (0, 50)
    bench.batch()
    assert (bench.memory.idle[0], bench.memory.idle[1]) == (40, 60)


def test_faults_and_prefetches_share_what_comes_from_flash():
    bench = Bench([(6, FLASH), (60, FLASH)])
    bench.prefetch(1)
    bench.demand(0)
    bench.batch()
    assert (bench.memory.idle[0], bench.memory.idle[1]) == (6, 4)


def test_directions_are_independent():
    bench = Bench([(200, GPU), (200, HOST)], gpu=1000)
    bench.evict(0, HOST)
    bench.prefetch(1)
    assert bench.batch() == (0, 0, 50, 50)


def test_planned_evictions_make_room_in_the_same_batch():
    bench = Bench([(100, GPU), (100, HOST), (10, GPU)], gpu=110)
    bench.evict(0, HOST)
    bench.demand(1)
    assert bench.batch() == (0, 0, 50, 50)
    assert bench.memory.idle[2] == 10


def test_planned_evictions_go_to_flash_first_and_share_the_link():
    bench = Bench([(100, GPU), (100, GPU)], gpu=1000)
    bench.evict(0, HOST)
    bench.evict(1, FLASH)
    assert bench.batch() == (0, 10, 0, 40)


def test_planned_evictions_to_a_full_host_go_to_flash_at_its_rate():
    bench = Bench([(100, GPU)], gpu=1000, host=20)
    bench.evict(0, HOST)
    assert [bench.batch() for _ in range(3)] == [(0, 10, 0, 20), (0, 10, 0, 0), (0, 10, 0, 0)]


def test_page_that_comes_into_a_full_gpu_needs_room_on_the_way_out():
    bench = Bench([(100, GPU), (100, HOST), (100, GPU)], gpu=200)
    bench.evict(2, HOST)
    bench.demand(1)
    # The eviction takes the whole way out: only the room that it made is filled.
    assert bench.batch() == (0, 0, 50, 50)
    assert bench.memory.idle[0] == 100


def test_victims_go_to_the_host_by_default():
    bench = Bench([(200, GPU), (200, FLASH)], gpu=200)
    bench.demand(1)
    assert bench.batch() == (10, 0, 0, 10)


def test_victims_go_to_the_host_as_long_as_it_has_room():
    bench = Bench([(200, GPU), (20, NONE), (20, NONE)], gpu=200)
    bench.demand(1, 2)
    assert bench.batch() == (0, 0, 0, 40)


@pytest.mark.parametrize(("free", "expected"), [(0, (10, 10, 0, 0)), (1, (10, 10, 40, 40))])
def test_one_free_host_page_lets_five_times_as_much_move(free, expected):
    bench = Bench([(1000, GPU), (500, FLASH), (500, HOST)], gpu=1000, host=500 + free)
    bench.demand(1, 2)
    assert bench.batch() == expected


def test_with_a_full_host_swaps_with_it_still_fill_the_link():
    bench = Bench([(1000, GPU), (500, HOST)], gpu=1000, host=500)
    bench.demand(1)
    into_flash = bench.batch()
    assert into_flash == (0, 1, 50, 49)
    assert bench.batch() == (0, 0, 50, 50)


def test_host_that_fills_up_during_a_batch_sends_the_rest_to_flash():
    bench = Bench([(1000, GPU), (500, NONE)], gpu=1000, host=30)
    bench.demand(1)
    assert [bench.batch() for _ in range(2)] == [(0, 10, 0, 30), (0, 10, 0, 0)]


def test_worthless_victims_are_dropped_without_traffic():
    bench = Bench([(100, GPU), (100, HOST)], gpu=100, worthless={0})
    bench.demand(1)
    assert bench.batch() == (0, 0, 50, 0)
    assert bench.memory.absent[0] == 50


def test_flash_prefetch_without_a_victim_holds_up_the_host_queue():
    bench = Bench([(100, GPU), (50, FLASH), (50, HOST)], gpu=100)
    bench.protect(0)
    bench.prefetch(1)
    bench.prefetch(2)
    assert bench.batch() == (0, 0, 0, 0)


def test_prefetches_that_the_kernel_waits_for_become_demands_when_nothing_else_moves():
    bench = Bench([(100, GPU), (50, FLASH)], gpu=100)
    bench.protect(0)
    bench.prefetch(1)
    assert bench.batch() == (0, 0, 0, 0)
    bench.demand(1)
    assert bench.batch() == (10, 0, 0, 10)


def test_kernel_that_loses_its_own_pages_faults_them_again():
    bench = Bench([(100, GPU), (100, HOST)], gpu=100)
    bench.demand(0, 1)
    bench.batch()
    assert bench.memory.idle == [50, 50]
    assert [(run.tensor, run.count) for run in bench.memory.queues.fault[HOST]] == [(1, 50), (0, 50)]


def test_pages_that_fault_again_come_back_in_the_next_batch():
    bench = Bench([(1000, GPU), (1000, NONE)], gpu=1000)
    bench.demand(0, 1)
    # New pages push 50 of the kernel's own out, which come back before more are new.
    assert [bench.batch() for _ in range(2)] == [(0, 0, 0, 50), (0, 0, 50, 50)]


def test_pages_that_fault_again_are_not_passed_by_others():
    bench = Bench([(50, GPU), (950, GPU), (1000, NONE)], gpu=1000)
    bench.demand(0, 2)
    assert [bench.batch() for _ in range(3)] == [(0, 0, 0, 50), (0, 0, 50, 50), (0, 0, 0, 50)]


def test_nothing_is_foreseen_when_nothing_can_move():
    bench = Bench([(100, GPU), (10, FLASH)], gpu=100)
    assert bench.transfers.next_change() is None
    bench.protect(0)
    bench.prefetch(1)
    assert bench.transfers.next_change() == 0
    bench.batch()
    assert bench.transfers.next_change() is None


def test_equal_batches_are_jumped():
    bench = Bench([(50_000, HOST)])
    bench.demand(0)
    bench.transfers.advance(INTERVAL * 998)
    assert bench.memory.idle[0] == 50 * 999
    assert bench.transfers.events < 10
    assert bench.transfers.next_change() == INTERVAL * 999


def test_a_batch_that_uses_nothing_up_says_when_others_differ():
    bench = Bench([(50_000, HOST)])
    bench.demand(0)
    bench.batch()
    assert bench.transfers.next_change() == INTERVAL * 999


def test_equal_batches_are_jumped_where_host_memory_is_full():
    bench = Bench([(5000, GPU), (5000, FLASH)], gpu=5000, host=0)
    bench.demand(1)
    bench.transfers.advance(INTERVAL * 499)
    assert moved(bench.memory) == (5000, 5000, 0, 0)
    assert bench.transfers.events < 10


def test_a_tensor_larger_than_the_gpu_pushes_itself_out_batch_by_batch():
    bench = Bench([(200, HOST)], gpu=100)
    bench.demand(0)
    bench.transfers.advance(INTERVAL * 9)
    # Two batches fill the GPU; in each of the other eight 50 pages take the place of 50.
    assert moved(bench.memory) == (0, 0, 500, 400)


def test_batches_of_a_tensor_that_pushes_itself_out_are_jumped():
    bench = Bench([(5200, HOST)], gpu=5000)
    bench.demand(0)
    bench.transfers.advance(INTERVAL * 999)
    # As many of the 200 waiting pages come back to the queue as leave it, so that it is never used up.
    assert moved(bench.memory) == (0, 0, 50_000, 45_000)
    assert bench.transfers.events < 30


@pytest.mark.parametrize("worthless", [set(), {1, 4, 7}, set(range(40))])
def test_batches_that_bring_one_run_in_past_many_victims_are_jumped(worthless):
    bench = Bench([*[(60, GPU)] * 40, (2400, HOST)], gpu=2400, worthless=worthless)
    bench.demand(40)
    bench.transfers.advance(INTERVAL * 46)
    dropped = sum(bench.memory.absent)
    assert (bench.memory.idle[40], dropped) == (2350, sum(min(60, 2350 - 60 * i) for i in worthless))
    assert moved(bench.memory) == (0, 0, 2350, 2350 - dropped)
    assert bench.transfers.events == 2


@pytest.mark.parametrize(
    ("place", "host", "worthless", "quota"),
    [
        (HOST, 100_000, set(), 50),
        (FLASH, 100_000, {3, 4}, 10),
        (FLASH, 0, set(), 10),  # victims go to the SSD
        (FLASH, 0, set(range(30)), 10),
        (NONE, 0, set(range(30)), 100),
    ],
)
def test_batches_that_bring_many_runs_in_past_many_victims_are_jumped(place, host, worthless, quota):
    places = [*[(80, GPU)] * 30, *[(100, place)] * 24]
    bench = Bench(places, 2400, host, mapping="2 GB/s", worthless=worthless)
    bench.demand(*range(30, 54))
    batches = 2399 // quota  # the next may end the wait
    bench.transfers.advance(INTERVAL * (batches - 1))
    assert sum(bench.memory.idle[30:]) == batches * quota
    assert bench.transfers.events == 2


def test_a_jump_ends_with_the_run_that_the_kernel_waits_for():
    bench = Bench([(500, GPU), *[(100, HOST)] * 4], gpu=500)
    bench.memory.hold(frozenset({3}))
    for tensor in (1, 2, 3, 4):
        bench.prefetch(tensor)
    changes = {}
    while (change := bench.transfers.next_change()) is not None:
        bench.transfers.advance(change)
        changes[change] = bench.memory.moving[3]
    # Two batches a run: the sixth brings the last of the third.
    assert changes[5 * INTERVAL] == 0
    assert min(moving for change, moving in changes.items() if change < 5 * INTERVAL) > 0


def test_batches_that_bring_two_runs_in_are_jumped_until_one_has_come():
    bench = Bench([(40_000, HOST), (10_000, FLASH)])
    bench.prefetch(0)
    bench.prefetch(1)
    bench.transfers.advance(INTERVAL * 997)
    assert moved(bench.memory) == (9_980, 0, 39_920, 0)
    assert bench.transfers.events == 2
    assert bench.transfers.next_change() == INTERVAL * 999


def test_runs_that_are_jumped_together_interleave_in_the_eviction_order():
    bench = Bench([(40_000, HOST), (10_000, FLASH)])
    bench.prefetch(0)
    bench.prefetch(1)
    bench.transfers.advance(INTERVAL * 206)
    # Of 40 pages a batch 102 batches have 4,096 at most. The one that follows joins them.
    rounds = [1, 1030, 0, 4120] * 2
    assert list(bench.memory.order()) == [1, 10, 0, 40, *rounds]


def test_time_goes_on_while_a_kernel_waits_for_faults_from_one_place():
    bench = Bench([(25, FLASH), (100, HOST), (100, HOST)])
    bench.demand(0, 1, 2)
    # The third batch brings the last page from the SSD, the fourth the rest from host memory.
    assert bench.transfers.follow(10 * INTERVAL, skips=True) == 2 * INTERVAL
    assert bench.transfers.follow(10 * INTERVAL, skips=True) == 4 * INTERVAL
    assert moved(bench.memory) == (25, 0, 200, 0)


def test_time_goes_on_no_further_than_others_let_it():
    bench = Bench([(100, HOST)] * 4)
    bench.demand(0, 1, 2, 3)
    assert bench.transfers.follow(3 * INTERVAL, skips=True) == 3 * INTERVAL
    assert bench.transfers.follow(4 * INTERVAL - 1, skips=True) is None
    assert bench.transfers.follow(4 * INTERVAL, skips=False) == 4 * INTERVAL


def test_parts_of_a_jump_past_victims_are_told_batch_by_batch():
    bench = Bench([(60, GPU), (170, GPU), (500, GPU), (500, HOST)], gpu=730)
    bench.demand(3)
    bench.transfers.advance(INTERVAL * 5)
    told = [
        (tensor, start // INTERVAL + 1, end // INTERVAL, pages)
        for _, _, tensor, source, _, _, start, end, pages in bench.moves
        if source == GPU
    ]
    assert told == [
        (0, 0, 0, 50),
        (0, 1, 1, 10),
        (1, 1, 1, 40),
        (1, 2, 3, 100),
        (1, 4, 4, 30),
        (2, 4, 4, 20),
        (2, 5, 5, 50),
    ]
    assert bench.transfers.events == 2


def test_observer_hears_of_jumped_batches_too():
    bench = Bench([(1000, GPU), (2000, HOST), (100, GPU)], gpu=1100)
    bench.evict(2, FLASH)
    bench.demand(1)
    bench.transfers.advance(INTERVAL * 100)
    told = {}
    for _, _, tensor, source, target, cause, _, _, pages in bench.moves:
        key = tensor, source, target, cause
        told[key] = told.get(key, 0) + pages
    assert told[1, HOST, GPU, MigrationCause.PAGE_FAULT] == bench.memory.traffic.moved_in[HOST]
    assert told[2, GPU, FLASH, MigrationCause.PLANNED_EVICTION] == 100
    left = sum(pages for (_, source, _, _), pages in told.items() if source == GPU)
    assert left == bench.memory.traffic.moved_out[HOST] + bench.memory.traffic.moved_out[FLASH]


def state(bench):
    """Everything that later batches depend on, neighbours of one tensor joined."""
    memory = bench.memory
    queues = memory.queues
    waiting = [joined(queue) for queue in (*queues.fault, *queues.prefetch, *queues.evict)]
    order = joined(run for run in memory.recency._runs if run.count)
    counts = memory.pages, memory.moving
    rooms = memory.frames.free, bench.host.free, bench.flash.free, memory.peaks[0]
    return counts, rooms, memory.traffic.snapshot(), waiting, order, bench.transfers.busy_cycles(0)


def joined(runs):
    pairs = []
    for run in runs:
        if pairs and pairs[-1][0] == run.tensor:
            pairs[-1] = (run.tensor, pairs[-1][1] + run.count)
        else:
            pairs.append((run.tensor, run.count))
    return pairs


PLACES = st.lists(
    st.tuples(st.integers(1, 900), st.sampled_from([GPU, HOST, FLASH, NONE])), min_size=3, max_size=7
)
REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["demand", "prefetch", "evict host", "evict flash", "protect"]),
        st.sets(st.integers(0, 6), max_size=3),
        st.integers(0, 60 * INTERVAL),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.interpreted
@settings(max_examples=150, deadline=None)
@given(
    places=PLACES,
    requests=REQUESTS,
    spare=st.integers(0, 400),
    host_spare=st.one_of(st.integers(0, 60), st.integers(0, 3000)),
    worthless=st.sets(st.integers(0, 6), max_size=2),
)
def test_jumping_changes_nothing(places, requests, spare, host_spare, worthless):
    sizes = {place: sum(pages for pages, where in places if where == place) for place in (GPU, HOST)}
    largest = max(sizes[GPU], sum(sorted(pages for pages, _ in places)[-3:]))
    rooms = largest + spare, sizes[HOST] + host_spare
    benches = [Bench(places, *rooms, worthless=worthless, kind=kind) for kind in (BatchedTransfers, OneByOne)]
    now = 0
    for request, chosen, wait in requests:
        tensors = sorted(tensor for tensor in chosen if tensor < len(places))
        for bench in benches:
            if request == "demand":
                bench.demand(*tensors)
            elif request == "protect":
                bench.protect(*tensors)
            for tensor in tensors:
                if request == "prefetch":
                    bench.prefetch(tensor)
                elif request.startswith("evict"):
                    bench.evict(tensor, HOST if request == "evict host" else FLASH)
            bench.transfers.advance(now + wait)
        now += wait
        assert state(benches[0]) == state(benches[1])
    check_conservation(benches[0].memory, "test")


def test_a_batch_too_small_for_the_ssd_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"^compat\.batch_pages: found 10, .* allowed: 20 or more$"):
        BatchedTransfers(machine(write="0.05 GB/s"), GPG.model_copy(update={"batch_pages": 10}))


def test_many_batches_at_once_stop_where_host_memory_is_full():
    bench = Bench([(5000, GPU)], host=1020)
    bench.evict(0, HOST)
    bench.transfers.advance(20 * INTERVAL)
    # Of 21 batches, 20 take 50 pages to host memory; the last takes the 20 that fit, and 10 to flash.
    assert moved(bench.memory) == (0, 10, 0, 1020)
    bench.transfers.advance(30 * INTERVAL)
    assert moved(bench.memory) == (0, 110, 0, 1020)


def test_many_batches_at_once_stop_where_victims_fill_host_memory():
    bench = Bench([(2000, NONE), (5000, GPU)], gpu=5000, host=1020)
    bench.demand(0)
    bench.transfers.advance(30 * INTERVAL)
    # New pages push out 50 a batch as long as host memory has room, then 10 a batch to flash.
    assert moved(bench.memory) == (0, 110, 0, 1020)
    assert bench.memory.idle[0] == 1130


def test_many_batches_at_once_stop_where_evictions_find_too_little_host_memory():
    bench = Bench([(6000, GPU), (4500, HOST), (1100, FLASH)], host=5500)
    bench.evict(0, HOST)
    bench.demand(1, 2)
    bench.transfers.advance(99 * INTERVAL)
    # Each batch takes 50 pages to host memory, then 40 from there: of 1000 free pages, 40 are left after 96.
    # From then on 40 go to host memory and 10 to flash.
    assert moved(bench.memory) == (1000, 40, 4000, 4960)
