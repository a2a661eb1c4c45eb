"""Copies in parts between others on a channel."""

from g10sim.policies.planning.channel import Channel, Interval, earliest_in_parts, latest_in_parts

PERIOD = 100


def busy():
    channel = Channel()
    channel.take(Interval(10, 20), PERIOD)
    channel.take(Interval(90, 105), PERIOD)
    return channel


def test_free_parts_of_a_window_over_the_border_of_an_iteration():
    channel = busy()
    assert channel.free(Interval(0, 15), PERIOD) == [(5, 10)]
    assert channel.free(Interval(12, 130), PERIOD) == [(20, 90), (105, 110), (120, 130)]
    assert channel.free(Interval(92, 104), PERIOD) == []


def test_a_copy_takes_what_is_free_from_either_end():
    channel = busy()
    assert earliest_in_parts(channel, Interval(5, 95), 8, PERIOD) == (5, 23)
    assert latest_in_parts(channel, Interval(5, 130), 18, PERIOD) == (87, 130)
    assert earliest_in_parts(channel, Interval(0, 30), 16, PERIOD) is None
    assert latest_in_parts(channel, Interval(0, 30), 16, PERIOD) is None


def test_filling_a_window_takes_all_of_it_once():
    channel = busy()
    channel.fill(Interval(5, 95), PERIOD)
    assert channel.taken == ((0, 100),)
    assert channel.free(Interval(0, 200), PERIOD) == []
