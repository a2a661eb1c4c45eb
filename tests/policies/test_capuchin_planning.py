"""Capuchin's planner: small cases worked out by hand, in ms and MB; the link carries 12 MB in a ms."""

from dataclasses import replace
from itertools import pairwise

import pytest
from drawn import traces
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import trace_of as pages_trace

from g10sim.analysis.recomputation import Recomputability
from g10sim.policies.designs.capuchin.capuchin import Guidance
from g10sim.policies.designs.capuchin.planner import Hybrid
from g10sim.policies.designs.capuchin.recomputations import Recomputations
from g10sim.policies.designs.capuchin.swaps import GuidedSwap, Lanes, LeastCosts, access_pairs, trigger_at
from g10sim.policies.interface.moves import Fetch
from g10sim.policies.interface.plan import Planned
from g10sim.policies.planning.channel import Interval
from g10sim.policies.planning.swapping.schedule import AccessSequence, Recomputed

RATE = 12


def trace_of(tensors, kernels):
    """A trace from {name: MB} ("*" behind a name: persistent) and (ms, inputs, outputs)."""
    return pages_trace(tensors, kernels, page=1)


def accesses_of(trace):
    return AccessSequence(
        trace, [kernel.duration for kernel in trace.kernels], [t.size_bytes for t in trace.tensors]
    )


def planned(trace, target, **parameters):
    return Hybrid(accesses_of(trace), target, RATE, **parameters)


def pairs_over(accesses, kernel, least_bytes=0):
    """The pairs that a kernel is in between."""
    found = access_pairs(accesses, RATE, least_bytes)
    return [pair for pair in found if pair.evicted < kernel < pair.use]


def copies(found):
    return {
        swap.pair.tensor: (tuple(swap.out), tuple(swap.back), swap.trigger, swap.overhead_cycles)
        for swap in found.swaps
    }


# T (5 ms to copy) is made by kernel 0 and read by kernel 4; at the peak, kernel 2 reads s and makes x.
PEAK_IN_THIRD = trace_of(
    {"T": 60, "s": 1, "x": 30}, [(10, "", "T"), (10, "", "s"), (10, "s", "x"), (10, "", ""), (10, "T", "")]
)


def test_a_trigger_before_the_iteration_is_its_first_kernel_behind_the_swap():
    trace = trace_of({"T": 60}, [(1, "", "T"), (0, "", ""), (0, "", ""), (10, "", ""), (10, "T", "")])
    accesses = accesses_of(trace)
    (pair,) = pairs_over(accesses, 1)
    assert [trigger_at(accesses, pair, 1, time) for time in (-5, 0, 1, 11)] == [2, 2, 3, 4]


def test_free_time_is_what_both_copies_leave_between_two_accesses():
    accesses = accesses_of(PEAK_IN_THIRD)
    (pair,) = pairs_over(accesses, 2)
    assert (pair.tensor, pair.evicted, pair.use, pair.copy_cycles, pair.free_time) == (0, 0, 4, 5, 20)
    # Around kernel 4, which uses it, and around kernel 0 there is no pair.
    assert pairs_over(accesses, 4) == pairs_over(accesses, 0) == []
    assert pairs_over(accesses, 2, least_bytes=60) == [pair]
    assert pairs_over(accesses, 2, least_bytes=61) == []


def test_a_hidden_swap_leaves_at_once_and_comes_back_when_an_access_triggers_it():
    found = planned(PEAK_IN_THIRD, 61)
    # Back from 35 to 40; kernel 3, which starts at 30, triggers it.
    assert copies(found) == {0: ((10, 15), (35, 40), 3, 0)}
    assert (found.unplanned_peak_bytes, found.peak_bytes, found.is_enough) == (91, 61, True)
    # At 10, when s is made, T is just there: it cannot have left.
    assert not planned(PEAK_IN_THIRD, 40, recomputation=False).is_enough
    assert planned(PEAK_IN_THIRD, 91).swaps == ()


# Three tensors wait over kernel 3: a for the last kernel, b and c for ones before.
THREE = trace_of(
    {"a": 12, "b": 48, "c": 24, "x": 6},
    [
        (10, "", "a"),
        (10, "", "b"),
        (10, "", "c"),
        (10, "", "x"),
        (10, "x", ""),
        (10, "c", ""),
        (10, "b", ""),
        (10, "a", ""),
    ],
)


def test_the_longest_free_time_goes_first_and_no_more_than_needed():
    pairs = pairs_over(accesses_of(THREE), 3)
    assert [(pair.tensor, pair.free_time) for pair in pairs] == [(0, 58), (1, 32), (2, 16)]
    assert list(copies(planned(THREE, 90))) == []
    assert list(copies(planned(THREE, 84))) == [0]
    assert list(copies(planned(THREE, 77))) == [0, 1]


def test_copies_in_one_direction_wait_for_each_other():
    kernels = [(10, "", "p q"), (20, "", ""), (10, "", "x"), (4, "x", ""), (16, "", ""), (10, "p q", "")]
    found = planned(trace_of({"p": 96, "q": 96, "x": 150}, kernels), 192)
    # 8 ms each: out one after the other from 10 on, in one after the other until 60.
    assert copies(found) == {0: ((10, 18), (52, 60), 4, 0), 1: ((18, 26), (44, 52), 4, 0)}


def test_a_swap_that_hides_is_planned_before_any_that_costs_time():
    # a (4 ms to copy) leaves behind kernel 0, at 2 ms, and is back at 21 ms for kernel 6; kernel 2 makes b.
    kernels = [
        (2, "", "a"),
        (5, "", ""),
        (2, "", "b"),
        (10, "", ""),
        (1, "", ""),
        (1, "", ""),
        (1, "a b", ""),
    ]
    found = planned(trace_of({"a": 48, "b": 48}, kernels), 76)
    assert copies(found) == {0: ((2, 6), (17, 21), 3, 0)}


def test_copies_out_are_issued_when_the_link_is_free_for_them():
    kernels = [
        (10, "", "p q"),
        *[(5, "", "")] * 4,
        (10, "", "x"),
        (4, "x", ""),
        (16, "", ""),
        (10, "p q", ""),
    ]
    guidance = Guidance(planned(trace_of({"p": 96, "q": 96, "x": 150}, kernels), 192), 0.05)
    # The second copy begins at 18, while kernel 2 runs: when kernel 1 has ended.
    assert guidance.leaving == {0: [0], 1: [1]}


# a (20 ms to copy) is made in ``producer`` ms; beside it b is made, and read by the next kernel.
def exposed(producer):
    return trace_of(
        {"w*": 10, "a": 240, "b": 200},
        [(producer, "w", "a"), (3, "w", "b"), (3, "b", ""), (3, "w", ""), (50, "w a", "")],
    )


def test_what_cannot_hide_is_swapped_or_recomputed_whichever_costs_less():
    # Swapped, kernel 1 waits 20 ms for the copy out; in from the end of kernel 2 takes until 17 ms too late.
    swapped = planned(exposed(2), 300, recomputation=False)
    assert copies(swapped) == {1: ((2, 22), (8, 28), 3, 37)}
    (swap,) = swapped.swaps
    assert (swap.first, swap.last) == (1, 2)
    assert (swapped.peak_bytes, swapped.overhead_cycles) == (250, 37)
    recomputed = planned(exposed(2), 300)
    assert (recomputed.swaps, recomputed.overhead_cycles) == ((), 2)
    assert recomputed.schedule.recomputed == [Recomputed(1, 1, 4, 0)]
    # 37 ms are the limit up to which recomputation is cheaper.
    assert planned(exposed(36), 300).swaps == ()
    assert len(planned(exposed(38), 300).swaps) == 1


def test_a_tensor_is_away_no_longer_than_memory_is_short():
    kernels = [(2, "w", "a"), *[(3, "w", "")] * 2, (3, "w", "b"), (3, "b", ""), (3, "w", ""), (50, "w a", "")]
    found = planned(trace_of({"w*": 10, "a": 240, "b": 200}, kernels), 300, recomputation=False)
    # Kernel 3, at 8 ms, waits until a is out; it is copied back from the end of kernel 4, 17 ms too late.
    assert copies(found) == {1: ((2, 22), (14, 34), 5, 14 + 17)}
    assert [(swap.first, swap.last) for swap in found.swaps] == [(3, 4)]


def test_small_tensors_are_neither_swapped_nor_recomputed():
    assert planned(exposed(2), 300, least_bytes=240).schedule.recomputed == [Recomputed(1, 1, 4, 0)]
    found = planned(exposed(2), 300, least_bytes=241)
    assert (found.swaps, found.schedule.recomputed, found.is_enough) == ((), [], False)


def test_a_swap_that_is_extended_gives_up_its_former_time_on_the_link():
    kernels = [(10, "", "a b"), (20, "", "c"), (10, "a", ""), (10, "", ""), (20, "b c", "")]
    found = planned(trace_of({"a": 60, "b": 120, "c": 240}, kernels), 336, recomputation=False)
    # a is away over kernel 1. b is to be away over kernel 2, then, as it is too much at 1 and 3, over all of
    # them: still right behind a, and kernels wait for 10 ms each way.
    assert copies(found) == {0: ((10, 15), (30, 35), 2, 5 + 5), 1: ((15, 25), (50, 60), 4, 10 + 10)}


def test_a_small_tensor_is_enough_where_little_has_to_be_saved():
    """Both save 12 MB for each ms that they are waited for, the larger one more than needed."""
    kernels = [(1, "", "large small"), (1, "", "x"), (1, "x", ""), (60, "", ""), (1, "large small", "")]
    trace = trace_of({"large": 240, "small": 12, "x": 300}, kernels)
    assert list(copies(planned(trace, 541, recomputation=False))) == [1]


def test_waits_are_counted_once():
    """Two tensors leave before one kernel: the second waits only for what its own copy adds."""
    kernels = [(1, "", "p q"), (1, "", "x"), (1, "x", ""), (60, "", ""), (1, "p q", "")]
    found = planned(trace_of({"p": 120, "q": 120, "x": 300}, kernels), 310, recomputation=False)
    # Out from 1 to 11 and from 11 to 21; kernel 1 would start at 1.
    assert sorted((tuple(swap.out), swap.out_wait, swap.back_wait) for swap in found.swaps) == [
        ((1, 11), 10, 0),
        ((11, 21), 10, 0),
    ]
    assert found.overhead_cycles == 20


# s is made from w, t from s; after the peak t is read first.
CHAIN = trace_of(
    {"w*": 1, "s": 120, "t": 120, "x": 200},
    [(1, "w", "s"), (1, "s", "t"), (2, "w", "x"), (2, "x", ""), (2, "t", ""), (2, "s", "")],
)


def test_what_is_recomputed_on_the_way_to_another_tensor_stays():
    chosen = Recomputations(accesses_of(CHAIN), Recomputability(CHAIN))
    assert all(chosen.add(entry, bool) for entry in (Recomputed(1, 2, 5, 0), Recomputed(2, 2, 4, 0)))
    assert chosen.entries() == [Recomputed(1, 2, 4, 0), Recomputed(2, 2, 4, 0)]
    found = planned(CHAIN, 250)
    assert sorted(entry.tensor for entry in found.schedule.recomputed) == [1, 2]
    assert all(entry.use == 4 for entry in found.schedule.recomputed)
    assert found.peak_bytes == 241


def test_a_recomputation_needs_its_sources():
    # While x is there a is away, so that b, made of it in 1 ms, cannot be made again, and is waited for.
    rest = [
        (12, "", ""),
        (10, "", "x"),
        (10, "x", ""),
        (2, "", ""),
        (10, "b", ""),
        (100, "", ""),
        (10, "a", ""),
    ]
    sizes = {"a": 120, "b": 120, "x": 300}
    found = planned(trace_of(sizes, [(100, "", "a"), (1, "a", "b"), *rest]), 300)
    assert [swap.pair.tensor for swap in found.swaps] == [0, 1]
    assert found.schedule.recomputed == []
    found = planned(trace_of(sizes, [(100, "", "a"), (1, "", "b"), *rest]), 300)
    assert [swap.pair.tensor for swap in found.swaps] == [0]
    assert [entry.tensor for entry in found.schedule.recomputed] == [1]


def test_a_source_may_come_back_for_the_kernel_that_it_is_wanted_for():
    # a is back at 245 ms, when the last kernel begins: b is made again of it before that kernel.
    kernels = [(100, "", "a"), (1, "a", "b"), (12, "", ""), (10, "", "x"), (10, "x", ""), (112, "", "")]
    found = planned(trace_of({"a": 120, "b": 120, "x": 300}, [*kernels, (10, "a b", "")]), 300)
    assert copies(found) == {0: ((101, 111), (235, 245), 5, 0)}
    assert [entry.tensor for entry in found.schedule.recomputed] == [1]


def test_a_tensor_is_away_from_the_end_of_its_copy_out_to_the_beginning_of_that_in():
    accesses = accesses_of(PEAK_IN_THIRD)
    pairs, lanes = pairs_over(accesses, 2), Lanes(accesses)
    costs = LeastCosts(accesses, lanes, pairs)
    assert not costs.are_away(20).any()
    swap = GuidedSwap(pairs[0], 2, 2, Interval(10, 15), Interval(35, 40), 3)
    costs.take(0, swap, Interval(15, 35), None)
    assert [costs.are_away(time).tolist() for time in (14, 15, 34, 35)] == [
        [False],
        [True],
        [True],
        [False],
    ]


# T takes 20 ms to copy and is wanted by the last of many short kernels.
LONG = trace_of(
    {"T": 240, "x": 100},
    [(10, "", "T"), *[(10, "", "")] * 3, (10, "", "x"), *[(1, "", "")] * 60, (5, "T", "")],
)


def guided(target):
    found = planned(LONG, target)
    return Guidance(found, 0.05)


def test_a_late_copy_in_is_triggered_earlier_by_a_twentieth_of_its_time():
    guidance = guided(240)
    assert guidance.swaps[0].trigger == 45  # 20 ms before the last kernel, at 110
    assert not guidance.adjust()
    for expected in (44, 43):
        guidance.note_late(0)
        assert not guidance.is_final
        assert guidance.adjust()
        assert guidance.is_final  # nothing has been late since
        assert guidance.swaps[0].trigger == expected
        # Memory counts it as back from its trigger on.
        back, most = 50 + expected - 5, guidance.planned.analysis.most
        assert most(back, back + 1) - most(back - 1, back) == guidance.planned.schedule.accesses.sizes[0]
    assert [p for p in guidance.plan().moves if p.move.tensor == 0][-1] == Planned(43, Fetch(0))
    assert guidance.leaving == {0: [0]}
    assert guidance.awaited == {}


def test_a_late_copy_in_is_not_triggered_where_memory_is_short():
    busy = trace_of(
        {"T": 240, "x": 100, "y": 100},
        [
            (10, "", "T"),
            *[(10, "", "")] * 3,
            (10, "", "x"),
            *[(1, "x", "")] * 40,
            *[(1, "", "")] * 20,
            (5, "T", ""),
        ],
    )
    guidance = Guidance(planned(busy, 240), 0.05)
    assert guidance.swaps[0].trigger == 45
    guidance.note_late(0)
    assert guidance.is_final
    assert not guidance.adjust()  # x is read up to kernel 44


def test_a_copy_in_may_be_triggered_by_the_second_kernel_behind_the_peak_and_no_earlier():
    kernels = [(10, "", "T"), *[(10, "", "")] * 3, (10, "", "x"), *[(10, "", "")] * 3, (5, "T", "")]
    guidance = Guidance(planned(trace_of({"T": 240, "x": 100}, kernels), 240), 0.05)
    assert guidance.swaps[0].trigger == 6  # from 60 to 80 ms, for the kernel that begins then
    guidance.note_late(0)
    assert not guidance.is_final
    assert guidance.adjust()
    assert guidance.swaps[0].trigger == 5
    guidance.note_late(0)
    assert guidance.is_final
    assert not guidance.adjust()


def test_with_room_a_copy_in_is_triggered_by_the_kernel_behind_its_absence_and_no_earlier():
    found = planned(LONG, 240)
    found.target_bytes = 10**6
    guidance = Guidance(found, 1.0)
    for _ in range(5):
        guidance.note_late(0)
        guidance.adjust()
    assert guidance.swaps[0].trigger == guidance.swaps[0].last + 1 == 5
    guidance.note_late(0)
    assert guidance.is_final


def test_copies_are_issued_before_the_kernel_that_they_are_away_from():
    kernels = [(10, "", "p q"), (5, "", ""), (10, "", "x"), (4, "x", ""), (16, "", ""), (10, "p q", "")]
    found = planned(trace_of({"p": 96, "q": 96, "x": 150}, kernels), 192)
    found.swaps = tuple(replace(swap, out=Interval(26, 34)) for swap in found.swaps[:1])
    # The link is free in kernel 3 only, but kernel 2 is to begin without it.
    guidance = Guidance(found, 0.05)
    assert guidance.leaving == guidance.awaited == {1: [0]}


def test_what_waits_for_one_copy_in_need_not_wait_for_the_next():
    trace = trace_of(
        {"a": 60, "b": 360}, [(10, "", "a b"), *[(10, "", "")] * 3, (10, "a", ""), (10, "b", "")]
    )
    accesses = accesses_of(trace)
    first, second = pairs_over(accesses, 2)
    lanes = Lanes(accesses)
    # b comes back from 30 to 60 ms, and kernel 5 begins at 50.
    assert lanes.planned(second, 1, 2, may_wait=True).back_wait == 10
    waits = GuidedSwap(first, 1, 2, Interval(5, 10), Interval(5, 10), 3, 0, 4)
    lanes.take(waits)
    assert lanes.planned(second, 1, 2, may_wait=True).back_wait == 6
    lanes.give_back(waits)
    assert lanes.planned(second, 1, 2, may_wait=True).back_wait == 10


def test_what_is_written_after_its_last_reader_counts_while_its_kernel_runs():
    kernels = [(10, "", "a"), (10, "a", ""), (10, "", "x"), (10, "x", "a")]
    assert planned(trace_of({"a": 100, "x": 50}, kernels), 1000).unplanned_peak_bytes == 150


def test_a_step_too_small_for_a_kernel_adds_up():
    guidance = Guidance(planned(LONG, 240), 0.01)
    changes = []
    for _ in range(6):
        guidance.note_late(0)
        assert not guidance.is_final
        changes.append(guidance.adjust())
    assert True in changes
    assert False in changes
    still = Guidance(planned(LONG, 240), 0.0)
    still.note_late(0)
    assert still.is_final


@settings(max_examples=150, deadline=None)
@given(
    traces(trace_of, largest=200, tensors=8, kernels=15, cycles=(0, 20)),
    st.floats(0, 1),
    st.booleans(),
)
def test_plans_end_keep_their_order_and_never_raise_the_peak(trace, share, recomputation):
    target = int(share * sum(tensor.size_bytes for tensor in trace.tensors))
    found = planned(trace, target, recomputation=recomputation)
    assert found.peak_bytes <= found.unplanned_peak_bytes
    assert found.analysis.peak.size_bytes == found.peak_bytes
    if found.unplanned_peak_bytes <= target:
        assert not found.swaps
        assert not found.schedule.recomputed
    for swap in found.swaps:
        pair = swap.pair
        assert pair.evicted < swap.first <= swap.last < swap.trigger <= pair.use
        assert not set(range(pair.evicted + 1, pair.use)) & set(trace.uses[pair.tensor])
        assert swap.overhead_cycles >= 0
    rules = Recomputability(trace)
    assert not any(rules.problem(entry.tensor, entry.drop) for entry in found.schedule.recomputed)
    again = planned(trace, target, recomputation=recomputation)
    assert (again.swaps, again.schedule.recomputed) == (found.swaps, found.schedule.recomputed)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=2, max_size=6), st.floats(0, 1))
def test_every_target_between_no_and_all_swaps_of_a_chain_is_reached(sizes, share):
    """Forward and backward over a chain: at least what two kernels need is there."""
    names = [f"a{i}" for i in range(len(sizes))]
    forward = [(10, " ".join(names[max(0, i - 1) : i]), name) for i, name in enumerate(names)]
    backward = [(10, name, "") for name in names[::-1]]
    trace = trace_of(dict(zip(names, sizes, strict=True)), forward + backward)
    least = max(a + b for a, b in pairwise(sizes))
    target = least + int(share * (sum(sizes) - least))
    for recomputation in (True, False):
        assert planned(trace, target, recomputation=recomputation).is_enough


def test_persistent_tensors_are_swapped_within_iterations_only():
    trace = trace_of(
        {"w*": 24, "x": 60},
        [(10, "w", ""), (10, "", ""), (10, "", "x"), (10, "x", ""), (10, "", ""), (10, "w", "w")],
    )
    found = planned(trace, 60)
    assert copies(found) == {0: ((10, 12), (48, 50), 4, 0)}
    assert pytest.approx(found.peak_bytes) == 60
