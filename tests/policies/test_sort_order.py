"""The order of equal items, against what a program compiled with libstdc++ printed for ``std::sort``."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.policies.designs.g10.sort_order import introsorted


def sort(keys):
    return introsorted(range(len(keys)), keys)


@given(st.lists(st.integers(min_value=-5, max_value=5), max_size=300))
def test_keys_come_out_ascending_and_nothing_is_lost(keys):
    found = sort(keys)
    assert sorted(found) == list(range(len(keys)))
    assert [keys[item] for item in found] == sorted(keys)


@given(st.lists(st.integers(min_value=0, max_value=3), max_size=16))
def test_up_to_sixteen_items_are_sorted_by_insertion(keys):
    assert sort(keys) == sorted(range(len(keys)), key=keys.__getitem__)


def test_items_are_taken_in_the_order_given():
    assert introsorted([3, 1, 2], [0, 7, 7, 5]) == [3, 1, 2]
    assert introsorted([3, 2, 1], [0, 7, 7, 5]) == [3, 2, 1]
    assert introsorted([], []) == []


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([0] * 40, [30, *range(21, 30), 20, *range(31, 40), 10, *range(1, 10), 0, *range(11, 20)]),
        ([0] * 20, [10, *range(19, 10, -1), 0, *range(9, 0, -1)]),
        (
            [number % 3 for number in range(24)],
            [0, 3, 21, 6, 18, 9, 15, 12, 1, 22, 19, 16, 13, 10, 7, 4, 11, 14, 8, 17, 5, 20, 2, 23],
        ),
    ],
)
def test_order_of_equal_items(keys, order):
    assert sort(keys) == order


def test_a_range_that_is_parted_too_often_goes_through_a_heap():
    """Medians of three that each part off next to nothing (Musser, 1997), every key twice."""
    keys = [(number if number % 2 else 39 + number) // 2 for number in range(1, 41)] + list(range(1, 41))
    found = sort(keys)
    later_first = [keys[one] for one, two in pairwise(found) if keys[one] == keys[two] and one > two]
    assert later_first == [*range(1, 8), 9, 11, 12, 13, *range(16, 20), *range(21, 29), 34, 37, 38]
