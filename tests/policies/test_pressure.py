"""Pressure: what leaves and returns, and when, on machines and traces small enough to follow."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import OWN, PAGE, iteration_times, kernel_times, machine, simulate, trace_of

from g10sim.analysis.bound.bound import iteration_bound
from g10sim.analysis.bound.demand import demand_of
from g10sim.analysis.footprint import peak_live_bytes
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.policies.checks import check_policy
from g10sim.policies.designs.pressure.account import Order, Settings, Shortage, Uses
from g10sim.policies.designs.pressure.dividing import Division, EvictionQueues
from g10sim.policies.designs.pressure.dropping import chosen_drops, machine_of
from g10sim.policies.designs.pressure.forecast import Forecast
from g10sim.policies.designs.pressure.pressure import Pressure
from g10sim.policies.designs.pressure.repeating import Repeating
from g10sim.policies.designs.pressure.steering import Steering
from g10sim.policies.designs.pressure.transfers import Arrivals
from g10sim.policies.interface.machine import PlannedTier, planned_machine
from g10sim.policies.interface.moves import Drop, Fetch
from g10sim.policies.planning.timeline import Timeline
from g10sim.records import StallReason
from g10sim.results.bounds import bound_machine
from g10sim.sim.engine import run as run_workload
from g10sim.trace.synthetic import chain
from g10sim.trace.workload import Job, Workload


def run(trace, system, *, record=("kernels", "migrations"), **parameters):
    return simulate(trace, system, Pressure(**parameters), OWN, record=record)


def moved(records, iteration=1):
    """Bytes that left and returned in an iteration."""
    traffic = records.iterations[iteration].traffic
    return traffic["gpu_to_host_bytes"], traffic["host_to_gpu_bytes"]


# a (60 pages) is made first and read last; 60 pages of b are in use between. The GPU has room for 100.
PEAK = trace_of(
    {"a": 60, "b": 60},
    [
        (10_000, "", "a"),
        (50_000, "", ""),
        (10_000, "", "b"),
        (10_000, "b", ""),
        (50_000, "", ""),
        (9000, "a", ""),
    ],
)


def test_a_tensor_leaves_ahead_of_the_shortage_and_is_back_in_time():
    records = run(PEAK, machine(100, 1000))
    # 20,000 cycles each way: the kernel of b needs 20 of a's pages to be gone by 10,000 + 50,000, and they
    # return once b is dead. Only mapping a, 60 pages of 1000 cycles, is waited for.
    assert moved(records) == (20_000, 20_000)
    stalls = {reason for kernel in records.kernels[6:] for reason, _ in kernel.stalls}
    assert stalls == {StallReason.MAPPING}
    assert records.iterations[1].page_faults == 0


def test_nothing_moves_that_fits():
    records = run(PEAK, machine(120))
    assert moved(records) == (0, 0)


def test_what_is_needed_last_leaves_first():
    trace = trace_of(
        {"near": 40, "far": 40, "b": 60},
        [
            (100_000, "", "near far"),
            (100_000, "", ""),
            (10_000, "", "b"),
            (100_000, "b", ""),
            (100_000, "", ""),
            (9000, "near", ""),
            (9000, "far", ""),
        ],
    )
    records = run(trace, machine(100))
    left = {
        move.tensor for move in records.migrations if move.source.name == "GPU" and move.target.name == "HOST"
    }
    assert left == {1}


# e needs 40 pages that a, b, c and d fill, and host memory has room for 20. Mapping a page takes 10 cycles.
CROWD = trace_of(
    {"a": 20, "b": 20, "c": 20, "d": 20, "e": 60},
    [
        *((1000, "", name) for name in "abcd"),
        (10_000, "", "e"),
        (10_000, "e", ""),
        *((50_000, name, "") for name in "dcba"),
    ],
)


def test_new_tensors_wait_for_both_tiers_instead_of_pushing_others_to_the_fastest():
    records = run(CROWD, machine(100, 20, mapping="100 GB/s"))
    # a is there at 200 + 1000 and leaves to the SSD at 4000 cycles a page; b leaves to host memory meanwhile.
    assert 81_200 < records.kernels[4].start <= 81_200 + 10
    left = [move for move in records.migrations if move.source.name == "GPU"]
    assert {move.cause.value for move in left} == {"planned_eviction"}
    assert {(move.tensor, move.target.name) for move in left} == {(0, "FLASH"), (1, "HOST")}
    assert [reason for reason, _ in records.kernels[3].stalls] == [StallReason.SYNCHRONIZATION]


def test_what_the_running_kernel_uses_leaves_no_further_than_the_next_one_needs():
    # a fills the GPU; b takes the place of 20 of its pages, and they of b, when a kernel needs either.
    kernels = [(50_000, "a", ""), (50_000, "", "b"), (1000, "a", ""), (10_000, "b", "")]
    records = run(trace_of({"a*": 60, "b": 20}, kernels), machine(60, 1000, mapping="100 GB/s"))
    assert moved(records) == (60_000, 60_000)


def test_new_tensors_wait_for_no_more_room_than_they_need():
    kernels = [(1000, "", "a"), (1000, "", "b"), (9000, "", "e"), (9000, "e", ""), (50_000, "b", "")]
    trace = trace_of({"a": 30, "b": 30, "e": 50}, [*kernels, (9000, "a", "")])
    records = run(trace, machine(100, mapping="100 GB/s"))
    # a is there at 300 + 1000; ten of its pages have left 10,000 cycles later, and the others before 31,300.
    assert 11_300 < records.kernels[2].start < 11_300 + 1000


def test_new_tensors_wait_for_what_leaves_and_push_out_nothing():
    # c needs 30 pages of a, which may leave when kernel 1 has read it; b, which stays, is read before a.
    kernels = [(1000, "", "a"), (1000, "a", "b"), (1000, "", ""), (10_000, "", ""), (1000, "", "c")]
    kernels += [(1000, "c", ""), (10_000, "b", ""), (1000, "a", "")]
    records = run(trace_of({"a": 60, "b": 10, "c": 60}, kernels), machine(100, mapping="100 GB/s"))
    started, read = records.kernels[4].start, records.kernels[1].end
    assert 30_000 < started - read < 31_000
    left = {move.cause.value for move in records.migrations if move.source.name == "GPU"}
    assert left == {"planned_eviction"}


def test_kernels_start_before_all_of_a_tensor_has_left():
    # d needs 40 of the 60 pages of b; the kernels before it need no more than is free.
    kernels = [(50_000, "", "a"), (10_000, "a", "b"), (1000, "", "c"), (1000, "c", ""), (1000, "a", "")]
    kernels += [(1000, "", "d"), (1000, "c", ""), (10_000, "b", ""), (10_000, "a", "")]
    trace = trace_of({"a": 10, "b": 60, "c": 10, "d": 60}, kernels)
    records = run(trace, machine(100, mapping="100 GB/s"))
    started, written = records.kernels[5].start, records.kernels[1].end
    assert 40_000 < started - written < 40_000 + 1000


def test_while_kernels_wait_more_leaves_than_they_wait_for():
    # Most goes to the SSD. Without a backlog of 20,000 cycles queues are as long as kernels and their waits.
    sizes = dict(zip("abcdefgh", (10, 20, 5, 5, 30, 30, 5, 30), strict=True))
    forward = [(1000, "", "a"), (30_000, "", "b"), (100, "b", "c"), (100, "c", "d"), (100, "", "e")]
    forward += [(30_000, "", "f"), (1000, "", "g"), (100, "g", "h")]
    backward = zip((10_000, 10_000, 1000, 100, 1000, 3000, 1000, 100), "hgfedcba", strict=True)
    trace = trace_of(sizes, [*forward, *((cycles, name, "") for cycles, name in backward)])
    system = machine(70, 10, mapping="100 GB/s")
    without, ample = (iteration_times(run(trace, system, backlog=backlog))[1] for backlog in (0, 2e-5))
    assert abs(without - ample) < 1000


@pytest.mark.parametrize(
    ("gpu", "layers", "weight", "activation", "cycles"),
    [(60, 3, 10, 20, 1000), (100, 4, 20, 20, 100), (80, 4, 10, 20, 1000), (60, 4, 10, 10, 100)],
)
def test_while_kernels_wait_for_what_comes_more_leaves(gpu, layers, weight, activation, cycles):
    # Kernels are short, so that without a backlog next to nothing would leave but for what they wait for.
    parts = [" ".join(f"w{layer}.{part}" for part in range(5)) for layer in range(layers)]
    sizes = {f"{name}*": weight // 5 for names in parts for name in names.split()}
    sizes |= {f"x{layer}": activation for layer in range(layers)}
    kernels = [(cycles, f"{parts[i]} x{i - 1}" if i else parts[i], f"x{i}") for i in range(layers)]
    kernels += [(cycles, f"{parts[i]} x{i}", "") for i in reversed(range(layers))]
    trace, system = trace_of(sizes, kernels), machine(gpu, 1000, mapping="100 GB/s")
    without, ample = (iteration_times(run(trace, system, backlog=backlog)) for backlog in (0, 2e-5))
    assert without == ample


@pytest.mark.parametrize("lacking", [4, 8, 12])
def test_what_host_memory_lacks_goes_to_the_ssd_evenly_and_returns_so(lacking):
    # 60 of 80 pages leave and return, 1000 cycles a page to and from host memory and 4000 the SSD. As long as
    # what the SSD takes is beside the rest on the link, it costs no more than the way of the first and last.
    names = [f"x{number}" for number in range(20)]
    kernels = [(1000, "", name) for name in names] + [(1000, name, "") for name in reversed(names)]
    trace = trace_of(dict.fromkeys(names, 4), kernels)
    ample, short = (
        iteration_times(run(trace, machine(20, 60 - pages, mapping="100 GB/s")))[1] for pages in (0, lacking)
    )
    assert 60_000 + 60_000 < ample < short < ample + 4 * 1000


def test_what_dies_makes_room_at_once():
    # Two weights make room for x, and return from host memory and the SSD beside each other after its end.
    def cycles(parts):
        kernels = [(1000, "h s", ""), (50_000, "", "x"), (50_000, "x", "")]
        trace = trace_of({"h*": 8, "s*": 8, "x": 16}, [*kernels, *[(4000 // parts, "", "")] * parts])
        system = machine(17, 8, mapping="100 GB/s")
        return iteration_times(simulate(trace, system, Pressure(backlog=0), BehaviourSpec()))[1]

    assert cycles(1) == cycles(40)


def test_a_slow_tier_takes_what_has_time_to_return():
    # a is needed last, at once after d, which has its room: from the SSD it would come 160,000 cycles late,
    # from host memory 40,000. b has the whole time between c and its use. Host memory has room for one.
    kernels = [(1000, "", "a"), (1000, "", "b"), (400_000, "", ""), (1000, "", "c"), (1000, "c", "")]
    kernels += [(1000, "", "d"), (300_000, "", ""), (1000, "b", ""), (1000, "d", ""), (1000, "a", "")]
    trace = trace_of({"a": 40, "b": 40, "c": 90, "d": 50}, kernels)
    records = run(trace, machine(100, 50, mapping="100 GB/s"))
    went = {(m.tensor, m.target.name) for m in records.migrations if m.source.name == "GPU" and m.size_bytes}
    assert went == {(0, "HOST"), (1, "FLASH")}
    assert iteration_times(records)[1] < sum(cycles for cycles, _, _ in kernels) + 41_000


def in_turn(uses):
    """The kernels that use tensors next."""
    return Uses(max(uses, default=0), uses)


def divided(cycles, monkeypatch, patient):
    """Moves at once when the last of 20 kernels of so many cycles lacks 20 pages, and the shortage.

    Ten fit in host memory. Queues may take 4000 cycles, in which the link carries four pages and the SSD one.
    """
    monkeypatch.setattr("g10sim.policies.designs.pressure.dividing.most_patient", lambda *_: patient)
    planned, kernels = planned_machine(machine(100, 10), OWN), 20
    forecast = SimpleNamespace(kernels=kernels, timeline=Timeline([cycles] * kernels))
    lacks = np.array([0] * (kernels - 1) + [20_000])
    settings = Settings(backlog_cycles=0, births=4, horizon=kernels)
    shortage = Shortage(lacks, in_turn(range(kernels)), settings)
    queues = EvictionQueues(planned, [10_000, 10**9], 4000, [0, 0])
    account = SimpleNamespace(shortage=shortage, returning=lambda first, last: [0, 0])
    division = Division(forecast, planned, account)
    division.start_kernel(0, queues)
    return division, shortage


def tiers_until_the_last(cycles, monkeypatch):
    """Tiers of the pages that leave then."""
    (division, shortage), kernels, found = divided(cycles, monkeypatch, {}), 20, []
    while (tier := division.place(0, 1000, kernels, shortage.worst())) is not None:
        found.append(("host", "ssd")[tier])
        shortage.spare(kernels, 1000)
    return found


@pytest.mark.parametrize(
    ("cycles", "tiers"),
    [
        # The link's 20,000 are less than .28 of 19 * 4000: host memory has its half, and half a page to come.
        (4000, ["ssd", "host", "host"]),
        # They are more than that: whoever has time takes what comes.
        (3500, ["ssd", "host", "host", "host"]),
    ],
)
def test_a_fast_tier_takes_its_share_evenly_while_there_is_time(cycles, tiers, monkeypatch):
    assert tiers_until_the_last(cycles, monkeypatch) == tiers


@pytest.mark.parametrize(
    ("cycles", "patient", "is_choosy"), [(1053, {1: [0]}, True), (1052, {1: [0]}, False), (1053, {}, False)]
)
def test_a_tensor_waits_for_a_tier_that_suits_it_while_the_link_has_time(
    cycles, patient, is_choosy, monkeypatch
):
    # The 20,000 bytes take 20,000 cycles, and the last kernel begins after 19.
    assert divided(cycles, monkeypatch, patient)[0].is_choosy is is_choosy


def test_few_tensors_are_looked_at_that_suit_no_tier_however_many_there_are(monkeypatch):
    trace = chain(600, activation_bytes=8 << 20, weight_bytes=2 << 20, forward_ticks=700_000)
    place, misfits = Division.place, Counter()

    def noted(division, *of_tensor):
        tier = place(division, *of_tensor)
        misfits[division._kernel] += tier is None
        return tier

    monkeypatch.setattr(Division, "place", noted)
    gpu = peak_live_bytes(trace) // 2 // PAGE * PAGE
    system = load_system({"preset": "a100-40g-pcie3-znand", "host": {"memory": f"{gpu * 9 // 10} B"}})
    simulate(trace, system.with_gpu_memory(gpu), Pressure(), OWN, iterations=1)
    assert 1 < max(misfits.values()) < 20


def test_the_fastest_tier_fills_what_slower_ones_leave_of_the_link():
    planned = planned_machine(machine(100, 100), OWN)
    host, ssd = range(2)
    queues = EvictionQueues(planned, [10**9, 10**9], 10_000, [0, 0])
    # In 10,000 cycles the link carries 10,000 bytes, of which the SSD can write 2500.
    queues.add(host, 8000)
    assert queues.idle_tiers() == [host, ssd]
    queues.add(ssd, 2500)
    assert queues.idle_tiers() == []
    assert queues.queued_but_for(ssd) == 8000


def test_what_is_queued_takes_the_room_of_its_tier():
    planned = planned_machine(machine(100, 100), OWN)
    host, ssd = range(2)
    queues = EvictionQueues(planned, [10_000, 10**9], 10_000, [0, 0])
    queues.add(host, 8000)
    assert queues.with_room(2000) == [host, ssd]
    assert queues.with_room(2001) == [ssd]


def nothing():
    """Bytes that return to both tiers: none."""
    return [0, 0]


def test_tiers_share_what_they_have_room_and_time_for():
    system = machine(100, 30)
    planned = planned_machine(system, OWN)
    queues = EvictionQueues(planned, [30_000, 10**9], 1e6, [0, 0])
    # The link carries 1 byte a cycle, the SSD writes a quarter: 40,000 bytes take 40,000 cycles, and the host
    # has room for 30,000 of them.
    assert queues.shares(40_000, nothing) == pytest.approx([0.75, 0.25])
    assert queues.shares(20_000, nothing) == (1, 0)
    # 80,000 bytes: the SSD needs 200,000 cycles for what the host has no room for.
    assert queues.shares(80_000, nothing) == pytest.approx([30 / 80, 50 / 80])
    # Half of them go where 50,000 others come from meanwhile.
    assert queues.shares(80_000, lambda: [50_000, 0]) == pytest.approx([1, 0])


def test_the_last_tier_takes_what_it_has_time_for_once_the_others_are_full():
    tiers = [PlannedTier(name, "memory", 0, rate, rate) for name, rate in (("a", 4), ("b", 2), ("c", 1))]
    planned = replace(planned_machine(machine(100), OWN), in_rate=1000, out_rate=1000, tiers=tuple(tiers))
    queues = EvictionQueues(planned, [8, 8, 100], 1, [0, 0, 0])
    # a is full after 2 cycles, b after 4; 8 + 8 + 4 bytes have left by then, and 6 are left for c alone.
    assert queues.shares(26, lambda: [0, 0, 0]) == pytest.approx([8 / 26, 8 / 26, 10 / 26])


def test_what_no_tier_has_room_for_is_nobodys_share():
    planned = planned_machine(machine(100, 100), OWN)
    queues = EvictionQueues(planned, [30_000, 40_000], 1e6, [0, 0])
    assert queues.shares(80_000, nothing) == pytest.approx([30 / 80, 40 / 80])
    assert EvictionQueues(planned, [0, 0], 1e6, [0, 0]).shares(80_000, nothing) == [0, 0]


def test_of_each_way_only_the_first_that_has_not_moved_is_looked_at():
    lies_in = {1: "host", 2: "host", 3: "host", 4: "ssd", 5: "ssd"}
    arrivals, asked = Arrivals(), []
    for tensor, tier in lies_in.items():
        arrivals.add(tensor, (tier,), 10)
    arrivals.follow(lambda tensor: asked.append(tensor) or tensor == 1)
    assert asked == [1, 2, 4]
    arrivals.note(1, 3)
    arrivals.note(7, 3)
    for tensor in (2, 4, 7):
        arrivals.discard(tensor)
    assert list(arrivals.ways) == [1, 3, 5]
    assert arrivals.total_bytes == 3 + 10 + 10


def test_what_comes_from_two_tiers_is_as_fast_as_the_slower_one():
    tiers = [SimpleNamespace(name="host", read_rate=1.0), SimpleNamespace(name="ssd", read_rate=0.5)]
    lies_in = {0: ("host", "ssd"), 1: ("host",), 2: ("ssd",), 3: ()}
    view = SimpleNamespace(
        tiers=("host", "ssd"),
        bytes_in=lambda tensor, tier: 10 * (tier in lies_in[tensor]),
        is_whole=lambda tensor: tensor == 3,
    )
    machine, arrivals = SimpleNamespace(tiers=tiers), Arrivals()
    for tensor in (0, 1, 2):
        arrivals.add(tensor, lies_in[tensor], 100)
    lies_in[0] = lies_in[1] = ()
    # 10 bytes more of tensor 2 lie on the SSD, and nobody has asked for them.
    cycles = {(): 0, (3,): 0, (0,): 200, (1,): 100, (2,): 220, (0, 1): 300, (0, 2): 420}
    assert {needed: arrivals.cycles(view, needed, machine) for needed in cycles} == cycles


def test_what_returns_makes_room_for_what_takes_its_turn():
    # Eight weights of 5 pages are used, then eight others. The GPU has room for twelve. 20 pages must leave
    # before each half, and the host has room for 15 of them until others return.
    first, second = ([f"{name}{number}" for number in range(8)] for name in "ab")
    halves = [[(6000, " ".join(names), ""), *[(6000, "", "")] * 12] for names in (first, second)]
    trace = trace_of({f"{name}*": 5 for name in first + second}, [*halves[0], *halves[1]])
    records = run(trace, machine(60, 35), backlog=0)
    assert moved(records) == (40_000, 40_000)
    # Twice 20 pages leave, and others return beside them, while twelve kernels need nothing.
    assert iteration_times(records)[1] == 26 * 6000


def test_the_planned_machine_has_the_bound_of_the_system():
    system = machine(100, 30)
    one, other = (
        iteration_bound(PEAK, found)
        for found in (bound_machine(system), machine_of(planned_machine(system, OWN)))
    )
    assert one.cycles == other.cycles
    names = [limit.name for limit in machine_of(planned_machine(system, OWN)).limits]
    stores = machine_of(planned_machine(system, OWN)).stores
    assert [[names[limit] for limit in (*store.inward, *store.outward)] for store in stores] == [
        ["link in", "host read", "link out", "host write"],
        ["link in", "ssd read", "link out", "ssd write"],
    ]


def test_every_gpu_can_count_on_a_byte_per_second_of_the_ssd():
    slow = machine(100, gpus=1024, read="1 kB/s", write="1 kB/s")
    limits = machine_of(planned_machine(slow, OWN, gpus=range(1024))).limits
    assert [limit.rate for limit in limits if limit.name.startswith("ssd")] == [1, 1]


# a is made from the weight x in 1000 cycles and takes 60,000 to move; b needs its room.
CHEAP = trace_of(
    {"x*": 1, "a": 60, "b": 60}, [(1000, "x", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
)


def test_what_is_cheap_to_compute_again_is_dropped():
    system = machine(100, mapping="100 GB/s")
    planned = planned_machine(system, OWN)
    demand = demand_of(CHEAP, planned.clock_hz, planned.page_bytes)
    (drop,) = chosen_drops(demand, planned)
    assert (drop.tensor, drop.start, drop.end, drop.producers) == (1, 1, 3, CHEAP.kernels[:1])
    forecast = Forecast(demand, planned, [drop])
    assert [forecast.alive_at(kernel) for kernel in range(4)] == [[0, 1], [0, 2], [0, 2], [0, 1]]
    records = run(CHEAP, system, recompute=True)
    assert moved(records) == (0, 0)
    again = dict(records.kernels[-1].stalls)
    assert again[StallReason.RECOMPUTATION] == 1000
    assert StallReason.FIRST_TOUCH not in again
    swapped = iteration_times(run(CHEAP, system))[1]
    assert iteration_times(records)[1] < swapped


def test_what_is_read_to_compute_again_may_be_computed_again_itself():
    # Kernel 4 reads a, for which s is needed before kernel 5 reads it.
    kernels = [(1000, "x", "s"), (2000, "s", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
    trace = trace_of({"x*": 1, "s": 40, "a": 40, "b": 75}, [*kernels, (7000, "s", "")])
    system = machine(100, mapping="100 GB/s")
    planned = planned_machine(system, OWN)
    drops = chosen_drops(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    names = {(trace.tensors[one.tensor].name, one.start, one.end, one.producers[-1].id) for one in drops}
    assert names == {("s", 2, 4, 0), ("a", 2, 4, 1)}
    records = run(trace, system, recompute=True)
    assert moved(records) == (0, 0)
    again = [dict(kernel.stalls).get(StallReason.RECOMPUTATION, 0) for kernel in records.kernels[-2:]]
    assert again == [3000, 0]


def test_what_is_made_from_what_is_dead_is_dropped_and_made_again_from_before():
    # Nothing reads s after a is made from it.
    kernels = [(1000, "x", "s"), (2000, "s", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
    trace = trace_of({"x*": 1, "s": 20, "a": 40, "b": 75}, kernels)
    system = machine(100, mapping="100 GB/s")
    planned = planned_machine(system, OWN)
    demand = demand_of(trace, planned.clock_hz, planned.page_bytes)
    (drop,) = chosen_drops(demand, planned)
    assert (drop.tensor, drop.start, drop.end, drop.producers) == (2, 2, 4, trace.kernels[:2])
    assert (drop.sources, drop.results) == ((0,), [1, 2])
    # s needs room as well when it is made again.
    assert Forecast(demand, planned, [drop]).lack[4] == (1 + 40 + 20 - 100) * planned.page_bytes
    records = run(trace, system, recompute=True)
    assert moved(records) == (0, 0)
    stalls = {StallReason.RECOMPUTATION: 1000 + 2000, StallReason.MAPPING: (20 + 40) * 10}
    assert dict(records.kernels[-1].stalls) == stalls


def test_what_is_made_again_with_another_is_back_with_it():
    # Kernel 3 runs kernel 0 again for a, which writes r, too; kernel 4 has no need to.
    kernels = [(1000, "x", "a r"), (5000, "", "b"), (5000, "b", ""), (7000, "a", ""), (7000, "r", "")]
    trace = trace_of({"x*": 1, "a": 40, "r": 40, "b": 90}, kernels)
    system = machine(100, mapping="100 GB/s")
    planned = planned_machine(system, OWN)
    drops = chosen_drops(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    assert {(trace.tensors[one.tensor].name, one.start, one.end) for one in drops} == {
        ("a", 1, 3),
        ("r", 1, 3),
    }
    records = run(trace, system, recompute=True)
    again = [dict(kernel.stalls).get(StallReason.RECOMPUTATION, 0) for kernel in records.kernels[-2:]]
    assert again == [1000, 0]
    assert StallReason.FIRST_TOUCH not in dict(records.kernels[-2].stalls)


def test_what_is_idle_for_long_is_dropped_rather_than_what_is_made_from_it_and_idle_for_a_moment():
    # c is made from a again and again, and cheap; without a it could not be.
    kernels = [(1000, "x", "a"), (5000, "", "b"), (90_000, "b", ""), (100, "a", "c"), (50, "", "d")]
    trace = trace_of(
        {"x*": 1, "a": 60, "b": 60, "c": 30, "d": 5}, [*kernels, (7000, "c d", ""), (10, "a", "")]
    )
    planned = planned_machine(machine(100, mapping="100 GB/s"), OWN)
    drops = chosen_drops(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    assert [trace.tensors[drop.tensor].name for drop in drops] == ["a"]


def test_what_a_kernel_that_runs_again_writes_besides_is_back_by_then():
    # r, made with a, is read last. It comes before w, for which kernel 5 waits; kernel 4 runs 0 again for a.
    kernels = [(5000, "x", "a r"), (5000, "", "b"), (9000, "b", ""), (9000, "", ""), (7000, "a", "")]
    trace = trace_of(
        {"x*": 1, "a": 50, "r": 2, "b": 99, "w*": 40}, [*kernels, (9000, "w", ""), (1000, "r", "")]
    )
    records = run(trace, machine(100, mapping="100 GB/s"), recompute=True)
    assert kernel_times(records, 1)[2:] == [9000, 9000, 12_000, 30_000, 1000]
    came = [move for move in records.migrations if move.source.name == "HOST" and move.start > 120_000]
    assert [trace.tensors[move.tensor].name for move in came] == ["x", "r", "w", "w"]


@pytest.mark.parametrize(("b_pages", "dropped"), [(75, {"s", "a"}), (55, {"s"})])
def test_what_is_read_to_compute_again_stays_where_no_more_room_is_needed(b_pages, dropped):
    kernels = [(50, "x", "s"), (60, "s", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
    trace = trace_of({"x*": 1, "s": 40, "a": 40, "b": b_pages}, [*kernels, (7000, "s", "")])
    planned = planned_machine(machine(100, mapping="100 GB/s"), OWN)
    drops = chosen_drops(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    assert {trace.tensors[drop.tensor].name for drop in drops} == dropped


def test_what_is_expensive_to_compute_again_is_moved():
    kernels = [(500_000, "x", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
    trace = trace_of({"x*": 1, "a": 60, "b": 60}, kernels)
    records = run(trace, machine(100), recompute=True)
    assert StallReason.RECOMPUTATION not in {reason for one in records.kernels for reason, _ in one.stalls}
    assert moved(records)[0] > 0


@pytest.mark.parametrize(("producer", "dropped"), [(59_000, [1]), (61_000, [])])
def test_what_takes_longer_to_compute_than_to_copy_out_and_in_is_not_dropped(producer, dropped):
    # 60 pages take 30,000 cycles each way, if the host has room for them, and many more to the SSD.
    kernels = [(producer, "x", "a"), (5000, "", "b"), (5000, "b", ""), (7000, "a", "")]
    trace = trace_of({"x*": 1, "a": 60, "b": 100}, kernels)
    own = planned_machine(machine(101, 0, pcie="2 GB/s", flash_latency="0 us"), OWN)
    demand = demand_of(trace, own.clock_hz, own.page_bytes)
    assert [drop.tensor for drop in chosen_drops(demand, own)] == dropped


@pytest.mark.parametrize(("producer", "dropped"), [(100, ["a", "d"]), (300, ["a"])])
def test_what_costs_less_than_a_percent_of_the_bound_is_dropped_beyond_need(producer, dropped):
    # Without a everything fits. The kernels take some 19,000 cycles, a's once more among them.
    kernels = [(1000, "x", "a"), (producer, "x", "d"), (5000, "", "b"), (5000, "b", ""), (7000, "a d", "")]
    trace = trace_of({"x*": 1, "a": 60, "b": 60, "d": 5}, kernels)
    planned = planned_machine(machine(100, mapping="100 GB/s"), OWN)
    demand = demand_of(trace, planned.clock_hz, planned.page_bytes)
    assert [trace.tensors[drop.tensor].name for drop in chosen_drops(demand, planned)] == dropped


def test_drops_beyond_need_cost_no_more_than_a_percent_of_what_is_saved():
    # Without dropping a, 16 pages leave, 16,000 cycles, beside kernels of 1300. To make d again takes 0.07%
    # of the iteration, but 2% of what dropping a saves.
    kernels = [(1000, "x", "a"), (300, "x", "d"), (5000, "", "b"), (5000, "b", ""), (400_000, "a d", "")]
    trace = trace_of({"x*": 1, "a": 60, "b": 50, "d": 5}, kernels)
    planned = planned_machine(machine(100, mapping="100 GB/s"), OWN)
    demand = demand_of(trace, planned.clock_hz, planned.page_bytes)
    assert [trace.tensors[drop.tensor].name for drop in chosen_drops(demand, planned)] == ["a"]


def test_what_is_made_again_soon_is_mapped_ahead_only_once():
    # a, which kernel 3 has no room for, is dropped. If it were mapped twice, idle y would have to leave.
    kernels = [(1000, "y", ""), (1000, "", ""), (1000, "x", "a"), (5000, "", "b"), (5000, "a", "")]
    trace = trace_of({"x*": 1, "y*": 40, "a": 30, "b": 50}, [*kernels, (1000, "y", "")])
    records = run(trace, machine(100, mapping="100 GB/s"), recompute=True)
    assert moved(records) == (0, 0)
    assert dict(records.kernels[-2].stalls)[StallReason.RECOMPUTATION] == 1000


def test_nothing_is_dropped_where_everything_fits():
    planned = planned_machine(machine(200), OWN)
    assert chosen_drops(demand_of(CHEAP, planned.clock_hz, planned.page_bytes), planned) == ()


def test_weights_are_needed_again_in_the_next_iteration():
    planned = planned_machine(machine(100), OWN)
    demand = demand_of(CHEAP, planned.clock_hz, planned.page_bytes)
    forecast = Forecast(demand, planned)
    assert [forecast.next_use(0, kernel) for kernel in range(4)] == [0, 4, 4, 4]
    assert [forecast.next_use(1, kernel) for kernel in range(4)] == [0, 3, 3, 3]


@pytest.mark.parametrize(("large", "ahead"), [("a b c", True), ("a b c d", False)])
def test_after_four_tensors_without_room_no_other_is_fetched_ahead(large, ahead):
    # Beside t there is room for 10 pages: for the small one, but not for any of those of 15 before it.
    kernels = [(30_000, "", "t"), (30_000, "t", ""), (30_000, "t", ""), (9000, f"{large} small", "")]
    sizes = {"t": 90} | {f"{name}*": 15 for name in large.split()} | {"small*": 10}
    trace = trace_of(sizes, kernels)
    records = run(trace, machine(100))
    came = [move.start for move in records.migrations if trace.tensors[move.tensor].name == "small"]
    assert (came[0] < records.kernels[3].start) == ahead


@pytest.mark.parametrize(("backlog", "first"), [(0.02, "small"), (0, "big")])
def test_no_other_goes_ahead_of_one_without_room_while_the_link_is_busy(backlog, first):
    # Beside t there is room for f, which comes until 40,000, and for small, but for big, which is needed
    # before, only when f leaves again. Without a backlog the link has enough to do until the next kernel.
    kernels = [*((10_000, one, "t" * (not one)) for one in ("", "t f", "t", "t")), (9000, "big", "")]
    trace = trace_of({"t": 60, "f*": 20, "big*": 30, "small*": 10}, [*kernels, (9000, "small", "")])
    records = run(trace, machine(100, mapping="100 GB/s"), backlog=backlog)
    came = [trace.tensors[move.tensor].name for move in records.migrations if move.target.name == "GPU"]
    assert next(name for name in came if name in {"big", "small"}) == first


def test_new_tensors_are_mapped_ahead_in_every_iteration():
    kernels = [(100_000, "", "a"), (100_000, "a", ""), (100_000, "", "b"), (100_000, "b", "")]
    records = run(trace_of({"a": 60, "b": 60}, kernels), machine(200))
    assert [kernel_times(records, iteration)[2] for iteration in (0, 1)] == [100_000, 100_000]


def test_a_weight_that_the_iteration_before_used_last_leaves_at_once():
    # b needs 20 pages of w's room after 100,000 cycles; w takes 60,000 to leave.
    kernels = [(50_000, "", ""), (50_000, "", ""), (70_000, "", "b"), (70_000, "b", ""), (70_000, "", "")]
    trace = trace_of({"w*": 60, "b": 60}, [*kernels, (9000, "w", "")])
    records = simulate(trace, machine(100), Pressure(), OWN, iterations=3, record=("migrations",))
    left = [(move.tensor, move.start) for move in records.migrations if move.target.name == "HOST"]
    assert left == [(0, iteration.start) for iteration in records.iterations[1:]]


def test_it_passes_the_checks_with_recomputation():
    assert check_policy({"name": "pressure", "recompute": True}) == {}


def test_dead_tensors_make_room_without_traffic():
    # a is dead when c needs its room; nothing has to be written out for that.
    trace = trace_of({"a": 2, "b": 2, "c": 2}, [(5000, "", "a b"), (5000, "a b", "b"), (5000, "b", "c")])
    records = simulate(trace, machine(4), Pressure())
    assert sum(records.iterations[1].traffic.values()) == 0


def test_only_what_will_be_read_again_is_written_out():
    # Kernel 2 fills the GPU with a and c. c, mapped ahead, makes room for a at first, and is dropped: nobody
    # has written to it yet. Then b makes room for c, and is the only one to leave.
    kernels = [(20_000, "", ""), (20_000, "", "b"), (3000, "a", "a c"), (20_000, "b", "b")]
    records = simulate(
        trace_of({"a*": 4, "b*": 4, "c": 8}, kernels), machine(12), Pressure(), BehaviourSpec()
    )
    assert [moved(records, iteration)[0] for iteration in (0, 1)] == [4000, 4000]


def test_of_tensors_used_in_turn_a_part_stays():
    """Twelve weights of 10 pages, room for 80: those of two kernels move besides what lacks room."""
    names = [f"w{number}" for number in range(12)]
    trace = trace_of({f"{name}*": 10 for name in names}, [(100, name, "") for name in names])
    records = simulate(trace, machine(80), Pressure(backlog=0), BehaviourSpec(), iterations=6)
    returned = [iteration.traffic["host_to_gpu_bytes"] for iteration in records.iterations]
    assert returned == [120_000, *[60_000] * 5]


@given(
    live=st.lists(st.integers(-50, 50), min_size=2, max_size=30),
    tensors=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=8).map(sorted),
    kernel=st.integers(0, 29),
    changes=st.lists(st.tuples(st.integers(1, 60), st.integers(-9, 9)), max_size=5),
)
def test_steps_say_of_all_kernels_ahead_what_each_would(live, tensors, kernel, changes):
    kernel, horizon = kernel % len(live), len(live)
    settings = Settings(backlog_cycles=0, births=3, horizon=horizon)
    uses = [kernel + ahead for ahead, _ in tensors]
    sizes = [size for _, size in tensors]
    shortage = Shortage(np.array(live), in_turn(uses), settings)
    shortage.start_kernel(kernel)
    for use, size in zip(uses, sizes, strict=True):
        shortage.spare(use, size)
    until = [min(ahead, horizon) for ahead, _ in tensors]
    each = [
        (live + live)[kernel + ahead]
        - sum(size for use, size in zip(until, sizes, strict=True) if use > ahead)
        for ahead in range(horizon)
    ]
    before = list(each)
    shortage.count_asked(counts=True)
    for tensor, (number, change) in enumerate(changes):
        ahead = max(1, until[number % len(until)])
        shortage.ask(tensor, kernel + ahead, change)
        each[:ahead] = [lack + change for lack in each[:ahead]]
    assert shortage.worst() == max(each)
    assert (shortage.of_next(), shortage.worst(2)) == (each[1], max(each[:2]))
    starts = {*range(settings.last_single + 1), *until}
    for ahead in {1, 2, *until} - {0}:
        worst = max(each[:ahead])
        assert shortage.worst(ahead) == worst
        assert shortage.worst_step(ahead) == max(start for start in starts if start <= each.index(worst))
    steps = sorted(starts - {horizon})[2:]
    lacks = [max(each[start:stop]) for start, stop in pairwise([*steps, horizon])]
    assert [found.tolist() for found in shortage.later()] == [steps, lacks]
    shortage.count_asked(counts=False)
    assert shortage.worst() == max(before)


@given(
    st.lists(st.integers(-5, 5), min_size=10, max_size=30),
    st.integers(2, 30),
    st.lists(
        st.tuples(
            st.sampled_from(["go on", "ask", "count", "take back", "spare"]),
            st.integers(1, 30),
            st.integers(-4, 4),
        ),
        max_size=30,
    ),
)
def test_peaks_that_are_known_follow_every_change(live, horizon, changes):
    horizon, kernel = min(horizon, len(live)), 0
    settings = Settings(backlog_cycles=0, births=3, horizon=horizon)
    shortage, levels = Shortage(np.array(live), in_turn(()), settings), live + live
    asked, is_counted = [0] * len(levels), False
    for number, (change, ahead, size) in enumerate(changes):
        if change == "go on":
            kernel = min(kernel + 1, len(live) - 1)
            shortage.start_kernel(kernel)
        elif change in ("count", "take back"):
            is_counted = change == "count"
            shortage.count_asked(counts=is_counted)
        elif change == "ask":
            shortage.ask(number, kernel + ahead, size)
            asked[: kernel + ahead] = [one + size for one in asked[: kernel + ahead]]
        else:
            shortage.spare(kernel + ahead, size)
            levels[kernel : kernel + ahead] = [one - size for one in levels[kernel : kernel + ahead]]
        lacks = [level + is_counted * more for level, more in zip(levels, asked, strict=True)][kernel:]
        for many in (None, ahead):
            seen = lacks[: min(many or horizon, horizon)]
            assert shortage.worst(many) == max(seen)
            assert min(shortage.worst_step(many), settings.last_single) == min(
                seen.index(max(seen)), settings.last_single
            )


class Decisions:
    """Stands in for what decides: names the number of its decision."""

    def __init__(self, log):
        self._log = log

    def moves(self, view):
        self._log.append(view.iteration)
        return [Fetch(len(self._log))]

    def waits(self, view):
        return [Drop(len(self._log))]

    def victims(self, view):
        return [7]


def repeated(cycles, places=None, kernels=1):
    """The iterations that are decided, and the moves of each, where iterations take so many cycles.

    Bytes of the only weight on the GPU at the start of each are ``places``, of 1000 that fit there.
    """
    trace = trace_of({"w*": 10}, [(100, "w", "") for _ in range(kernels)])
    planned = planned_machine(machine(10), OWN)
    forecast = Forecast(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    log = []
    repeating = Repeating(forecast, SimpleNamespace(gpu_bytes=1000), lambda: Decisions(log))
    now, moves = 0, []
    for iteration, (duration, here) in enumerate(zip(cycles, places or [500] * len(cycles), strict=True)):
        view = SimpleNamespace(
            iteration=iteration,
            now_cycles=now,
            tiers=("host",),
            resident_bytes=lambda tensor, here=here: here,
            bytes_in=lambda tensor, tier, here=here: 1000 - here,
        )
        moves.append([])
        for kernel in range(kernels):
            view.kernel = kernel
            moves[-1] += [*repeating.on_kernel_start(view), *repeating.on_kernel_end(view)]
        now += duration
    return log, moves


def test_after_three_iterations_the_last_is_repeated():
    decided, moves = repeated([1000] * 6, kernels=2)
    assert decided == [0, 0, 1, 1, 2, 2]
    assert moves[2] == [Fetch(5), Drop(5), Fetch(6), Drop(6)]
    assert moves[2:] == [moves[2]] * 4


def test_what_takes_longer_when_it_is_repeated_is_decided_anew_and_repeated_once_more():
    # The fourth repeats the third and is .2 % slower, which is the most; the fifth is slower, so that the
    # sixth is decided; the seventh repeats that one.
    decided, moves = repeated([1000, 1000, 1000, 1002, 1003, 900, 900, 900])
    assert decided == [0, 1, 2, 5]
    assert moves[3:5] == [moves[2]] * 2
    assert moves[6:] == [moves[5]] * 2 == [[Fetch(4), Drop(4)]] * 2
    # What was slower twice is not repeated any more.
    assert repeated([1000, 1000, 1000, 1100, 1000, 1100, 1000, 1000, 1000])[0] == [0, 1, 2, 4, 6, 7, 8]


def test_nothing_is_repeated_where_tensors_lie_elsewhere():
    # 3 % of GPU memory is 30 bytes, which are missing in one place and lie in another.
    assert repeated([1000] * 5, [0, 0, 500, 530, 530])[0] == [0, 1, 2]
    assert repeated([1000] * 5, [0, 0, 500, 531, 531])[0] == [0, 1, 2, 3]


def test_victims_of_a_repeated_iteration_are_those_needed_last():
    trace = trace_of({"a*": 10, "b*": 10, "c*": 10}, [(100, "a", ""), (100, "b", ""), (100, "c", "")])
    planned = planned_machine(machine(50), OWN)
    forecast = Forecast(demand_of(trace, planned.clock_hz, planned.page_bytes), planned)
    repeating = Repeating(forecast, SimpleNamespace(gpu_bytes=10**6), lambda: Decisions([]))
    view = SimpleNamespace(
        iteration=0,
        kernel=0,
        now_cycles=0,
        tiers=(),
        resident_bytes=lambda tensor: 10,
        is_needed=lambda tensor: tensor == view.kernel,
    )
    for _ in range(4):
        for view.kernel in range(3):
            repeating.on_kernel_start(view)
            repeating.on_kernel_end(view)
    view.kernel = 1
    assert repeating.choose_victims(view) == [0, 2]


def test_iterations_differ_by_what_is_on_its_way():
    states = []

    class Noted(Pressure):
        name = "noted"

        def on_kernel_end(self, view):
            yield from super().on_kernel_end(view)
            if view.iteration == 0:
                states.append(self.state(view))

    simulate(PEAK, machine(100), Noted(), OWN, iterations=1)
    # The last decision is that a comes back.
    assert len(states) == 6 == len(set(states[:-1])) + 1


def test_jobs_beside_others_decide_every_iteration(monkeypatch):
    trace, decided = trace_of({"w*": 60, "a": 60}, [(1000, "w", "a"), (1000, "a", "")]), []
    moves = Steering.moves

    def noted(steering, view):
        decided.append((view.job, view.iteration))
        return moves(steering, view)

    monkeypatch.setattr(Steering, "moves", noted)
    for jobs, iterations in ((1, 3), (2, 5)):
        decided.clear()
        workload = Workload(tuple(Job(trace, iterations=5) for _ in range(jobs)))
        run_workload(workload, machine(300), Pressure(), OWN)
        assert set(decided) == {(job, number) for job in range(jobs) for number in range(iterations)}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "clear", "ask"]),
            st.sampled_from([0, 1, 40, 41, 900, 997, 998]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_tensors_come_in_the_order_of_ranks_however_far_these_are_apart(steps):
    order, there = Order(), set()
    for kind, rank, tensor in steps:
        if kind == "add" and (rank, tensor) not in there:
            order.add(rank, tensor)
            there.add((rank, tensor))
        elif kind == "remove" and (rank, tensor) in there:
            order.remove(rank, tensor)
            there.remove((rank, tensor))
        elif kind == "clear":
            order.clear(rank)
            there = {one for one in there if one[0] != rank}
        assert [*order] == [tensor for _, tensor in sorted(there)]
        assert bool(order) == bool(there)
