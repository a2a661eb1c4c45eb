"""One clock, one door: moments of a cycle, blocks that change memory, and kernels whose pace changes."""

from fractions import Fraction

import pytest
from machines import GPG10, machine, simulate, trace_of
from memories import FLASH, GPU, HOST, memory_of
from scripted import Scripted

from g10sim.config.sharing import SharingSpec
from g10sim.errors import CapacityError, G10SimError, InvariantError, UnsupportedError
from g10sim.hardware.pools import Door, Pool
from g10sim.hardware.transfers.batched import BatchedTransfers
from g10sim.hardware.transfers.fluid import FluidTransfers
from g10sim.policies.interface.moves import Evict
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.sim.fabric import Clock, Fabric, Moment, Timer
from g10sim.sim.stages.compute import make_compute

CLOSED = "memory was changed outside Fabric.alter"
STALE = "links were not shared anew after memory had changed"


def scripted(*changes):
    return Fabric(Clock(), Scripted(*changes), Door(is_open=False))


class OldestFirst:
    """Victims by age."""

    asks_policy = False

    def choose(self, memory, demanded):
        return memory.recency.oldest_outside(memory.needed)

    def spares(self, coming, tensor):
        return coming == tensor

    def is_worthless(self, tensor):
        return False

    def restart(self):
        pass


class Bench:
    """The tiny machine with a job that has four pages in host memory, eight on flash and two on the GPU."""

    def __init__(self, make=FluidTransfers, sizes=(4, 8, 2)):
        system, door = machine(), Door()
        pools = [Pool(tier, system.gpu.page_size) for tier in system.all_tiers]
        self.memory = memory_of(sizes, 1000, pools, system.gpu.page_size, door)
        for tensor, place in enumerate((HOST, FLASH, GPU)):
            self.memory.place(tensor, place)
        self.transfers = make(system, pools, door=door)
        door.is_open = False
        self.fabric = Fabric(Clock(), self.transfers, door)
        with self.fabric.alter():
            self.transfers.attach(0, 0, self.memory, OldestFirst(), lambda tensor: 0)


def batched(system, pools, door):
    return BatchedTransfers(system, GPG10, door=door)


@pytest.mark.parametrize("make", [FluidTransfers, batched])
def test_memory_changes_in_a_block_and_not_outside(make):
    bench = Bench(make)
    with pytest.raises(InvariantError, match=CLOSED):
        bench.memory.request_prefetch(0)
    with bench.fabric.alter(0):
        bench.memory.request_prefetch(0)
        with bench.fabric.alter():
            bench.memory.touch(2)
        bench.memory.touch(2)
    with pytest.raises(InvariantError, match=CLOSED):
        bench.memory.request_prefetch(1)


def test_a_policy_that_reaches_for_memory_between_iterations_is_stopped():
    class Reaches(Policy):
        """Changes what it may only look at."""

        name = "reaches"

        def on_iteration_start(self, view):
            view._memory.request_prefetch(0)

    with pytest.raises(G10SimError, match=CLOSED):
        simulate(trace_of({"w*": 2}, [(1000, "w", "")]), machine(), Reaches())


def test_a_job_is_served_until_it_is_detached():
    bench = Bench()
    with bench.fabric.alter(0):
        bench.memory.request_prefetch(0)
    assert bench.transfers.next_change() == 4000
    with bench.fabric.alter():
        bench.transfers.detach(0)
    assert bench.transfers.next_change() is None


def test_a_block_that_fails_closes_the_door_behind_it():
    bench = Bench()
    with pytest.raises(UnsupportedError), bench.fabric.alter():
        raise UnsupportedError("not this one")
    with pytest.raises(InvariantError, match=CLOSED):
        bench.memory.touch(2)


def test_those_who_wait_may_change_memory_when_they_look():
    bench = Bench()
    with bench.fabric.alter(0):
        bench.memory.request_prefetch(0)

    def done():
        if bench.memory.idle[0] < 4:
            return False
        bench.memory.touch(2)
        return True

    waiting = bench.fabric.until(done, lambda: "")
    bench.fabric.clock.run()
    assert waiting.triggered
    assert bench.fabric.clock.cycle == 4000


def test_who_looks_after_a_change_sees_the_links_as_they_are_then():
    bench, looks = Bench(), []

    def asks():
        looks.append(bench.transfers.bottleneck(0))
        if len(looks) == 2:
            with bench.fabric.alter(0):
                bench.memory.request_prefetch(0)
        return bench.memory.idle[0] == 4

    def has_come():
        looks.append(bench.transfers.next_change())
        return bench.memory.idle[0] == 4

    waiting = [bench.fabric.until(done, lambda: "") for done in (asks, has_come)]
    bench.fabric.clock.run()
    assert all(wait.triggered for wait in waiting)
    assert looks == [None, None, 4000, None, None]


def test_moments_of_a_cycle_follow_each_other():
    clock, happened = Clock(), []
    for number in range(2):
        for moment in reversed(Moment):
            Timer(clock, moment, 7, lambda timer, number=number: happened.append((timer.moment, number)))
    clock.run()
    assert happened == [(moment, number) for moment in Moment for number in range(2)]
    assert [moment.name for moment in Moment] == ["COMPUTED", "KERNELS", "TRANSFERS", "TURNS"]


def test_time_goes_on_at_once_for_one_process_up_to_what_else_happens():
    clock = Clock(one_process=True)
    assert clock.passes(5)
    assert clock.cycle == 5
    clock.timeout(3)
    assert not clock.passes(3)
    assert clock.cycle == 5
    assert clock.passes(2)
    assert clock.cycle == 7
    assert not Clock().passes(1)


def test_a_wait_of_the_only_process_is_over_when_it_begins_to_wait():
    fabric = Fabric(Clock(one_process=True), Scripted(10, 20), Door(is_open=False))
    waiting = fabric.until(lambda: not fabric.transfers.changes, lambda: "")
    assert waiting.processed
    assert fabric.clock.cycle == 20


def test_processes_belong_to_the_kernels_of_a_cycle():
    clock, happened = Clock(), []
    Timer(clock, Moment.TRANSFERS, 7, lambda timer: happened.append("transfers"))

    def process():
        yield clock.timeout(7)
        happened.append("process")
        Timer(clock, Moment.COMPUTED, 0, lambda timer: happened.append("computed"))
        yield clock.timeout(0)
        happened.append("process again")

    clock.process(process())
    clock.run()
    assert happened == ["process", "computed", "process again", "transfers"]


@pytest.mark.interpreted
def test_transfers_left_behind_are_noticed():
    class Lazy(FluidTransfers):
        """Stays where it is."""

        def advance(self, now, jobs=None):
            pass

    bench = Bench(Lazy)
    bench.fabric.clock.run(until=10)
    behind = pytest.raises(InvariantError, match="memory was changed at cycle 10 with transfers at 0")
    with behind, bench.fabric.alter():
        bench.memory.touch(2)


@pytest.mark.parametrize("make", [FluidTransfers, batched])
def test_transfers_know_how_far_they_are(make):
    transfers = Bench(make).transfers
    transfers.advance(5000)
    transfers.next_change(5000)
    with pytest.raises(InvariantError, match=r"^memory was changed at cycle 20000 with transfers at \d+$"):
        transfers.next_change(20_000)


def test_links_that_were_not_shared_anew_are_noticed():
    bench = Bench()
    bench.fabric._door.is_open = True
    bench.memory.request_prefetch(0)
    bench.transfers.changed()
    assert bench.transfers.next_change() == 4000
    bench.memory.request_prefetch(1)
    for look in (bench.transfers.next_change, lambda: bench.transfers.advance(10)):
        with pytest.raises(InvariantError, match=STALE):
            look()


class EvictsAtOnce(Policy):
    """Sends the first tensor of whole tensors away as the second kernel starts."""

    name = "evicts_at_once"
    requirements = Requirements(placement="contiguous")

    def on_kernel_start(self, view):
        return [Evict(0)] if view.kernel == 1 else []


@pytest.mark.interpreted
def test_room_that_is_left_unused_is_noticed(monkeypatch):
    trace = trace_of({"w*": 4, "a": 4, "b": 4}, [(1000, "w", "a"), (9000, "a", "a"), (1000, "a", "b")])
    assert len(simulate(trace, machine(gpu_pages=8), EvictsAtOnce()).kernels) == 6
    monkeypatch.setattr(FluidTransfers, "settle", lambda self: None)
    with pytest.raises(InvariantError, match="room in memory was not used after it was made"):
        simulate(trace, machine(gpu_pages=8), EvictsAtOnce())


def test_batches_foreseen_before_memory_changed_are_noticed():
    bench = Bench(batched, (4, 100, 2))
    with bench.fabric.alter():
        bench.memory.request_prefetch(1)
        bench.transfers.changed()
        bench.transfers.advance(10_000)
        assert bench.transfers.next_change() > 20_000
        bench.memory.touch(2)
        with pytest.raises(InvariantError, match=STALE):
            bench.transfers.advance(20_000)


def test_nested_blocks_share_links_once():
    fabric = scripted()
    with fabric.alter(0):
        with fabric.alter(1):
            assert not fabric.transfers.shared
        with fabric.alter():
            pass
        assert not fabric.transfers.shared
    assert fabric.transfers.shared == [(0, {0, 1})]
    assert fabric.transfers.settled == 3
    assert fabric.transfers.visits == [0]


def test_a_wait_that_changes_memory_as_it_ends_shares_links_once_more():
    fabric = scripted(10)

    def done():
        if fabric.clock.cycle < 10:
            return False
        with fabric.alter(3):
            pass
        return True

    fabric.until(done, lambda: "")
    fabric.clock.run()
    assert fabric.transfers.shared == [(10, {3})]


def test_transfers_have_no_timer_while_nobody_waits():
    fabric = scripted(10, 20)
    with fabric.alter():
        pass
    fabric.clock.run()
    assert (fabric.clock.cycle, fabric.transfers.visits) == (0, [0])
    fabric.until(lambda: len(fabric.transfers.changes) < 2, lambda: "")
    fabric.clock.run()
    assert (fabric.clock.cycle, fabric.transfers.visits) == (10, [0, 0, 10])


@pytest.mark.parametrize(("busy_at", "events"), [([], 2), ([15], 4), ([20], 4), ([5, 30], 5)])
def test_time_goes_from_change_to_change_without_events_where_nothing_else_happens(busy_at, events):
    fabric, looked = scripted(10, 20, 30), []
    for cycle in busy_at:
        Timer(fabric.clock, Moment.KERNELS, cycle, lambda timer: None)

    def done():
        looked.append(fabric.clock.cycle)
        return fabric.clock.cycle == 30

    fabric.until(done, lambda: "")
    steps = 0
    while fabric.clock.peek() < float("inf"):
        fabric.clock.step()
        steps += 1
    assert looked == fabric.transfers.visits == [0, 10, 20, 30]
    assert steps == events


def test_a_wait_without_end_is_explained_by_those_who_wait():
    fabric = scripted()
    assert fabric.explain_deadlock() is None
    fabric.until(lambda: False, lambda: "kernel 3 waits indefinitely")
    found = fabric.explain_deadlock()
    assert isinstance(found, CapacityError)
    assert str(found) == "kernel 3 waits indefinitely"
    fabric, refused = scripted(), UnsupportedError("this design cannot wait")
    fabric.until(lambda: False, lambda: refused)
    assert fabric.explain_deadlock() is refused


def paced(kernels, *changes, compute="exclusive", **sharing):
    """Cycles at which kernels end, given by job, when paces change as (cycle, job, pace)."""
    clock, ends = Clock(), {}
    units = make_compute(clock, SharingSpec(compute=compute, **sharing), 10**9)

    def kernel(job, cycles):
        yield from units.run(job, cycles)
        ends[job] = clock.now

    def change(cycle, job, pace):
        yield clock.timeout(cycle)
        units.set_pace(job, Fraction(pace))

    for job, cycles in kernels.items():
        clock.process(kernel(job, cycles))
    for entry in changes:
        clock.process(change(*entry))
    clock.run()
    return ends


@pytest.mark.parametrize("sharing", [{}, {"compute": "time_sliced"}, {"compute": "concurrent"}])
@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ([], 1000),
        ([(400, 0, "1/2")], 400 + 600 * 2),
        ([(400, 0, "1/2"), (1000, 0, 1)], 1000 + 300),
        ([(0, 0, "1/4")], 4000),
        ([(100, 0, "1/3"), (400, 0, "2/3")], 400 + 800 * 3 // 2),
        # The last of several in one cycle counts, and a pace that does not change changes nothing.
        ([(400, 0, "1/4"), (400, 0, "1/2")], 1600),
        ([(400, 0, 1), (700, 0, 1)], 1000),
        # Half a cycle is a whole one: 5 cycles of work at two thirds take 7.5.
        ([(995, 0, "2/3")], 995 + 8),
        # As a kernel ends it is too late, and afterwards there is nothing to slow.
        ([(1000, 0, "1/2")], 1000),
        ([(999, 0, "1/2")], 1001),
        ([(2000, 0, "1/2")], 1000),
        ([(400, 1, "1/2")], 1000),
    ],
)
def test_a_kernel_ends_when_its_work_is_done_at_the_pace_it_had(sharing, changes, end):
    assert paced({0: 1000}, *changes, **sharing) == {0: end}


def test_a_slow_kernel_takes_more_turns_and_no_longer_ones():
    # Without a change: 0 at 500, 1 at 600. Job 0 has done 150 at cycle 250, which leaves 300 at half its
    # pace: until 300, from 400 to 500, and from 600 on, when 1 has ended, another 150.
    jobs = {0: 300, 1: 300}
    assert paced(jobs, compute="time_sliced", time_slice="100 ns") == {0: 500, 1: 600}
    slow = paced(jobs, (250, 0, "1/2"), compute="time_sliced", time_slice="100 ns")
    assert slow == {0: 750, 1: 600}


def test_a_pace_may_change_in_the_turn_of_another():
    # Job 0 has done 100 at cycle 150; the other 200 take 400, in turns from 200 and 400 on, and from 600 on
    # alone.
    slow = paced({0: 300, 1: 300}, (150, 0, "1/2"), compute="time_sliced", time_slice="100 ns")
    assert slow == {0: 800, 1: 600}


def test_paces_multiply_with_the_slowdown_of_company():
    # Both at half speed. Job 0 has done 100 at cycle 200; 300 at half the pace take 1200 in company. Job 1
    # has done 700 at 1400 and does the rest alone.
    jobs = {0: 400, 1: 1000}
    assert paced(jobs, compute="concurrent", slowdown=1.0) == {0: 800, 1: 1400}
    slow = paced(jobs, (200, 0, "1/2"), compute="concurrent", slowdown=1.0)
    assert slow == {0: 1400, 1: 1700}


def test_side_by_side_without_slowdown_only_the_slowed_kernel_takes_longer():
    slow = paced({0: 400, 1: 400}, (200, 0, "1/2"), compute="concurrent", slowdown=0.0)
    assert slow == {0: 600, 1: 400}


@pytest.mark.parametrize("first", ["kernel", "change"])
def test_a_pace_is_for_the_kernels_that_follow_too(first):
    clock, ends = Clock(), []
    units = make_compute(clock, SharingSpec(), 10**9)

    def kernel():
        yield from units.run(0, 1000)
        ends.append(clock.now)
        yield from units.run(0, 100)
        ends.append(clock.now)

    def change():
        yield clock.timeout(1000)
        units.set_pace(0, Fraction(1, 2))

    for process in (kernel, change) if first == "kernel" else (change, kernel):
        clock.process(process())
    clock.run()
    assert ends == [1000, 1200]
