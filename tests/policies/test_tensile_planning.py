"""TENSILE's planner: small cases worked out by hand, in ms and MB; the link carries 12 MB in a ms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.designs.tensile.planner import (
    Residents,
    TensileOptions,
    plan_jobs,
    swap_across,
    swap_within,
)
from g10sim.policies.designs.tensile.replanning import has_drifted, predicted, smoothed, spread, to_plan
from g10sim.policies.interface.moves import Evict, Fetch
from g10sim.policies.interface.plan import Planned
from g10sim.policies.planning.channel import Channel, Interval
from g10sim.policies.planning.swapping.peak import choose_recomputation
from g10sim.policies.planning.swapping.schedule import AccessSequence, JobSchedule, Recomputed
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder

RATE = 12
ROOMY = 10**12


def trace_of(tensors, kernels):
    """A trace from {name: MB} ("*" behind a name: persistent) and (ms, inputs, outputs)."""
    builder, ids = TraceBuilder("tiny"), {}
    for key, size in tensors.items():
        kind = TensorKind.WEIGHT if key.endswith("*") else TensorKind.ACTIVATION
        ids[key.rstrip("*")] = builder.tensor(key.rstrip("*"), size, kind, persistent=key.endswith("*"))
    for number, (duration, inputs, outputs) in enumerate(kernels):
        reads, writes = ([ids[key] for key in keys.split()] for keys in (inputs, outputs))
        builder.kernel(f"op{number + 1}", duration, reads, writes)
    return builder.build()


def accesses_of(trace):
    return AccessSequence(
        trace, [kernel.duration for kernel in trace.kernels], [t.size_bytes for t in trace.tensors]
    )


def schedule_of(trace):
    channel = Channel()
    return JobSchedule(accesses_of(trace), channel, channel)


def planned(traces, free=ROOMY, target_bytes=None, **options):
    jobs = [accesses_of(trace) for trace in traces]
    return plan_jobs(jobs, TensileOptions(**options), RATE, free, target_bytes)


def times(swaps):
    return [(tuple(swap.out), tuple(swap.back)) for swap in swaps]


# T is made by op 1 and read by op 5; at the peak, op 3 reads s and makes x.
PEAK_IN_THIRD = trace_of(
    {"T": 60, "s": 1, "x": 30}, [(10, "", "T"), (10, "", "s"), (10, "s", "x"), (10, "", ""), (10, "T", "")]
)


def test_a_tensor_leaves_at_once_and_comes_back_at_the_last_moment():
    schedule = planned([PEAK_IN_THIRD]).schedules[0]
    assert times(schedule.swaps) == [((10, 15), (35, 40))]
    analysis = Residents(schedule, "physical")
    assert analysis.absence(schedule.swaps[0]) == [Interval(15, 35)]
    published = planned([PEAK_IN_THIRD], accounting="published").schedules[0]
    assert times(published.swaps) == [((10, 15), (35, 40))]
    assert Residents(published, "published").absence(published.swaps[0]) == [Interval(10, 40)]


def test_levels_are_counted_as_memory_is_taken_and_freed():
    schedule = schedule_of(PEAK_IN_THIRD)
    analysis = Residents(schedule, "physical")
    peak = analysis.peak
    assert (*peak, analysis.last_access(peak)) == (91, 20, 20)
    published = Residents(schedule, "published")
    assert published.peak == (91, 30)
    assert published.last_access(peak) == 0
    assert analysis.residents(20).tolist() == [0, 2, 1]
    (swap,) = swap_within(schedule, 0, 20, 5)
    analysis.add(swap)
    after = dict(zip(*(column.tolist() for column in analysis.levels()), strict=True))
    assert after == {0: 60, 10: 61, 15: 1, 20: 31, 30: 0, 35: 60, 40: 60, 50: 0}
    assert analysis.kernel_levels().tolist() == [60, 61, 31, 60, 60]
    assert (analysis.most(0, 20), analysis.most(15, 20), analysis.most(15, 36)) == (61, 1, 60)
    analysis.count(analysis.spans(swap, -1))
    assert analysis.peak == peak


def test_what_happens_at_one_time_counts_together():
    # Nobody reads a and b: they go when c and d come.
    kernels = [(10, "", "a b"), (10, "", "c d"), (10, "c d", "")]
    schedule = schedule_of(trace_of({"a": 40, "b": 5, "c": 20, "d": 20}, kernels))
    assert Residents(schedule, "physical").kernel_levels().tolist() == [45, 40, 40]


def test_what_is_computed_again_takes_its_scratch_memory_at_its_start():
    trace = RECOMPUTABLE
    schedule = schedule_of(trace)
    schedule.recomputed.append(Recomputed(1, drop=2, use=4, extra_bytes=7))
    analysis = Residents(schedule, "physical")
    after = dict(zip(*(column.tolist() for column in analysis.levels()), strict=True))
    assert after == {0: 250, 2: 450, 5: 210, 8: 10, 11: 257, 12: 250, 13: 0}


def test_the_largest_tensor_is_swapped_within_the_iteration_where_it_cannot_stay_away_across():
    # The first kernel needs W, which is idle as long as a is.
    kernels = [(10, "W", "a"), (10, "", "s"), (10, "s", "x"), (10, "", ""), (10, "W a", "")]
    trace = trace_of({"W*": 60, "a": 48, "s": 1, "x": 30}, kernels)
    assert [swap.tensor for swap in planned([trace], target_bytes=110).schedules[0].swaps] == [0]


def test_kernels_without_tensors_need_no_memory():
    schedule = schedule_of(trace_of({"unused*": 5}, [(10, "", ""), (10, "", "")]))
    analysis = Residents(schedule, "physical")
    assert (analysis.peak.size_bytes, analysis.kernel_levels().tolist()) == (0, [0, 0])


def test_tensors_get_their_memory_when_they_are_made():
    schedule = schedule_of(
        trace_of({"w*": 5, "a": 60, "b": 40}, [(10, "w", "a"), (0, "a", ""), (10, "a", "b")])
    )
    assert schedule.plan((), "").moves == (Planned(0, Fetch(1)), Planned(2, Fetch(2)))


@pytest.mark.parametrize(
    ("taken", "expected"),
    [([(35, 40), (30, 35)], [((10, 15), (25, 30))]), ([(15, 40)], []), ([(10, 20)], [])],
)
def test_other_transfers_come_first(taken, expected):
    schedule = schedule_of(PEAK_IN_THIRD)
    for start, end in taken:
        schedule.out.take(Interval(start, end), 50)
    assert times(swap_within(schedule, 0, 20, 5)) == expected


# T is made by op 1, read by op 3 and op 6.
READ_TWICE = trace_of(
    {"T": 72, "s": 1},
    [(10, "", "T"), (10, "", ""), (10, "T", ""), (10, "", "s"), (10, "s", ""), (10, "T", "")],
)


def test_a_tensor_that_cannot_return_in_time_leaves_after_that_access():
    assert times(swap_within(schedule_of(READ_TWICE), 0, 40, 6)) == [((30, 36), (44, 50))]
    schedule = schedule_of(READ_TWICE)
    assert swap_within(schedule, 0, 20, 6) == []
    assert schedule.out.taken == ()


def test_a_tensor_leaves_again_between_later_accesses():
    swaps = swap_within(schedule_of(READ_TWICE), 0, 40, 4)
    assert times(swaps) == [((10, 14), (16, 20)), ((30, 34), (46, 50))]
    # What does not help at the peak is not done: only the second absence covers time 40.
    analysis = Residents(schedule_of(READ_TWICE), "physical")
    schedule = schedule_of(READ_TWICE)
    relieving = swap_within(schedule, 0, 40, 6, lambda swaps: analysis.is_away(swaps, 40))
    assert times(relieving) == [((30, 36), (44, 50))]
    assert swap_within(schedule_of(READ_TWICE), 0, 40, 4, lambda swaps: False) == []


def parameter(first_use):
    """A weight that is read and updated by the last of six kernels of 10 ms, and read by one before."""
    kernels = [(10, "", "")] * 6
    kernels[first_use] = (10, "W", "")
    kernels[5] = (10, "W", "W")
    return trace_of({"W*": 60}, kernels)


def test_a_parameter_that_the_first_kernel_needs_cannot_stay_away_across_iterations():
    unused = trace_of({"W*": 60}, [(10, "", "")])
    assert swap_across(schedule_of(unused), 0, 5) == []
    schedule = schedule_of(parameter(0))
    assert swap_across(schedule, 0, 5) == []
    assert schedule.out.taken == ()


def test_a_parameter_stays_away_from_the_optimizer_to_its_first_use():
    trace = parameter(1)
    schedule = schedule_of(trace)
    analysis = Residents(schedule, "physical")
    assert analysis.levels()[1][0] == 60
    (swap,) = swap_across(schedule, 0, 5)
    assert (swap.out, swap.back, swap.wraps) == ((60, 65), (5, 10), True)
    schedule.swaps.extend([swap])
    assert analysis.absence(swap) == [Interval(5, 5)]  # it leaves until 5 and comes back from 5 on
    schedule = schedule_of(trace)
    (swap,) = swap_across(schedule, 0, 2)
    assert (swap.out, swap.back) == ((60, 62), (8, 10))
    analysis.add(swap)
    schedule.swaps.append(swap)
    levels = dict(zip(*(column.tolist() for column in analysis.levels()), strict=True))
    assert [levels[time] for time in (0, 2, 8)] == [60, 0, 60]
    published = Residents(schedule, "published")
    published_levels = dict(zip(*(column.tolist() for column in published.levels()), strict=True))
    assert [published_levels[time] for time in (0, 10)] == [0, 60]


def test_an_absence_across_the_border_needs_both_copies():
    schedule = schedule_of(parameter(1))
    schedule.out.take(Interval(2, 10), 60)
    assert swap_across(schedule, 0, 5) == []
    assert schedule.out.taken == ((2, 10),)


def test_only_parameters_stay_away_and_only_if_they_may():
    adam = trace_of(
        {"m*": 24, "a": 60, "b": 1},
        [(10, "", ""), (10, "", "a"), (10, "a", "b"), (10, "b a", ""), (10, "", ""), (10, "m", "m")],
    )
    result = planned([adam])
    assert [(s.tensor, s.wraps) for s in result.schedules[0].swaps] == [(0, True)]
    assert (result.unplanned_peak_bytes, result.peak_bytes) == (85, 61)
    without = planned([adam], across_iterations=False)
    assert without.schedules[0].swaps == []
    assert without.peak_bytes == 85


# a is made from the weight and read at the end; between them, b is alive.
RECOMPUTABLE = trace_of(
    {"w*": 10, "a": 240, "b": 200}, [(2, "w", "a"), (3, "w", "b"), (3, "b", ""), (3, "w", ""), (2, "w a", "")]
)


def test_recomputation_comes_last_and_only_while_the_peak_does_not_fit():
    assert planned([RECOMPUTABLE], free=450).schedules[0].recomputed != []
    for free, wanted in ((451, True), (ROOMY, True), (450, False), (1, False)):
        result = planned([RECOMPUTABLE], free=free, recomputation=wanted)
        assert result.schedules[0].recomputed == []
        assert result.peak_bytes == 450
    # With time for the copies, the same tensor is swapped instead.
    slow = trace_of(
        {"w*": 10, "a": 240, "b": 200},
        [(20, "w", "a"), (30, "", ""), (30, "w", "b"), (30, "b", ""), (30, "w", ""), (20, "w a", "")],
    )
    schedule = planned([slow], free=1).schedules[0]
    assert [swap.tensor for swap in schedule.swaps if not swap.wraps] == [1]


def test_a_recomputed_tensor_is_away_from_its_last_access_to_its_next():
    result = planned([RECOMPUTABLE], free=450)
    (entry,) = result.schedules[0].recomputed
    assert (entry.tensor, entry.drop, entry.use, entry.extra_bytes) == (1, 1, 4, 0)
    assert (result.unplanned_peak_bytes, result.peak_bytes) == (450, 250)


def test_the_most_bytes_for_the_time_are_recomputed_first():
    trace = trace_of(
        {"w*": 1, "a": 100, "b": 60, "c": 1},
        [(10, "w", "a"), (1, "w", "b"), (10, "w", "c"), (10, "c a", ""), (10, "b", "")],
    )
    schedule = schedule_of(trace)
    analysis = Residents(schedule, "physical")
    peak = analysis.peak
    assert peak.time == 11
    found = choose_recomputation(schedule, Recomputability(trace), peak, analysis.residents(11))
    assert [entry.tensor for entry in found] == [2, 1]  # 60 MB in 1 ms before 100 MB in 10 ms
    schedule.swaps.extend(swap_across(schedule, 0, 1))
    again = choose_recomputation(schedule, Recomputability(trace), peak, analysis.residents(11))
    assert (again == []) == bool(schedule.swaps)


@pytest.mark.parametrize(("times", "order"), [((1, 10), [1, 2]), ((10, 1), [2, 1])])
def test_the_most_bytes_for_the_time_come_first_in_either_order(times, order):
    kernels = [(times[0], "w", "a"), (times[1], "w", "b"), (10, "w", "c"), (10, "c a", ""), (10, "b", "")]
    schedule = schedule_of(trace_of({"w*": 1, "a": 80, "b": 80, "c": 1}, kernels))
    analysis = Residents(schedule, "physical")
    peak = analysis.peak
    rules = Recomputability(schedule.accesses.trace)
    found = choose_recomputation(schedule, rules, peak, analysis.residents(peak.time))
    assert [entry.tensor for entry in found] == order


def test_planning_ends_after_a_hundred_rounds_that_lower_the_peak_by_next_to_nothing():
    names = [f"t{number}" for number in range(105)]
    kernels = [(1, "", name) for name in names] + [(10, "weight", "x")] + [(1, name, "") for name in names]
    trace = trace_of({"weight*": 10**6, "x": 30} | dict.fromkeys(names, 1), kernels)
    assert len(planned([trace]).schedules[0].swaps) == 100


def test_the_peaks_of_jobs_add_up_and_a_target_ends_planning():
    both = planned([PEAK_IN_THIRD, PEAK_IN_THIRD])
    assert both.unplanned_peak_bytes == 2 * 91
    assert both.peak_bytes == 2 * 61
    half = planned([PEAK_IN_THIRD, PEAK_IN_THIRD], target_bytes=160)
    assert [len(schedule.swaps) for schedule in half.schedules] == [1, 0]
    assert planned([PEAK_IN_THIRD], target_bytes=91).schedules[0].swaps == []


def test_jobs_that_share_a_channel_wait_for_each_other():
    apart = planned([PEAK_IN_THIRD] * 3, channels="per_job").schedules
    assert {tuple(schedule.swaps[0].out) for schedule in apart} == {(10, 15)}
    together = planned([PEAK_IN_THIRD] * 3, channels="shared").schedules
    swaps = [times(schedule.swaps) for schedule in together]
    assert swaps == [[((10, 15), (35, 40))], [((15, 20), (30, 35))], []]


def test_a_divided_channel_leaves_each_job_what_others_do_not_take():
    # Alone a copy takes 5 ms; two jobs meet in the same direction half of the time: 2/3 of the rate, 7.5 ms.
    # With both directions at once they always may: 1/2, 10 ms. At 1/3, 15 ms are too long before the peak.
    for count, duplex, swaps in (
        (1, False, [((10, 15), (35, 40))]),
        (2, False, [((10, 18), (32, 40))]),
        (2, True, [((10, 20), (30, 40))]),
        (3, True, []),
    ):
        schedules = planned([PEAK_IN_THIRD] * count, channels="divided", duplex=duplex).schedules
        assert [times(schedule.swaps) for schedule in schedules] == [swaps] * count


def test_both_directions_at_once_only_with_two_channels():
    one, out, back = Channel(), Channel(), Channel()
    one.take(Interval(35, 40), 50)
    out.take(Interval(35, 40), 50)
    accesses = accesses_of(PEAK_IN_THIRD)
    assert times(swap_within(JobSchedule(accesses, one, one), 0, 20, 5)) == [((10, 15), (30, 35))]
    assert times(swap_within(JobSchedule(accesses, out, back), 0, 20, 5)) == [((10, 15), (35, 40))]
    for duplex in (False, True):
        schedule = planned([PEAK_IN_THIRD], duplex=duplex).schedules[0]
        assert (schedule.out is not schedule.back) == duplex


def test_the_quota_bounds_swaps_within_iterations():
    tensors = {f"t{i}": 60 - i for i in range(4)} | {"s": 1, "x": 9}
    make = [(10, "", f"t{i}") for i in range(4)]
    use = [(10, f"t{i}", "") for i in range(4)]
    trace = trace_of(tensors, [*make, (10, "", "s"), (10, "s", "x"), *use])
    assert len({swap.tensor for swap in planned([trace]).schedules[0].swaps}) == 4
    assert len({swap.tensor for swap in planned([trace], swap_share=0.4).schedules[0].swaps}) == 2


def test_slices_of_other_jobs_count_for_all_kernels_in_proportion():
    # Kernels of 10, 30 and 60 cycles; slices of 100 cycles fell into the second.
    assert spread([10, 130, 60], [10, 30, 60]) == (20, 60, 120)
    assert spread([7, 9], [7, 9]) == (7, 9)
    assert spread([0], [0]) == (0,)


def test_times_have_drifted_when_their_sum_has():
    assert has_drifted([100, 100], [131, 131])
    assert not has_drifted([100, 100], [129, 129])
    assert has_drifted([100, 100], [69, 69])
    assert not has_drifted([100, 100], [71, 71])
    assert not has_drifted([100, 100], [190, 10])
    assert smoothed([100, 1000], [200, 0]) == (190, 100)


def test_predictions_are_off_by_at_most_the_error_and_by_seed():
    exact = [1000] * 200
    assert predicted(exact, 0.0, 3, 0) == tuple(exact)
    some = predicted(exact, 0.5, 3, 0)
    assert 500 <= min(some) < 600
    assert 1400 < max(some) <= 1500
    assert some == predicted(exact, 0.5, 3, 0)
    assert len({some, predicted(exact, 0.5, 4, 0), predicted(exact, 0.5, 3, 1)}) == 3
    assert predicted([0], 0.5, 3, 0) == (0,)


def test_moves_say_kernel_and_delay():
    result = planned([PEAK_IN_THIRD])
    plan = to_plan(result.schedules[0], "host")
    found = [entry for entry in plan.moves if entry.move.tensor == 0]
    assert found == [Planned(0, Fetch(0)), Planned(1, Evict(0)), Planned(3, Fetch(0), 5)]


intervals = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 10)), max_size=12)


@given(intervals, st.integers(0, 90), st.integers(1, 60), st.integers(1, 12))
def test_searches_find_the_first_and_last_free_stretch(taken, start, span, length):
    channel, busy, kept = Channel(), set(), []
    for begin, size in taken:
        cells = {(begin + i) % 100 for i in range(size)}
        if not cells & busy:
            busy |= cells
            kept.append(Interval(begin, begin + size))
            channel.take(kept[-1], 100)
    window = Interval(start, start + span)
    free = [
        begin
        for begin in range(start, start + span - length + 1)
        if not busy & {(begin + i) % 100 for i in range(length)}
    ]
    first, last = channel.earliest(window, length, 100), channel.latest(window, length, 100)
    expected = (free[0], free[-1]) if free else (None, None)
    assert (first and first.start, last and last.start) == expected
    for interval in kept:
        channel.give_back(interval, 100)
    assert channel.taken == ()


@st.composite
def traces(draw):
    names = [f"t{i}" for i in range(draw(st.integers(2, 7)))]
    sizes = {name + "*" * draw(st.booleans()): draw(st.integers(1, 60)) for name in names}
    some = st.lists(st.sampled_from(names), max_size=3, unique=True).map(" ".join)
    kernels = draw(st.lists(st.tuples(st.integers(1, 30), some, some), min_size=2, max_size=12))
    return trace_of(sizes, kernels)


@settings(max_examples=150, deadline=None)
@given(st.lists(traces(), min_size=1, max_size=3), st.booleans(), st.sampled_from(["physical", "published"]))
def test_transfers_exclude_each_other_and_leave_accesses_alone(workloads, duplex, accounting):
    result = planned(workloads, free=1, duplex=duplex, accounting=accounting)
    assert result.peak_bytes <= result.unplanned_peak_bytes
    analyses = [Residents(schedule, accounting) for schedule in result.schedules]
    assert result.peak_bytes == sum(analysis.peak.size_bytes for analysis in analyses)
    for schedule in result.schedules:
        accesses, period = schedule.accesses, schedule.accesses.period
        used, away = {"out": [], "back": []}, []
        for swap in schedule.swaps:
            gone = swap.back.end - swap.out.start + period * swap.wraps
            away += [(swap.tensor, (swap.out.start + time) % period) for time in range(gone)]
            closed = [set(range(*accesses.interval(use))) for use in accesses.uses[swap.tensor]]
            for name, copy in (("out", swap.out), ("back", swap.back)):
                cells = [time % period for time in range(*copy)]
                used[name if duplex else "out"] += cells
                assert not any(set(cells) & access for access in closed)
            assert swap.back.end <= accesses.interval(swap.use).start
        for cells in (*used.values(), away):
            assert len(cells) == len(set(cells))
