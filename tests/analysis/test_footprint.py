"""Live bytes, footprint, working sets and oversubscription."""

from hypothesis import given, settings
from hypothesis import strategies as st

from g10sim.analysis.footprint import (
    footprint_bytes,
    largest_working_set,
    live_bytes,
    oversubscription,
    peak_live_bytes,
    static_bytes,
    working_set_bytes,
)
from g10sim.analysis.vitality import live_ranges
from g10sim.trace.model import TensorKind
from g10sim.trace.synthetic import TraceBuilder, random_trace


def example():
    builder = TraceBuilder("example")
    weight = builder.tensor("w", 100, TensorKind.WEIGHT, persistent=True)
    data = builder.tensor("x", 10, TensorKind.INPUT)
    hidden = builder.tensor("h", 20, TensorKind.ACTIVATION)
    scratch = builder.tensor("s", 500, TensorKind.WORKSPACE)
    builder.kernel("a", 1, [weight, data], [hidden, scratch])
    builder.kernel("b", 1, [hidden], [hidden])
    builder.kernel("c", 1, [], [])
    builder.kernel("d", 1, [weight], [hidden])
    return builder.build()


def test_live_bytes():
    # The last kernel writes what nothing reads: it is dead but takes room there.
    assert live_bytes(example()).tolist() == [630, 120, 100, 120]


def test_footprint_and_total():
    assert peak_live_bytes(example()) == 630
    assert footprint_bytes(example()) == 630


def test_working_sets_count_a_tensor_once():
    assert working_set_bytes(example()).tolist() == [630, 20, 0, 120]
    assert largest_working_set(example()) == (0, 630)


def test_oversubscription():
    assert oversubscription(example(), 315) == 2.0


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_live_bytes_by_definition(seed):
    trace = random_trace(seed)
    ranges = live_ranges(trace)
    expected = [
        sum(
            tensor.size_bytes
            for tensor in trace.tensors
            if ranges[tensor.id].birth <= kernel.id < ranges[tensor.id].death or tensor.id in kernel.tensors
        )
        for kernel in trace.kernels
    ]
    assert live_bytes(trace).tolist() == expected
    assert all(working_set_bytes(trace) <= live_bytes(trace))
    assert largest_working_set(trace)[1] <= peak_live_bytes(trace) <= footprint_bytes(trace)


def test_a_static_allocation_holds_all_maps_and_the_largest_scratch():
    """Maps of 10 and 20 bytes, two gradients as large as the largest map, scratch of 500, a weight of 100."""
    assert static_bytes(example()) == 10 + 20 + 2 * 20 + 500 + 100


def test_a_trace_without_kernels_needs_no_memory():
    assert peak_live_bytes(TraceBuilder("empty").build()) == 0
