"""Places of pages: every page of every tensor in exactly one place, whatever happens to it."""

import memories
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memories import FLASH, GPU, HOST, NONE, flash_pool, host_pool

from g10sim.config.tiers import Tier
from g10sim.errors import CapacityError, InvariantError
from g10sim.hardware.memory import Departure
from g10sim.hardware.pools import Pool
from g10sim.hardware.runs import Run
from g10sim.records import Location
from g10sim.sim.accounts.recorder import check_conservation

PAGES = (5, 3, 8, 1)


def memory_of(pages=PAGES, gpu=20, host=100, flash=100):
    return memories.memory_of(pages, gpu, [host_pool(host), flash_pool(flash)])


def where(memory, tensor):
    """(absent, host, flash, on the GPU, in transfer) pages of a tensor."""
    counts = memory.absent, memory.pages[HOST], memory.pages[FLASH], memory.idle, memory.moving
    return tuple(count[tensor] for count in counts)


def test_pool_refuses_more_than_it_holds_and_stays_as_it_was():
    pool = host_pool(10)
    pool.watch(0)
    pool.take(7)
    with pytest.raises(CapacityError) as error:
        pool.take(4)
    assert str(error.value) == "host memory is full: its 40 KiB cannot hold another 16 KiB of evicted tensors"
    assert (pool.free, pool.used, pool.peak(0)) == (3, 7, 7)


def test_every_observer_gets_the_peak_since_it_began_to_watch():
    pool = host_pool(10)
    pool.watch(0)
    pool.take(8)
    pool.free += 5
    pool.watch(1)
    pool.take(2)
    assert (pool.peak(0), pool.peak(1)) == (8, 5)


def test_pages_cannot_be_read_or_compressed_while_they_leave():
    memory = memory_of()
    for way in ({"until": 3}, {"density": 0.5}):
        with pytest.raises(InvariantError, match="tensor 0: pages that leave cannot be read"):
            memory.request_eviction(0, HOST, Departure(**way))


def test_tensors_without_contents_are_nowhere():
    memory = memory_of()
    assert where(memory, 2) == (8, 0, 0, 0, 0)
    assert memory.frames.free == 20


@pytest.mark.parametrize(
    ("place", "expected", "gpu_used", "host_used", "flash_used"),
    [
        (GPU, (0, 0, 0, 5, 0), 5, 0, 0),
        (HOST, (0, 5, 0, 0, 0), 0, 5, 0),
        (FLASH, (0, 0, 5, 0, 0), 0, 0, 5),
    ],
)
def test_placing_fills_the_place(place, expected, gpu_used, host_used, flash_used):
    memory = memory_of()
    memory.place(0, place)
    assert where(memory, 0) == expected
    used = memory.used_pages, memory.pools[HOST].used, memory.pools[FLASH].used
    assert used == (gpu_used, host_used, flash_used)


def test_placing_more_than_the_ssd_holds_is_refused():
    with pytest.raises(CapacityError, match="the SSD is full"):
        memory_of(flash=4).place(0, FLASH)


def test_demand_queues_only_what_is_neither_here_nor_in_transfer():
    memory = memory_of()
    memory.place(0, HOST)
    memory.request_prefetch(0)
    memory.demand(0)
    assert not memory.queues.faulting
    memory.place(1, GPU)
    memory.demand(1)
    assert not memory.queues.faulting
    memory.demand(2)
    assert [run.count for run in memory.queues.fault[NONE]] == [8]
    assert where(memory, 2) == (0, 0, 0, 0, 8)
    check_conservation(memory, "test")


def test_eviction_queue_takes_pages_out_of_the_eviction_order():
    memory = memory_of()
    memory.place(0, GPU)
    memory.request_eviction(0, FLASH)
    assert memory.recency.oldest() is None
    assert memory.used_pages == 5
    memory.cancel_eviction(0)
    assert memory.recency.oldest().count == 5
    assert where(memory, 0) == (0, 0, 0, 5, 0)
    check_conservation(memory, "test")


def test_cancelled_pages_stay_where_they_lie():
    memory = memory_of()
    memory.place(0, HOST)
    memory.place(1, FLASH)
    for tensor in range(3):
        memory.request_prefetch(tensor)
    for tensor in range(3):
        memory.cancel(tensor)
    assert [where(memory, tensor) for tensor in range(3)] == [
        (0, 5, 0, 0, 0),
        (0, 0, 3, 0, 0),
        (8, 0, 0, 0, 0),
    ]
    assert not memory.queues.busy


def test_cancelling_keeps_the_order_of_the_others():
    memory = memory_of()
    for tensor in range(4):
        memory.request_prefetch(tensor)
    memory.cancel(1)
    assert [run.tensor for run in memory.queues.prefetch[NONE]] == [0, 2, 3]


def test_discarding_gives_room_back_but_leaves_transfers_alone():
    memory = memory_of()
    memory.place(0, GPU)
    memory.place(1, HOST)
    memory.place(2, FLASH)
    memory.request_prefetch(2)
    for tensor in range(3):
        memory.discard(tensor)
    assert [where(memory, tensor)[0] for tensor in range(3)] == [5, 3, 0]
    pools = memory.pools
    assert (memory.frames.free, pools[HOST].free, pools[FLASH].used) == (20, 100, 8)
    check_conservation(memory, "test")


def test_touch_makes_the_most_recent():
    memory = memory_of()
    memory.place(0, GPU)
    memory.place(1, GPU)
    memory.touch(0)
    assert memory.recency.oldest().tensor == 1


def test_pages_that_the_running_kernel_loses_fault_again():
    memory = memory_of()
    memory.place(0, GPU)
    memory.hold(frozenset({0}))
    memory.demand(1)
    arriving, leaving = memory.queues.fault[NONE], memory.recency.oldest()
    for _ in range(2):
        memory.commit(arriving, arriving[0], 1, NONE, HOST, leaving)
    assert [(run.tensor, run.count) for run in memory.queues.fault[HOST]] == [(0, 2)]
    check_conservation(memory, "test")


def lose(memory):
    memory.absent[2] -= 1


def owe(memory):
    memory.absent[2] += 1
    memory.pages[HOST][2] -= 1


def queue_nothing(memory):
    memory.queues.fault[NONE].append(Run(1, 0))


def forget_queues(memory):
    memory.queues.fault[NONE].clear()


def forget_order(memory):
    memory.recency.remove(0)


def take_back(memory):
    memory.take(-1)


def empty_host(memory):
    memory.pools[HOST].free += 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lose, "tensor 2 has 7 of 8 pages"),
        (owe, "tensor 2 has a negative count"),
        (queue_nothing, "empty run to fault"),
        (forget_queues, "tensor 1 is queued wrongly"),
        (forget_order, "tensor 0 is ordered wrongly"),
        (take_back, "5 pages on the GPU, 4 counted"),
        (empty_host, "0 pages in host memory, -1 counted"),
    ],
)
def test_conservation_check_finds_a_page_out_of_place(change, problem):
    memory = memory_of()
    memory.place(0, GPU)
    memory.demand(1)
    check_conservation(memory, "test")
    change(memory)
    with pytest.raises(InvariantError, match=f"^test: {problem}$"):
        check_conservation(memory, "test")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["demand", "prefetch", "evict", "cancel", "discard", "touch"]),
        st.integers(0, len(PAGES) - 1),
        st.sampled_from([HOST, FLASH]),
    ),
    max_size=40,
)


@given(STEPS)
def test_requests_conserve_pages(steps):
    memory = memory_of()
    memory.place(0, GPU)
    memory.place(1, HOST)
    memory.place(2, FLASH)
    for step, tensor, target in steps:
        if step == "demand":
            memory.demand(tensor)
        elif step == "prefetch":
            memory.request_prefetch(tensor)
        elif step == "evict":
            memory.request_eviction(tensor, target)
        elif step == "cancel":
            memory.cancel(tensor)
        elif step == "discard":
            memory.discard(tensor)
        else:
            memory.touch(tensor)
        check_conservation(memory, "test")
        pages = sum(memory.pages[HOST]) + sum(run.count for run in memory.queues.fault[HOST])
        assert memory.pools[HOST].used == pages + sum(run.count for run in memory.queues.prefetch[HOST])


def test_what_is_passed_on_comes_to_the_last_of_many_tiers():
    slow = Location(4, "SLOW")
    pools = [host_pool(10), flash_pool(10), Pool(Tier(slow, "slow", "memory", 10 * 4096), 4096)]
    memory = memories.memory_of([5, 2], 5, pools)
    memory.place(0, HOST)
    memory.place(1, FLASH)
    memory.pass_on(0)
    memory.pass_on(1)
    assert [memory.pages[place][0] for place in (HOST, FLASH, slow)] == [0, 0, 5]
    assert [memory.pages[place][1] for place in (HOST, FLASH, slow)] == [0, 0, 2]
    assert [pool.free for pool in pools] == [10, 10, 3]
