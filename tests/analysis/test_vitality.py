"""Live ranges and inactive periods, on traces with known answers and by their definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.analysis.timeline import kernel_at, kernel_starts
from g10sim.analysis.vitality import InactivePeriod, LiveRange, inactive_periods, live_ranges
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, chain, long_chain, random_trace


def one_tensor(uses, *, kernels, persistent=False, kind=TensorKind.INPUT):
    """A trace of kernels of 10, 20, 30... ticks; 'r', 'w' in ``uses`` read or write tensor 0."""
    builder = TraceBuilder("one")
    tensor = builder.tensor("t", 1, kind, persistent=persistent)
    for k in range(kernels):
        use = uses.get(k, "")
        builder.kernel("k", 10 * (k + 1), [tensor] if "r" in use else [], [tensor] if "w" in use else [])
    return builder.build()


def test_live_range_ends_after_the_last_read():
    trace = one_tensor({1: "w", 3: "r", 5: "w"}, kernels=7)
    assert live_ranges(trace) == (LiveRange(0, 1, 4),)


def test_tensor_that_nothing_reads_dies_after_its_birth():
    assert live_ranges(one_tensor({2: "w", 4: "w"}, kernels=6)) == (LiveRange(0, 2, 3),)


def test_unused_tensor_never_lives():
    assert live_ranges(one_tensor({}, kernels=2)) == (LiveRange(0, 0, 0),)
    assert inactive_periods(one_tensor({}, kernels=2, persistent=True)) == ()


def test_persistent_tensor_lives_for_the_whole_iteration():
    assert live_ranges(one_tensor({1: "r"}, kernels=3, persistent=True)) == (LiveRange(0, 0, 3),)


def test_periods_end_at_the_last_read():
    trace = one_tensor({1: "w", 3: "r", 4: "r", 6: "r", 9: "w"}, kernels=12)
    assert inactive_periods(trace) == (InactivePeriod(0, 2, 3), InactivePeriod(0, 5, 6))


def test_period_around_the_border():
    trace = one_tensor({2: "r", 3: "w"}, kernels=5, persistent=True)
    (period,) = inactive_periods(trace)
    assert period == InactivePeriod(0, 4, 2, wraps=True)
    assert period.num_kernels(5) == 3
    assert period.cycles(kernel_starts(trace, trace.ticks_per_second)) == 50 + 10 + 20


def test_period_after_the_border_when_the_last_kernel_uses_it():
    trace = one_tensor({2: "r", 4: "w"}, kernels=5, persistent=True)
    assert inactive_periods(trace) == (InactivePeriod(0, 3, 4), InactivePeriod(0, 0, 2, wraps=True))
    starts = kernel_starts(trace, trace.ticks_per_second)
    assert [period.cycles(starts) for period in inactive_periods(trace)] == [40, 30]
    assert [period.num_kernels(5) for period in inactive_periods(trace)] == [1, 2]


def test_period_before_the_border_when_the_first_kernel_uses_it():
    trace = one_tensor({0: "r", 2: "w"}, kernels=5, persistent=True)
    wrapped = InactivePeriod(0, 3, 0, wraps=True)
    assert inactive_periods(trace) == (InactivePeriod(0, 1, 2), wrapped)
    assert wrapped.num_kernels(5) == 2
    assert wrapped.cycles(kernel_starts(trace, trace.ticks_per_second)) == 90


def test_no_period_around_the_border_when_first_and_last_kernel_use_it():
    trace = one_tensor({0: "r", 1: "r", 2: "w"}, kernels=3, persistent=True)
    assert inactive_periods(trace) == ()


def test_single_use_of_a_weight():
    trace = one_tensor({2: "r"}, kernels=5, persistent=True)
    assert inactive_periods(trace) == (InactivePeriod(0, 3, 2, wraps=True),)


def test_weight_of_a_chain_waits_from_forward_to_backward_and_around():
    trace = chain(3)
    periods = [period for period in inactive_periods(trace) if period.tensor == 0]
    assert periods == [InactivePeriod(0, 1, 7)]
    periods = [period for period in inactive_periods(trace) if period.tensor == 2]
    assert periods == [InactivePeriod(2, 5, 2, wraps=True)]


def test_long_chain_has_the_periods_it_promises():
    trace = long_chain(100, live_tensors=10)
    periods = inactive_periods(trace)
    assert {period.num_kernels(100) for period in periods} == {9}
    assert len(periods) == 90


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_periods_are_exactly_the_unused_kernels_between_uses(seed):
    trace = random_trace(seed)
    num_kernels = len(trace.kernels)
    covered = {tensor.id: set() for tensor in trace.tensors}
    for period in inactive_periods(trace):
        kernels = {(period.start + i) % num_kernels for i in range(period.num_kernels(num_kernels))}
        assert len(kernels) == period.num_kernels(num_kernels) >= 1
        assert not kernels & covered[period.tensor]
        assert period.end in trace.uses[period.tensor]
        covered[period.tensor] |= kernels
    for tensor, uses, live in zip(trace.tensors, trace.uses, live_ranges(trace), strict=True):
        if tensor.persistent:
            assert covered[tensor.id] == (set(range(num_kernels)) - set(uses) if uses else set())
        else:
            assert covered[tensor.id] == set(range(live.birth, live.death)) - set(uses)


def test_kernel_starts_and_bisection():
    trace = one_tensor({}, kernels=3)
    starts = kernel_starts(trace, 2 * trace.ticks_per_second)
    assert starts.tolist() == [0, 20, 60, 120]
    assert [kernel_at(starts, time) for time in (-5, 0, 19, 20, 119, 120, 500)] == [0, 0, 0, 1, 2, 2, 2]


def test_kernel_without_duration_never_runs():
    assert kernel_at(np.array([0, 5, 5, 9]), 5) == 2
