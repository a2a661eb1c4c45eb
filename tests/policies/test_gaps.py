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


def test_free_parts_of_a_window_over_the_border_of_an_iteration():
    channel = busy()
    assert channel.free(Interval(0, 15), PERIOD) == [(5, 10)]
    assert channel.free(Interval(12, 130), PERIOD) == [(20, 90), (105, 110), (120, 130)]
    assert channel.free(Interval(92, 104), PERIOD) == []


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
        channel.fill(Interval(begin, begin + cycles), PERIOD)
    window = Interval(start, start + length)
    gaps = channel.gaps(PERIOD)
    assert found(gaps.earliest, window, size) == channel.earliest(window, size, PERIOD)
    assert found(gaps.latest, window, size) == channel.latest(window, size, PERIOD)
    parts = channel.free(window, PERIOD)
    has_room = sum(part.end - part.start for part in parts) >= size
    for ask, edge in ((gaps.earliest_in_parts, 0), (gaps.latest_in_parts, 1)):
        copy = found(ask, window, size)
        assert (copy is not None) == has_room
        if copy is not None:
            assert copy[edge] == parts[-edge][edge]
            assert sum(part.end - part.start for part in channel.free(Interval(*copy), PERIOD)) == size


def test_filling_a_window_takes_all_of_it_once():
    channel = busy()
    channel.fill(Interval(5, 95), PERIOD)
    assert channel.taken == ((0, 100),)
    assert channel.free(Interval(0, 200), PERIOD) == []
    assert found(channel.gaps(PERIOD).latest, Interval(0, 200), 1) is None
