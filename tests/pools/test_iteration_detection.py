"""Iterations are found in streams of operations whatever comes before them and happens within them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.analysis.pools.operations import (
    IterationDetector,
    Operation,
    OperationKind,
    Period,
    Signatures,
    find_period,
    training_operations,
)
from g10sim.trace.synthetic import chain, random_trace


@pytest.mark.parametrize(
    ("text", "period"),
    [
        ("abcabc", Period(0, 3)),
        ("xyzabcabc", Period(3, 3)),
        ("abcabcabcab", Period(0, 3)),
        ("abcabcabcabc", Period(0, 3)),  # not two iterations as one
        ("abbbbcabbbbc", Period(0, 6)),
        ("cabbbbabbbb", Period(1, 5)),  # the loop of b at the end is not the iteration
        ("abcdef", None),
        ("abcdefgg", None),  # repeats only at the end: less than half of what there is
        ("aa", Period(0, 1)),
        ("a", None),
        ("", None),
    ],
)
def test_period_of_a_word(text, period):
    assert find_period(text) == period


@given(st.text("abc", max_size=6), st.text("abc", min_size=1, max_size=6), st.integers(2, 5))
def test_found_periods_repeat(prefix, word, times):
    text = prefix + word * times
    period = find_period(text)
    if len(word) * times >= len(prefix):
        assert period is not None
    if period is not None:
        repeated = text[period.start :]
        assert len(repeated) >= 2 * period.length
        assert repeated[period.length :] == repeated[: -period.length]


def test_least_length_passes_over_shorter_periods():
    assert find_period("ab" * 8, least_length=3) == Period(0, 4)


def operation(kind, block, size=1):
    return Operation(OperationKind(kind), block, size)


def test_signatures_know_sizes_and_distances_but_no_blocks():
    signatures = Signatures()
    stream = [
        operation("allocate", 7, 512),
        operation("allocate", 8, 64),
        operation("allocate", 9, 512),
        operation("free", 7, 512),
        operation("free", 9, 512),
        operation("free", 8, 64),
    ]
    values = [signatures.next(entry) for entry in stream]
    assert values == [
        ("allocate", 512),
        ("allocate", 64),
        ("allocate", 512),
        ("free", 3),
        ("free", 2),
        ("free", 4),
    ]


def signatures(operations):
    found = Signatures()
    return [found.next(operation) for operation in operations]


@given(st.integers(0, 10_000))
def test_iterations_of_any_trace_are_found(seed):
    trace = random_trace(seed, kernels=12)
    one = list(training_operations(trace, 1))
    two = list(training_operations(trace, 2))
    period = find_period(signatures(training_operations(trace, 5)))
    assert period is not None
    assert (len(two) - len(one)) % period.length == 0


def test_an_iteration_of_training():
    """8 layers: 24 kernels; a forward kernel allocates one tensor, a backward one two, and all are freed."""
    period = find_period(signatures(training_operations(chain(8), 4)))
    assert period is not None
    assert period.length == 2 * (8 + 8 * 2 + 2)
    assert period.start <= 8  # the weights


def test_the_detector_looks_at_twice_as_much_each_time():
    signatures = Signatures()
    stream = map(signatures.next, training_operations(chain(8), 20))
    detector = IterationDetector(first_check=50, least_operations=10)
    found = [
        (number, period) for number, value in enumerate(stream, 1) if (period := detector.observe(value))
    ]
    assert [number for number, _ in found] == [200, 400, 800]
    assert {period.length for _, period in found} == {52}


def test_a_trace_says_what_is_allocated_when():
    """One layer: weight and input, forward, loss gradient, backward, update."""
    trace = chain(1, activation_bytes=10, weight_bytes=3)
    stream = list(training_operations(trace, 1))
    assert stream[0] == operation("allocate", 0, 3)
    allocated = [(entry.block, entry.size_bytes) for entry in stream if entry.kind == "allocate"]
    freed = [entry.block for entry in stream if entry.kind == "free"]
    assert [size for _, size in allocated] == [3, 10, 10, 10, 10, 3]
    assert sorted(freed) == [1, 2, 3, 4, 5]  # all but the weight
