"""PressureFit: which tensors leave, when they are asked for, and what is computed again, by hand."""

from pathlib import Path

import pytest
from machines import PAGE, iteration_times, machine, simulate, trace_of

from g10sim.analysis.bound.demand import demand_of
from g10sim.config.behaviour import BehaviourSpec
from g10sim.config.presets import load_system
from g10sim.policies.designs.pressure.forecast import Dropped, Reruns
from g10sim.policies.designs.pressurefit.choosing import TaskReplay, extent_bytes, fastest
from g10sim.policies.designs.pressurefit.pressurefit import ModelBlocks, PressureFit
from g10sim.policies.designs.pressurefit.residency import RULES, GapChoice, Windows
from g10sim.policies.designs.pressurefit.tasks import Programs, block_numbers, split_numbers
from g10sim.policies.interface.machine import planned_machine
from g10sim.policies.planning.limit import TimeLimit
from g10sim.trace.format import load_trace
from g10sim.trace.model import Kernel, Phase, Tensor, TensorKind, Trace
from g10sim.trace.repetition import Block, Repeated
from g10sim.trace.synthetic import TraceBuilder

INTO, OUT = "host_to_gpu_bytes", "gpu_to_host_bytes"


def last_of(records):
    """Time of the last iteration, and the bytes that moved in it."""
    traffic = records.iterations[-1].traffic
    return iteration_times(records)[-1], {name: size for name, size in traffic.items() if size}


def programs(trace, pages):
    there = planned_machine(machine(pages), BehaviourSpec())
    return Programs(demand_of(trace, there.clock_hz, there.page_bytes), there, block_numbers(trace))


def program(trace, pages):
    return programs(trace, pages).of(())


def leaving(found):
    """Names of what leaves, with a copy or without."""
    return [(found._program.gaps[number].tensor, number in found.clean) for number in sorted(found.cut)]


def ring(ticks):
    """Four weights of ten pages, each read by one kernel."""
    return trace_of({f"w{i}*": 10 for i in range(4)}, [(ticks, f"w{i}", "") for i in range(4)])


def test_weights_come_for_each_use_and_leave_without_a_copy():
    """A weight comes in 10,000 cycles while a kernel of 20,000 runs."""
    records = simulate(ring(20_000), machine(20), PressureFit(), iterations=4)
    assert last_of(records) == (80_000, {INTO: 40 * PAGE})


def test_the_link_is_the_limit_where_kernels_are_short():
    records = simulate(ring(1000), machine(20), PressureFit(), iterations=4)
    assert last_of(records) == (40_000, {INTO: 40 * PAGE})


def test_nothing_moves_that_fits():
    records = simulate(ring(1000), machine(40), PressureFit(), iterations=3)
    assert last_of(records) == (4000, {})


def passes(pages=10):
    """Activations a and b are made, something large comes, and both are read again."""
    kernels = [(20_000, "", "a"), (20_000, "a", "b"), (20_000, "", "c"), (20_000, "c", "")]
    return trace_of({"a": pages, "b": pages, "c": 20}, [*kernels, (20_000, "b", ""), (20_000, "a", "")])


def test_no_more_leaves_than_the_worst_task_lacks():
    """40 pages, room for 30: of two equal tensors the one leaves that is used first last.

    If it has to be back a kernel early, the worst kernel lacks as much as before, and the other leaves, too.
    """
    tight, early = (
        GapChoice(program(passes(), 30), stall_first=True, headroom=ahead) for ahead in (False, True)
    )
    assert leaving(tight) == [(1, False)]
    assert leaving(early) == [(0, False), (1, False)]


def test_nothing_leaves_where_nothing_is_idle():
    """Both tensors are used by each kernel after they are made: memory lacks five pages, whatever leaves."""
    planned = program(trace_of({"a": 10, "b": 10}, [(1000, "", "a"), (1000, "a", "b")]), 15)
    assert not GapChoice(planned, stall_first=True, headroom=True).cut


def test_activations_leave_with_a_copy_and_return():
    records = simulate(passes(), machine(30), PressureFit(), iterations=3)
    time, traffic = last_of(records)
    assert traffic in ({INTO: moved * PAGE, OUT: moved * PAGE} for moved in (10, 20))
    assert 130_000 <= time <= 150_000


def test_clean_tensors_leave_before_others():
    """A weight and an activation are idle while memory lacks 10 pages; the weight is in host memory."""
    kernels = [(20_000, "w", "a"), (20_000, "", "c"), (20_000, "c", ""), (20_000, "a w", "")]
    trace = trace_of({"w*": 10, "a": 10, "c": 20}, kernels)
    found = GapChoice(program(trace, 30), stall_first=False, headroom=False)
    assert leaving(found) == [(trace.ids_of_given[0], True)]


def test_writers_are_found_in_every_repetition():
    """Three rounds, each of which makes a tensor and reads it later, in kernels made on demand."""
    tensors = tuple(Tensor(number, f"a{number}", PAGE, TensorKind.ACTIVATION, False) for number in range(6))
    ids = [((), (0,)), ((), (1,)), ((1,), ()), ((0,), ())]
    kernels = tuple(Kernel(number, "k", 1000, *both) for number, both in enumerate(ids))
    trace = Trace("rounds", 1, 10**9, tensors, Repeated([Block(kernels, 3, since=0, shift=2)]))
    assert [(gap.tensor, gap.written) for gap in program(trace, 2).gaps] == [(0, 0), (2, 4), (4, 8)]


@pytest.mark.parametrize(
    ("name", "asked"),
    [("latest_safe", {9: 7, 10: 8}), ("packed_fifo", {9: 6, 10: 8})],
    ids=["alone", "queued"],
)
def test_rules_ask_for_each_by_itself_or_one_after_another(name, asked):
    """b and a are due after 60,000 and 65,000 cycles, and each takes 10,000: kernels start every 5000."""
    kernels = [(20_000, "", "a b"), (5000, "", "c"), *[(5000, "c", "")] * 7, (5000, "b", ""), (5000, "a", "")]
    planned = program(trace_of({"a": 10, "b": 10, "c": 30}, kernels), 30)
    residency = GapChoice(planned, stall_first=True, headroom=False)
    rule = next(rule for rule in RULES if rule.__name__ == name)
    found = rule(Windows(planned, residency))
    assert {planned.gaps[number].end: task for number, task in found.items()} == asked


def test_a_plan_that_copies_in_time_takes_the_time_of_its_kernels():
    planned = program(ring(20_000), 20)
    residency = GapChoice(planned, stall_first=True, headroom=True)
    windows = Windows(planned, residency)
    times = {rule.__name__: TaskReplay(planned, residency, rule(windows)).cycles for rule in RULES}
    assert times["packed_fifo"] == 80_000


def blocks(count=3):
    """A model whose blocks each keep 10 pages for the backward pass, in three kernels and four."""
    builder = TraceBuilder("blocks")
    states = [builder.tensor("x0", PAGE, TensorKind.INPUT)]
    builder.kernel("Embed", 10_000, [], states, Phase.FORWARD, layer="embed")
    kept = []
    for number in range(count):
        inner = builder.tensor(f"inner{number}", 10 * PAGE, TensorKind.ACTIVATION)
        state = builder.tensor(f"x{number + 1}", PAGE, TensorKind.ACTIVATION)
        builder.kernel("Up", 10_000, [states[-1]], [inner], Phase.FORWARD, layer=f"layers.{number}")
        builder.kernel("Down", 10_000, [inner], [state], Phase.FORWARD, layer=f"layers.{number}")
        kept.append(inner)
        states.append(state)
    gradient = builder.tensor("g", PAGE, TensorKind.GRADIENT)
    builder.kernel("Loss", 10_000, [states[-1]], [gradient], Phase.FORWARD, layer="loss")
    for number in reversed(range(count)):
        used = [kept[number], states[number], gradient]
        following = builder.tensor(f"g{number}", PAGE, TensorKind.GRADIENT)
        builder.kernel("Back", 20_000, used, [following], Phase.BACKWARD, layer=f"layers.{number}")
        gradient = following
    return builder.build()


def test_blocks_are_computed_again_in_an_evenly_spread_share():
    """The last block's backward pass follows its forward pass: two of three blocks may be computed again."""
    trace = blocks()
    found = ModelBlocks(trace, programs(trace, 20).numbers)
    names = [[trace.tensors[drop.tensor].name for drop in found.drops(share)] for share in (0.0, 0.5, 1.0)]
    assert names == [[], ["inner1"], ["inner0", "inner1"]]


def test_what_is_computed_again_does_not_move():
    """Eleven kernels of 130,000 cycles together; two blocks' first kernels run again."""
    records = simulate(blocks(), machine(20), PressureFit(recompute=1.0), iterations=3)
    time, traffic = last_of(records)
    assert traffic == {}
    assert time == 140_000 + 20_000


def test_kernels_are_tasks_where_a_block_does_not_fit():
    """Blocks read three weights of ten pages, one in each kernel; memory has room for two of them."""
    builder = TraceBuilder("wide")
    state = builder.tensor("x", PAGE, TensorKind.INPUT)
    builder.kernel("Embed", 20_000, [], [state], Phase.FORWARD, layer="embed")
    for number in range(6):
        weight = builder.tensor(f"w{number}", 10 * PAGE, TensorKind.WEIGHT, persistent=True)
        read, state = [weight, state], builder.tensor(f"x{number}", PAGE, TensorKind.ACTIVATION)
        builder.kernel("Product", 20_000, read, [state], Phase.FORWARD, layer=f"layers.{number // 3}")
    trace = builder.build()
    assert block_numbers(trace) == [0, 1, 1, 1, 2, 2, 2]
    assert program(trace, 22).too_large == {1, 2}
    assert not program(trace, 34).too_large
    assert split_numbers([0, 1, 1, 1, 2, 2, 2], {1}) == [0, 1, 2, 3, 4, 4, 4]
    records = simulate(trace, machine(22), PressureFit(), iterations=4)
    assert last_of(records) == (140_000, {INTO: 60 * PAGE})


def test_the_fastest_share_is_chosen():
    """With a slow link blocks are computed again, with a fast one their data leave."""
    times = {}
    for share in (0.0, 1.0, "fastest"):
        records = simulate(blocks(), machine(16, pcie="0.1 GB/s"), PressureFit(recompute=share), iterations=3)
        times[share] = last_of(records)[0]
    assert times["fastest"] == min(times.values()) < times[0.0]


def test_scratch_of_kernels_that_run_again_goes_when_none_of_them_reads_it():
    """d comes from c, c from b, b from a: of 10, 20 and 10 pages of scratch most 30 are there at a time."""
    kernels = [(1000, "w", "a"), (1000, "a", "b"), (1000, "b", "c"), (1000, "c", "d"), (1000, "", "e")]
    trace = trace_of({"w*": 1, "a": 10, "b": 20, "c": 10, "d": 5, "e": 40}, [*kernels, (1000, "d e", "")])
    demand = demand_of(trace, 10**9, PAGE)
    reruns = Reruns(demand, [Dropped(trace.kernels[3].outputs[0], 4, 5, trace.kernels[:4])])
    assert (reruns.scratch_bytes() // PAGE).tolist() == [0, 0, 0, 0, 0, 40]
    assert (reruns.most_scratch_bytes() // PAGE).tolist() == [0, 0, 0, 0, 0, 30]


def test_addresses_are_counted_from_when_a_copy_starts_until_it_is_gone():
    """c comes first, at 0, then a above it, which stays; b is gone before c is made: 30 pages."""
    planned = program(passes(), 30)
    residency = GapChoice(planned, stall_first=True, headroom=False)
    replay = TaskReplay(planned, residency, Windows(planned, residency).latest_safe())
    assert extent_bytes(planned, replay) == 30 * PAGE


def test_addresses_repeat_after_an_iteration_with_its_waits():
    """The link takes 10,000 cycles for each weight, kernels 5000: three weights have room at a time."""
    planned = program(ring(5000), 30)
    residency = GapChoice(planned, stall_first=True, headroom=False)
    replay = TaskReplay(planned, residency, Windows(planned, residency).packed_fit())
    assert replay.cycles == 45_000
    assert extent_bytes(planned, replay) == 30 * PAGE


def test_a_plan_gives_up_memory_until_its_tensors_have_addresses():
    trace = load_trace(Path(__file__).parents[2] / "traces" / "vit-base-b512.g10t")
    there = planned_machine(load_system("a100-40g-g10-paper"), BehaviourSpec())
    demand = demand_of(trace, there.clock_hz, there.page_bytes)
    plan = fastest(Programs(demand, there, block_numbers(trace)), [()], TimeLimit(None))
    spanned = extent_bytes(plan.program, plan.replay)
    assert plan.program.capacity_bytes < spanned <= there.gpu_bytes
