"""Copies of an iteration and their times, worked out by hand. A page takes 1000 cycles each way."""

import pytest
from machines import OWN, PAGE, machine, trace_of

from g10sim.analysis.bound.demand import demand_of
from g10sim.policies.designs.pressure.dropping import chosen_drops
from g10sim.policies.designs.pressure.forecast import Dropped, Forecast
from g10sim.policies.designs.pressure.traffic import Copies, LinkRates, copied_cycles, copies_of
from g10sim.policies.interface.machine import planned_machine
from g10sim.trace.model import Phase, TensorKind
from g10sim.trace.synthetic import TraceBuilder

SAME = LinkRates(1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("out", "into", "free", "cycles"),
    [
        ([(0, 1, 10)], [(0, 0), (0, 0)], [0, 0], 4 + 6 + 4),  # four of ten bytes are gone when kernel 0 ends
        ([(1, 1, 10)], [(0, 0), (0, 0)], [0, 0], 4 + 10 + 4),  # it uses them itself
        ([], [(0, 0), (0, 10)], [10, 0], 4 + 6 + 4),
        ([], [(0, 0), (0, 10)], [3, 0], 4 + 7 + 4),  # three have room before kernel 1
        ([(0, 1, 5)], [(0, 0), (0, 10)], [2, 0], 4 + 6 + 4),  # and four more, where others have left
        ([(0, 1, 5)], [(0, 0), (1, 10)], [9, 0], 4 + 10 + 4),  # what leaves then cannot come before
        ([(0, 2, 4), (0, 1, 4)], [(0, 0)] * 3, [0] * 3, 4 + 4 + 4),  # what has to be gone first leaves first
        ([(0, 1, 8)], [(0, 0), (0, 6)], [9, 0], 4 + 4 + 4),  # both ways at once
    ],
)
def test_kernels_wait_for_copies_that_could_not_run_ahead(out, into, free, cycles):
    copies = Copies(out, into, free)
    assert copies.cycles([4] * len(into), SAME) == cycles


def test_the_iteration_that_counts_finds_copies_of_the_one_before_it():
    # Ten bytes leave before the second iteration, and four of them while the first one runs.
    copies = Copies([(0, 1, 10)], [(0, 0), (0, 0)], [0, 0])
    assert copies.cycles([4], SAME) == 6 + 4


def test_a_way_is_faster_while_the_other_is_idle():
    rates = LinkRates(into=2.0, out=1.0, lone_into=4.0, lone_out=3.0)
    # 8 bytes in take 4 cycles beside 4 out; then 6 more out take 2.
    assert rates.cycles(8, 10) == (4, 4 + 2)
    assert rates.cycles(12, 4) == (4 + 1, 4)
    assert rates.carried(8, 10, 5) == (8, 4 + 3)
    assert rates.carried(8, 10, 3) == (6, 3)
    # Kernel 1 waits for 9 of 12 bytes: kernel 0 took one cycle, and nothing comes in.
    assert Copies([(0, 1, 12)], [(0, 0), (0, 0)], [0, 0]).cycles([1, 1], rates) == 1 + 3 + 1


def turns(*, frozen):
    """Two weights of 60 pages that are read in turn."""
    builder = TraceBuilder("turns")
    weights = [builder.tensor(name, 60 * PAGE, TensorKind.WEIGHT, persistent=True) for name in "vw"]
    for weight in weights:
        builder.kernel("Read", 5000, [weight], [] if frozen else [weight], Phase.FORWARD)
    return builder.build()


def planned_for(trace, pages, *host):
    planned = planned_machine(machine(pages, *host), OWN)
    return planned, demand_of(trace, planned.clock_hz, planned.page_bytes)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_needed_last_leaves_and_no_more_of_it_than_has_to(frozen):
    # Of 120 pages 100 have room: 20 of the idle weight leave before each kernel from the second.
    trace = turns(frozen=frozen)
    planned, demand = planned_for(trace, 100)
    copies = copies_of(Forecast(demand, planned), planned.gpu_bytes)
    assert copies.into == [(0, 0), (0, 0), (1, 20 * PAGE), (2, 20 * PAGE)]
    left = [(1, 1), (2, 2), (3, 3)]
    assert copies.out == ([] if frozen else [(start, due, 20 * PAGE) for start, due in left])
    assert copies.free_bytes == [40 * PAGE, 0, 0, 0]


def test_what_is_frozen_gives_room_as_soon_as_it_is_not_used():
    # v has 60 of 100 pages and is not used while w, of 30, is; 20 more pages of u push 10 of v out later.
    builder = TraceBuilder("idle")
    names = {"v": 60, "w": 30, "u": 20}
    v, w, u = (
        builder.tensor(name, pages * PAGE, TensorKind.WEIGHT, persistent=True)
        for name, pages in names.items()
    )
    for used in ([v], [w], [w, u]):
        builder.kernel("Read", 5000, used, [], Phase.FORWARD)
    trace = builder.build()
    planned, demand = planned_for(trace, 100)
    copies = copies_of(Forecast(demand, planned), planned.gpu_bytes)
    assert copies.out == []
    assert copies.free_bytes[:3] == [40 * PAGE, (10 + 10) * PAGE, 0]


@pytest.mark.parametrize(("keeps_copies", "leaving"), [(False, 7), (True, 5)])
def test_what_nothing_has_written_since_it_came_leaves_without_a_copy(keeps_copies, leaving):
    # v and w come in turn, all of the other leaves, and their second uses write them. From the second
    # iteration on that is one copy out for two uses.
    builder = TraceBuilder("rounds")
    weights = [builder.tensor(name, 60 * PAGE, TensorKind.WEIGHT, persistent=True) for name in "vw"]
    for written in (False, True):
        for weight in weights:
            builder.kernel("Use", 5000, [weight], [weight] if written else [], Phase.FORWARD)
    trace = builder.build()
    planned, demand = planned_for(trace, 60)
    copies = copies_of(Forecast(demand, planned), planned.gpu_bytes, keeps_copies)
    assert sum(size for *_, size in copies.out) == leaving * 60 * PAGE


def test_what_is_dropped_is_not_copied():
    trace = trace_of({"x*": 1, "a": 60, "b": 60}, [(1, "x", "a"), (5, "", "b"), (5, "b", ""), (7, "a", "")])
    planned, demand = planned_for(trace, 100)
    drops = [Dropped(1, 1, 3, trace.kernels[:1])]
    copied, dropped = (copies_of(Forecast(demand, planned, some), planned.gpu_bytes) for some in ((), drops))
    assert sum(size for *_, size in copied.out) == 2 * 21 * PAGE  # 121 pages, twice
    assert dropped.out == []
    assert {size for _, size in dropped.into} == {0}


def rounds(number, layers=4, pages=30, forward=8000, backward=16_000):
    """Rounds of layers whose outputs are made from a weight alone, and read backwards."""
    names = [[f"{place}.{layer}" for layer in range(layers)] for place in range(number)]
    kernels = []
    for outputs in names:
        kernels += [(forward, "x", name) for name in outputs]
        kernels += [(backward, name, "") for name in reversed(outputs)]
    return trace_of({"x*": 1} | {name: pages for row in names for name in row}, kernels)


@pytest.mark.parametrize("number", [1, 4])
def test_all_rounds_wait_for_their_copies(number):
    # Of 121 pages 65 have room. 26 pages of the first output have to be gone before the third kernel and 30
    # of the first two before the fourth: 8 leave during the second, 8 more during the third. Of 26 and 30
    # that return, 16 come during the sixth kernel, which has room for them, and 16 during the seventh.
    trace = rounds(number)
    planned, demand = planned_for(trace, 65)
    forecast = Forecast(demand, planned)
    waits = (26 - 8) + (30 - 8) + (26 - 16) + (30 - 16)
    found = copied_cycles(forecast, planned, demand.cycles.tolist())
    assert found == number * (4 * 8 + 4 * 16 + waits) * 1000


def test_what_host_memory_cannot_hold_goes_at_the_rate_of_the_ssd():
    # 20 pages each way before each kernel, of which 15 have room in the host. The SSD takes 4 cycles a byte.
    trace = turns(frozen=False)
    found = []
    for host in (100, 15):
        planned, demand = planned_for(trace, 100, host)
        forecast = Forecast(demand, planned)
        found.append(copied_cycles(forecast, planned, demand.cycles.tolist()))
    assert found == [2 * (5 + 20) * 1000, 2 * (5 + 20) * 1000]
    planned, demand = planned_for(trace, 100, 5)
    forecast = Forecast(demand, planned)
    assert copied_cycles(forecast, planned, demand.cycles.tolist()) == 2 * (5 + 4 * 15) * 1000


@pytest.mark.parametrize(
    ("number", "pages", "dropped"),
    [
        # Two of four outputs fit with the weight: the first two of each round are made again, 16,000 cycles
        # in place of 64,000 of waits. Seen alone, the worst kernel waits for 24,000, in one of four rounds.
        (1, 65, ["0.0", "0.1"]),
        (4, 65, [f"{place}.{layer}" for layer in (0, 1) for place in range(4)]),
        # With 95 pages each round waits for 10,000 cycles, and one output takes 8,000. With 125 none waits.
        (4, 95, [f"{place}.0" for place in range(4)]),
        (4, 125, []),
    ],
)
def test_rounds_make_the_same_again_where_links_are_busy_in_all_of_them(number, pages, dropped):
    trace = rounds(number)
    planned, demand = planned_for(trace, pages)
    found = [trace.tensors[drop.tensor].name for drop in chosen_drops(demand, planned)]
    assert sorted(found) == sorted(dropped)
