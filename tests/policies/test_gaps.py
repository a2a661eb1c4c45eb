"""Free times of a channel for many copies at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.policies.planning.channel import NEVER, Channel, Interval

PERIOD = 100


def busy():
    channel = Channel()
    channel.take(Interval(10, 20), PERIOD)
    channel.take(Interval(90, 105), PERIOD)
    return channel


def found(ask, window, length):
    starts, ends = ask(*(np.array([value]) for value in (*window, length)))
    return None if starts[0] == NEVER else (starts[0], ends[0])


def free(channel, start, end):
    """Free cycles of a window."""
    return [
        time
        for time in range(start, end)
        if not any(first <= time % PERIOD < last for first, last in channel.taken)
    ]


@pytest.mark.parametrize(
    ("way", "window", "length", "copy"),
    [
        ("earliest_in_parts", (5, 95), 8, (5, 23)),
        ("earliest_in_parts", (0, 30), 16, None),
        ("latest_in_parts", (5, 130), 18, (87, 130)),
        ("latest_in_parts", (0, 30), 16, None),
        ("earliest", (5, 95), 8, (20, 28)),
        ("earliest", (85, 125), 6, None),
        ("latest", (5, 115), 6, (84, 90)),
        ("latest", (5, 18), 6, None),
    ],
)
def test_a_copy_takes_what_is_free_from_either_end(way, window, length, copy):
    assert found(getattr(busy().gaps(PERIOD), way), window, length) == copy


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 30)), max_size=6),
    st.integers(0, 99),
    st.integers(1, 100),
    st.integers(1, 20),
)
def test_many_at_once_are_found_as_each_by_itself(copies, start, length, size):
    channel = Channel()
    for begin, cycles in copies:
        channel.take(Interval(begin, begin + cycles), PERIOD)
    window = Interval(start, start + length)
    gaps = channel.gaps(PERIOD)
    assert found(gaps.earliest, window, size) == channel.earliest(window, size, PERIOD)
    assert found(gaps.latest, window, size) == channel.latest(window, size, PERIOD)
    cycles = free(channel, *window)
    has_room = len(cycles) >= size
    for ask, edge in ((gaps.earliest_in_parts, 0), (gaps.latest_in_parts, 1)):
        copy = found(ask, window, size)
        assert (copy is not None) == has_room
        if copy is not None:
            assert copy[edge] == cycles[-edge] + edge
            assert len(free(channel, *copy)) == size


def test_what_is_taken_already_is_taken_once():
    channel = busy()
    channel.take(Interval(5, 95), PERIOD)
    assert channel.taken == ((0, 100),)
    assert found(channel.gaps(PERIOD).latest, Interval(0, 200), 1) is None
