"""Fluid transfers: times by formula, who goes first, and what a full memory does."""

from itertools import groupby

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from machines import machine
from memories import FLASH, GPU, HOST, NONE, memory_of, moved

from g10sim.config.ssd import BounceSpec
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.changes import NextChange
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.records import MigrationCause, StallReason
from g10sim.sim.accounts.recorder import check_conservation


class OldestFirst:
    """Victims by age, those that are needed only if not ``pinned``; ``worthless`` tensors are dropped."""

    def __init__(self, worthless=(), *, asks_policy=False, pinned=True):
        self.worthless, self.asks_policy, self.pinned = worthless, asks_policy, pinned

    def choose(self, memory, demanded):
        if not demanded and memory.protected:
            return memory.recency.scan_outside(memory.protected)
        return memory.recency.oldest_outside(memory.needed if self.pinned else ())

    def upcoming(self, memory, demanded):
        if not demanded and memory.protected:
            return memory.recency.scan_ahead(memory.protected)
        return memory.recency.oldest_ahead(memory.needed if self.pinned else ())

    def spares(self, coming, tensor):
        return coming == tensor

    def is_worthless(self, tensor):
        return tensor in self.worthless

    def restart(self):
        pass


class Bench:
    """Transfers and the memory of one job per GPU; ``places`` gives each tensor (pages, place)."""

    def __init__(self, system, *jobs, worthless=(), pinned=True, is_watched=True):
        page = system.gpu.page_size
        door = Door()
        pools = [Pool(tier, page) for tier in system.all_tiers]
        self.host, self.flash = pools
        self.moves = []
        self.now = 0
        self.transfers = FluidTransfers(system, pools, self.see if is_watched else None, door=door)
        self.memories = []
        for gpu, places in enumerate(jobs):
            pages = [count for count, _ in places]
            memory = memory_of(pages, system.gpu.memory // page, pools, page, door)
            for tensor, (_, place) in enumerate(places):
                if place != NONE:
                    memory.place(tensor, place)
            memory.restart_peaks()
            self.memories.append(memory)
            self.victims = OldestFirst(worthless, pinned=pinned)
            self.transfers.attach(gpu, gpu, memory, self.victims)

    def see(self, moved, *rest):
        self.moves.append((*moved, *rest))

    @property
    def memory(self):
        return self.memories[0]

    def demand(self, *tensors, gpu=0):
        self.memories[gpu].hold(frozenset(tensors))
        for tensor in tensors:
            self.transfers.demand(gpu, tensor)
        self.transfers.changed()

    def prefetch(self, tensor, gpu=0):
        self.memories[gpu].request_prefetch(tensor)
        self.transfers.changed()

    def evict(self, tensor, target, gpu=0):
        self.memories[gpu].request_eviction(tensor, target)
        self.transfers.changed()

    def until(self, done):
        """Cycle of the change after which ``done`` holds."""
        while not done():
            time = self.transfers.next_change()
            assert time is not None, "nothing moves any more"
            self.transfers.advance(time)
            self.now = time
        return self.now

    def arrival(self, tensor, gpu=0):
        memory = self.memories[gpu]
        return self.until(lambda: memory.idle[tensor] == memory.sizes[tensor])

    def departure(self, tensor, gpu=0):
        memory = self.memories[gpu]
        return self.until(lambda: not memory.moving[tensor] and not memory.idle[tensor])


@given(pages=st.integers(1, 1000), place=st.sampled_from([HOST, FLASH, NONE]), rate=st.integers(1, 40))
def test_prefetch_takes_bytes_over_bandwidth_rounded_up(pages, place, rate):
    bandwidth = f"{rate / 10} GB/s"
    system = machine(2000, pcie=bandwidth, read=bandwidth, mapping=bandwidth)
    bench = Bench(system, [(pages, place)])
    bench.prefetch(0)
    assert bench.arrival(0) == -(-pages * 1000 * 10 // rate)


def test_what_leaves_for_a_tier_while_as_much_comes_from_it_is_no_peak():
    bench = Bench(machine(), [(4, GPU), (4, HOST)])
    bench.host.watch(0)
    bench.evict(0, HOST)
    bench.prefetch(1)
    assert bench.arrival(1) == bench.departure(0) == 4000
    assert (bench.host.used, bench.host.peak(0)) == (4, 4)


def test_flash_is_limited_by_the_ssd_and_host_by_the_link():
    for place, cycles in ((HOST, 7000), (FLASH, 14_000), (NONE, 3500)):
        bench = Bench(machine(mapping="2 GB/s"), [(7, place)])
        bench.prefetch(0)
        assert bench.arrival(0) == cycles


@pytest.mark.parametrize(
    ("place", "pages", "group", "cycles"),
    [
        (HOST, 10, 4, 3 * 1000 + 10 * 1000),
        (FLASH, 10, 4, 3 * (1000 + 2000) + 10 * 2000),
        (NONE, 10, 4, 3 * 1000 + 10 * 1000),
        (HOST, 1, 4, 1000 + 1000),
        (HOST, 8, 8, 1000 + 8000),
        (HOST, 9, 8, 2000 + 9000),
    ],
)
def test_demanded_pages_wait_once_per_group(place, pages, group, cycles):
    bench = Bench(machine(group_pages=group), [(pages, place)])
    bench.demand(0)
    assert bench.arrival(0) == pytest.approx(cycles, abs=1)


def test_demanded_tensors_of_one_place_come_one_after_the_other():
    bench = Bench(machine(), [(3, HOST), (2, HOST)])
    bench.demand(0, 1)
    assert bench.arrival(0) == 6000
    assert bench.arrival(1) == 10_000


def test_demanded_pages_of_different_places_come_together():
    bench = Bench(machine(), [(5, HOST), (2, FLASH), (3, NONE)])
    bench.demand(0, 1, 2)
    # Page times 2000, 5000 and 2000: rates 0.5 + 0.2 fit the link, and mapping is a link of its own.
    assert bench.arrival(2) == 6000
    assert bench.arrival(0) == 10_000
    assert bench.arrival(1) == 10_000


def test_demands_of_equal_rank_share_the_link_evenly():
    bench = Bench(machine(fault="0 us", flash_latency="0 us", read="1 GB/s"), [(10, HOST), (4, FLASH)])
    bench.demand(0, 1)
    assert bench.arrival(1) == 8000
    assert bench.arrival(0) == 14_000
    assert bench.transfers.events == 2


def test_demand_goes_before_prefetch():
    bench = Bench(machine(fault="0 us"), [(10, HOST), (2, FLASH)])
    bench.prefetch(1)
    bench.demand(0)
    assert bench.arrival(0) == 10_000
    assert bench.memory.idle[1] == 0
    assert bench.arrival(1) == 14_000


def test_prefetch_uses_what_demand_leaves():
    bench = Bench(machine(), [(10, HOST), (2, FLASH)])
    bench.prefetch(1)
    bench.demand(0)
    assert bench.arrival(1) == 4000
    assert bench.arrival(0) == 20_000


def test_needed_prefetch_is_as_urgent_as_a_demand():
    bench = Bench(machine(fault="0 us"), [(4, FLASH), (4, HOST)])
    bench.prefetch(0)
    bench.demand(0, 1)
    # Half the link each.
    assert bench.arrival(0) == 8000
    assert bench.arrival(1) == 8000


def test_demand_pushes_out_before_planned_eviction():
    # The swap's victims take the whole way out, so the planned eviction has to wait for them.
    bench = Bench(machine(8, fault="0 us"), [(4, GPU), (4, GPU), (4, HOST)])
    bench.evict(1, HOST)
    bench.demand(2)
    assert bench.arrival(2) == 4000
    assert bench.memory.pages[HOST][1] == 0
    assert bench.departure(1) == 8000


def test_planned_eviction_goes_before_prefetch():
    # On a full GPU the prefetch takes the room that the eviction makes, and pushes out nothing else.
    bench = Bench(machine(8), [(4, GPU), (4, GPU), (4, HOST)])
    bench.evict(1, HOST)
    bench.prefetch(2)
    assert bench.departure(1) == 4000
    assert bench.arrival(2) in range(4000, 8001)
    assert bench.memory.idle[0] == 4


def test_prefetch_follows_a_planned_eviction_page_by_page():
    bench = Bench(machine(8), [(4, GPU), (4, GPU), (4, HOST)])
    bench.evict(1, HOST)
    bench.prefetch(2)
    # Like a victim and the page that takes its place, both cross the link at the same time.
    assert bench.arrival(2) == 4000


def test_full_ssd_lets_pages_change_places():
    # Eight pages come from flash, and make room there for the four that leave.
    bench = Bench(machine(12, 0, flash_pages=8, write="0.5 GB/s"), [(4, GPU), (8, FLASH)])
    bench.prefetch(1)
    bench.evict(0, FLASH)
    assert bench.arrival(1) == 16_000
    # Room on the SSD is looked for again at the next change: when all pages have come.
    assert bench.departure(0) == 24_000


def test_needed_pages_do_not_push_each_other_out_while_an_eviction_makes_room():
    bench = Bench(machine(5, 0, fault="0 us", flash_latency="0 us"), [(4, GPU), (1, GPU), (1, FLASH)])
    bench.victims.choose = lambda memory, demanded: memory.recency.oldest()
    bench.evict(1, FLASH)
    bench.demand(0, 2)
    assert bench.arrival(2) == 4000 + 2000
    assert bench.memory.traffic.moved_out[FLASH] == 1


def test_swap_runs_at_the_slower_direction():
    to_flash = Bench(machine(4, 0), [(4, GPU), (2, FLASH)])
    to_flash.demand(1)
    assert to_flash.arrival(1) == pytest.approx(10_000, abs=1)
    slow_write = Bench(machine(4, 0, write="0.1 GB/s"), [(4, GPU), (2, FLASH)])
    slow_write.demand(1)
    assert slow_write.arrival(1) == 20_000
    assert slow_write.transfers.busy_cycles(0) == 20_000


def test_swap_with_a_full_host_memory_uses_the_room_that_the_incoming_page_leaves():
    bench = Bench(machine(4, 2, fault="0 us"), [(4, GPU), (2, HOST)])
    assert bench.host.free == 0
    bench.demand(1)
    assert bench.arrival(1) == 2000
    assert (bench.memory.pages[HOST][0], bench.memory.pages[FLASH][0]) == (2, 0)


def test_dropped_victims_use_no_link():
    bench = Bench(machine(4, 0, write="0.001 GB/s"), [(4, GPU), (4, FLASH)], worthless={0})
    bench.prefetch(1)
    assert bench.arrival(1) == 8000
    assert bench.memory.absent[0] == 4
    assert moved(bench.memory) == (4, 0, 0, 0)
    assert bench.memory.traffic.faults == 0


def test_eviction_goes_to_flash_from_the_moment_the_host_is_full():
    bench = Bench(machine(10, 4), [(10, GPU)])
    bench.evict(0, HOST)
    assert bench.departure(0) == 4 * 1000 + 6 * 4000
    assert (bench.memory.pages[HOST][0], bench.memory.pages[FLASH][0]) == (4, 6)


def test_pages_wait_for_room_on_a_full_ssd():
    bench = Bench(machine(10, 0, flash_pages=3), [(10, GPU)])
    bench.evict(0, FLASH)
    with pytest.raises(AssertionError, match="nothing moves any more"):
        bench.departure(0)
    assert (bench.memory.pages[FLASH][0], bench.memory.moving[0]) == (3, 7)


def test_part_of_a_page_is_not_lost_when_something_else_changes():
    bench = Bench(machine(), [(2, HOST), (1, NONE)])
    bench.prefetch(0)
    bench.transfers.advance(1700)
    assert bench.memory.idle[0] == 1
    bench.prefetch(1)
    assert bench.arrival(0) == 2000


def test_before_anything_is_asked_for_nothing_changes():
    system = machine()
    pools = [Pool(tier, system.gpu.page_size) for tier in system.all_tiers]
    assert FluidTransfers(system, pools, door=Door()).next_change() is None


def test_time_before_a_request_does_not_count():
    bench = Bench(machine(), [(2, HOST)])
    bench.transfers.advance(12_345)
    bench.prefetch(0)
    assert bench.arrival(0) == 14_345


@pytest.mark.parametrize(("uplink", "times"), [("1 GB/s", [16_000, 16_000]), ("2 GB/s", [8000, 8000])])
def test_gpus_share_an_uplink(uplink, times):
    system = machine(gpus=2, shared=[("uplink", (0, 1), uplink)])
    bench = Bench(system, [(8, HOST)], [(8, HOST)])
    bench.prefetch(0, gpu=0)
    bench.prefetch(0, gpu=1)
    assert [bench.arrival(0, gpu=gpu) for gpu in (0, 1)] == times


def test_gpu_on_the_uplink_alone_has_it_all():
    system = machine(gpus=2, shared=[("uplink", (0, 1), "1 GB/s")])
    bench = Bench(system, [(8, HOST)], [(2, HOST)])
    bench.prefetch(0, gpu=0)
    bench.prefetch(0, gpu=1)
    assert bench.arrival(0, gpu=1) == 4000
    assert bench.arrival(0, gpu=0) == 10_000


def test_flash_bandwidth_is_shared_across_own_links():
    bench = Bench(machine(gpus=2), [(4, FLASH)], [(4, FLASH)])
    bench.prefetch(0, gpu=0)
    bench.prefetch(0, gpu=1)
    assert bench.arrival(0, gpu=0) == 16_000


def test_bottleneck_names_eviction_and_contention():
    swap = Bench(machine(4, 0, write="0.1 GB/s"), [(4, GPU), (2, FLASH)])
    swap.demand(1)
    assert swap.transfers.bottleneck(0) is StallReason.EVICTION
    alone = Bench(machine(), [(4, HOST)])
    alone.demand(0)
    assert alone.transfers.bottleneck(0) is None
    crowd = Bench(machine(gpus=2, fault="0 us", shared=[("u", (0, 1), "1 GB/s")]), [(4, HOST)], [(4, HOST)])
    crowd.demand(0, gpu=0)
    crowd.demand(0, gpu=1)
    assert crowd.transfers.bottleneck(0) is StallReason.LINK_CONTENTION
    all_of_it = Bench(machine(gpus=2, pcie="2 GB/s", shared=[("u", (0, 1), "1 GB/s")]), [(4, HOST)], [])
    all_of_it.memory.hold(frozenset({0}))
    all_of_it.prefetch(0)
    assert all_of_it.transfers.bottleneck(0) is None


def test_a_neighbour_without_a_link_in_common_is_no_contention():
    system = machine(gpus=2, fault="0 us", flash_latency="0 us", read="1 GB/s")
    both = Bench(system, [(4, HOST), (4, FLASH)], [(4, HOST)])
    both.demand(0, 1)
    # Host and SSD share the link of the GPU, and nobody else does.
    assert both.transfers.bottleneck(0) is None


@pytest.mark.parametrize(("service", "gone", "here"), [("fair", 8000, 8000), ("first_come", 4000, 8000)])
def test_both_directions_share_evenly_what_limits_them_unless_one_comes_first(service, gone, here):
    system = machine(duplex="1 GB/s")
    system = system.model_copy(update={"pcie": system.pcie.model_copy(update={"service": service})})
    bench = Bench(system, [(4, GPU), (4, HOST)])
    bench.evict(0, HOST)
    bench.prefetch(1)
    assert (bench.departure(0), bench.arrival(1)) == (gone, here)


def test_gpus_contend_for_a_buffer_in_host_memory():
    system = machine(gpus=2, fault="0 us", flash_latency="0 us", read="2 GB/s")
    bounced = {"path": "host", "bounce": BounceSpec(bandwidth="1 GB/s", latency="0 us")}
    both = Bench(
        system.model_copy(update={"ssd": system.ssd.model_copy(update=bounced)}), *[[(4, FLASH)]] * 2
    )
    for gpu in (0, 1):
        both.demand(0, gpu=gpu)
    assert both.transfers.bottleneck(0) == StallReason.LINK_CONTENTION
    assert both.arrival(0) == 8000


def test_a_message_of_no_bytes_is_there_at_once():
    bench = Bench(machine(), [(4, GPU)])
    message = bench.transfers.send(bench.transfers.topology.outward(0, HOST), 0)
    assert message.is_done
    assert bench.transfers.next_change() is None


def test_in_order_of_deadlines_what_leaves_goes_before_messages_that_are_sent_later():
    system = machine(gpus=4)
    system = system.model_copy(update={"pcie": system.pcie.model_copy(update={"service": "deadline"})})
    bench = Bench(system, [(4, GPU)])
    bench.transfers.advance(600)
    bench.evict(0, HOST)
    bench.transfers.advance(1000)
    message = bench.transfers.send(bench.transfers.topology.outward(0, HOST), 1000)
    assert bench.departure(0) == 4600
    assert bench.until(lambda: message.is_done) == 5600


def test_observer_hears_of_every_page_and_why():
    bench = Bench(machine(4, 10), [(4, GPU), (2, FLASH), (1, NONE)])
    bench.demand(1)
    bench.arrival(1)
    bench.memory.hold(frozenset())
    bench.evict(0, FLASH)
    bench.until(lambda: not bench.memory.queues.busy)
    bench.prefetch(2)
    bench.arrival(2)
    told = {}
    for _, gpu, tensor, source, target, cause, start, end, pages in bench.moves:
        assert gpu == 0
        assert start < end
        key = tensor, source, target, cause
        told[key] = told.get(key, 0) + pages
    assert told == {
        (1, FLASH, GPU, MigrationCause.PAGE_FAULT): 2,
        (0, GPU, HOST, MigrationCause.MAKING_ROOM): 2,
        (0, GPU, FLASH, MigrationCause.PLANNED_EVICTION): 2,
        (2, NONE, GPU, MigrationCause.PREFETCH): 1,
    }


def test_link_is_busy_while_pages_cross_it_and_not_while_they_are_mapped():
    bench = Bench(machine(), [(3, HOST), (9, NONE)])
    bench.prefetch(0)
    bench.prefetch(1)
    assert bench.arrival(1) == 9000
    assert bench.transfers.busy_cycles(0) == 3000


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["demand", "prefetch", "evict host", "evict flash", "wait"]),
        st.integers(0, 5),
        st.integers(1, 20_000),
    ),
    max_size=25,
)
PLACES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([NONE, HOST, FLASH])), min_size=6, max_size=6)


@given(places=PLACES, requests=REQUESTS, host_pages=st.integers(0, 60))
def test_pages_are_conserved_and_no_memory_overflows(places, requests, host_pages):
    placed = [(pages, FLASH if place == HOST and host_pages < 54 else place) for pages, place in places]
    bench = Bench(machine(20, host_pages), placed)
    memory, now = bench.memory, 0
    for request, tensor, wait in requests:
        if request == "demand":
            bench.demand(tensor)
        elif request == "prefetch":
            bench.prefetch(tensor)
        elif request != "wait" and tensor not in memory.needed:
            bench.evict(tensor, HOST if request == "evict host" else FLASH)
        now += wait
        bench.transfers.advance(now)
        check_conservation(memory, "test")
        assert 0 <= memory.frames.free <= 20
        assert bench.host.free >= 0
        in_host = sum(memory.pages[HOST]) + sum(
            run.count for queue in (memory.queues.fault[HOST], memory.queues.prefetch[HOST]) for run in queue
        )
        assert bench.host.used == in_host


def ended(transfers, memory, stops, now=0):
    """Let all transfers end, looking at some cycles; return what was where when, and events."""
    transfers.changed()
    seen = []
    for stop in stops:
        now = max(now, stop)
        transfers.advance(now)
        seen.append([places.copy() for places in memory.pages])
    while memory.queues.busy and (change := transfers.next_change()) is not None:
        now = change
        transfers.advance(now)
    runs = groupby((run for run in memory.recency._runs if run.count), lambda run: run.tensor)
    order = [(tensor, sum(run.count for run in same)) for tensor, same in runs]
    rooms = [memory.frames.free, *(pool.free for pool in memory.pools.values())]
    return (now, memory.pages, rooms, memory.traffic, transfers.busy_cycles(0), order, seen), transfers.events


def exchanged(system, pages, target, source, room, stops, beside=FLASH, pauses=(0, 0, 0)):
    """Evict tensors 0 and 2 while 1 and 3 come into what room there is; return what is where when.

    There are pauses between what is asked for.
    """
    door, page = Door(), system.gpu.page_size
    pools = [Pool(tier, page) for tier in system.all_tiers]
    memory = memory_of(pages, pages[0] + pages[2] + room, pools, page, door)
    transfers = FluidTransfers(system, pools, door=door)
    for tensor, place in ((0, GPU), (1, source), (2, GPU), (3, beside)):
        if place != NONE:
            memory.place(tensor, place)
    transfers.attach(0, 0, memory, OldestFirst())
    memory.recency.merge_pages = 12  # as many as fit in a 64th of a memory of some size
    now = 0
    for pause, ask, *what in (
        (0, memory.request_eviction, 0, target),
        (pauses[0], memory.request_eviction, 2, FLASH),
        (pauses[1], memory.request_prefetch, 1),
        (pauses[2], memory.request_prefetch, 3),
    ):
        now += pause
        transfers.advance(now)
        ask(*what)
        transfers.changed()
    return ended(transfers, memory, stops, now)


def exchanged_page_by_page(*case):
    """Do the same, but stop where a page needs room, even where others have always made it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NextChange, "_refilled_rooms", lambda *_: ())
        return exchanged(*case)


@pytest.mark.interpreted
def test_pages_that_leave_as_fast_as_others_come_are_jumped_together():
    """400 pages leave, and 300 come into the one that is free and those: at 1000 cycles a page each way."""
    case = machine(2000), (400, 300, 0, 0), HOST, HOST, 1, ()
    jumped, events = exchanged(*case)
    one_by_one, many = exchanged_page_by_page(*case)
    assert jumped == one_by_one
    assert jumped[0] == 400_000
    assert events < 6 < 300 <= many


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("leaving", "coming", "room", "pauses"),
    [
        # Two copies each way share the link, 2000 cycles a page.
        ((400, 400), (300, 300), 0, (500, 500, 500)),
        # One leaves, 1000 cycles a page, and two come, or the other way round.
        ((700, 0), (300, 300), 0, (0, 800, 500)),
        ((300, 300), (500, 0), 1, (700, 0, 0)),
    ],
)
def test_several_copies_each_way_are_jumped_whatever_parts_of_pages_have_moved(leaving, coming, room, pauses):
    pages = leaving[0], coming[0], leaving[1], coming[1]
    case = machine(2000, read="1 GB/s", write="1 GB/s"), pages, HOST, HOST, room, (), FLASH, pauses
    (jumped, events), (one_by_one, many) = exchanged(*case), exchanged_page_by_page(*case)
    assert jumped[:5] == one_by_one[:5]
    assert jumped[0] == sum(leaving) * 1000
    assert events <= 30 < 250 <= many


@pytest.mark.interpreted
def test_pages_that_come_from_a_full_tier_make_room_for_others_without_a_stop():
    """300 pages leave for the one free page of host memory while 300 of 400 come from there; then 100."""
    case = machine(2000, 401), (300, 400, 0, 0), HOST, HOST, 500, ()
    jumped, events = exchanged(*case)
    one_by_one, many = exchanged_page_by_page(*case)
    assert jumped == one_by_one
    assert jumped[0] == 400_000
    assert events < 6 < 300 <= many


# Time stops while a page that leaves has filled host memory, just as one that comes makes room there.
@example(
    pages=(3, 3, 0, 0),
    target=HOST,
    source=HOST,
    beside=HOST,
    rates=("0.5 GB/s", "1.3 GB/s", "1.3 GB/s", "0.5 GB/s"),
    spare=1,
    room=1,
    stops=[771],
    pauses=(0, 1, 0),
)
@pytest.mark.interpreted
@given(
    pages=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 40), st.integers(0, 40)),
    target=st.sampled_from([HOST, FLASH]),
    source=st.sampled_from([HOST, FLASH, NONE]),
    beside=st.sampled_from([HOST, FLASH, NONE]),
    rates=st.tuples(*[st.sampled_from(["0.5 GB/s", "0.7 GB/s", "1 GB/s", "1.3 GB/s"])] * 4),
    spare=st.sampled_from([1, 2, 5, 20, 1000]),
    room=st.sampled_from([0, 1, 2, 4, 20, 50]),
    stops=st.lists(st.integers(1, 60_000), max_size=3).map(sorted),
    pauses=st.one_of(st.just((0, 0, 0)), st.tuples(*[st.integers(0, 3000)] * 3)),
)
def test_jumped_exchanges_are_those_page_by_page(
    pages, target, source, beside, rates, spare, room, stops, pauses
):
    read, write, pcie, mapping = rates
    # What comes at once takes turns in the eviction order as often as it is looked at: nothing is pushed out.
    assume(not pages[3] or pages[1] + pages[3] <= room + pages[0] + pages[2])
    host = spare + (pages[1] if source == HOST else 0) + (pages[3] if beside == HOST else 0)
    system = machine(200, host, read=read, write=write, pcie=pcie, mapping=mapping)
    case = system, pages, target, source, room, stops, beside, pauses
    (jumped, fewer), (one_by_one, many) = exchanged(*case), exchanged_page_by_page(*case)
    if pages[3]:
        jumped, one_by_one = (outcome[:5] + outcome[6:] for outcome in (jumped, one_by_one))
    assert jumped == one_by_one
    assert fewer <= many or pages[3]


def test_a_job_has_news_when_its_own_flows_or_rates_change():
    for shared in ([], [("uplink", (0, 1), "1 GB/s")]):
        bench = Bench(machine(gpus=2, shared=shared), [(7, HOST), (7, HOST)], [(7, HOST)])
        transfers = bench.transfers
        bench.prefetch(0, gpu=0)
        transfers.next_change()
        assert transfers.news({0, 1}) == {0, 1}
        assert not transfers.news({0, 1})
        bench.memories[1].request_prefetch(0)
        transfers.changed({1}, others=False)
        assert transfers.news({0, 1}) == ({0, 1} if shared else {1})


# Time stops where a victim is used up already, and the rest of a page is on its way.
@example(
    residents=[1, 1, 1],
    comers=[(10, NONE)],
    requests=[("prefetch", {0}, 2), ("prefetch", {4}, 3_000_000), ("demand", {0}, 3_000_000)],
    rates=("0.5 GB/s", "0.5 GB/s", "0.5 GB/s"),
    mapping="10 TB/s",
    rooms=(1, 1000),
    worthless=set(),
    pinned=False,
    wait=None,
)
@settings(max_examples=500, deadline=None)
@given(
    residents=st.lists(st.integers(1, 12), min_size=3, max_size=8),
    comers=st.lists(
        st.tuples(st.integers(10, 70), st.sampled_from([HOST, FLASH, NONE])), min_size=1, max_size=3
    ),
    requests=st.lists(
        st.tuples(
            st.sampled_from(["demand", "demand", "prefetch", "prefetch", "evict", "protect"]),
            st.sets(st.integers(0, 10), min_size=1, max_size=2),
            st.one_of(st.integers(0, 400_000), st.just(3_000_000)),
        ),
        min_size=1,
        max_size=8,
    ),
    rates=st.tuples(*[st.sampled_from(["0.5 GB/s", "0.7 GB/s", "1 GB/s"])] * 3),
    mapping=st.sampled_from(["1 GB/s", "10 TB/s"]),
    rooms=st.tuples(st.integers(0, 6), st.one_of(st.integers(0, 30), st.just(1000))),
    worthless=st.sets(st.integers(0, 10), max_size=3),
    pinned=st.booleans(),
    wait=st.sampled_from([None, None, 50_000_000]),
)
def test_what_nobody_watches_moves_alike(
    residents, comers, requests, rates, mapping, rooms, worthless, pinned, wait
):
    """Several victims may leave in one step where nobody hears of each."""
    places = [*comers, *((pages, GPU) for pages in residents)]
    gpu, host = sum(residents) + rooms[0], sum(pages for pages, place in comers if place == HOST) + rooms[1]
    read, write, pcie = rates
    system = machine(gpu, host, read=read, write=write, pcie=pcie, mapping=mapping)
    system = system.model_copy(update={"pcie": system.pcie.model_copy(update={"per_copy": wait})})
    rule = {"worthless": worthless, "pinned": pinned}
    benches = [Bench(system, places, is_watched=is_watched, **rule) for is_watched in (True, False)]
    now = 0
    for request, chosen, pause in requests:
        tensors = sorted(tensor for tensor in chosen if tensor < len(places))
        now += pause
        for bench in benches:
            if request == "demand":
                bench.demand(*tensors)
            elif request == "protect":
                bench.memory.protect(frozenset(tensors))
                bench.transfers.changed((0,))
            for tensor in tensors:
                if request == "prefetch":
                    bench.prefetch(tensor)
                elif request == "evict":
                    bench.evict(tensor, HOST if tensor % 2 else FLASH)
            bench.transfers.advance(now)
        assert outcome(benches[0]) == outcome(benches[1])


def outcome(bench):
    """All that later moves depend on, and what happened so far."""
    memory, transfers = bench.memory, bench.transfers
    counts = memory.pages, memory.moving, memory.frames.free, bench.host.free, bench.flash.free
    after = transfers.next_change(), transfers.state(0), memory.state(transfers.next_change() or 0)
    done = memory.traffic.snapshot(), transfers.busy_cycles(0), transfers.events
    return counts, memory.order(), memory.peaks, after, done
