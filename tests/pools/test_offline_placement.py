"""Offline placement: examples worked out by hand, and what must hold for any blocks."""

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.analysis.pools.placement import FITS, ORDERS, Block, peak_bytes, place_blocks, search_placement
from tools.optimal_pools import least_footprint

SIX = [Block(*block) for block in ((0, 5, 4), (1, 3, 2), (2, 7, 3), (4, 9, 2), (6, 10, 5), (8, 11, 1))]
FITS_DIFFER = [Block(*block) for block in ((2, 5, 6), (4, 8, 5), (7, 9, 3), (6, 9, 2), (5, 7, 1), (5, 9, 1))]


@pytest.mark.parametrize("fit", FITS)
def test_largest_first_reaches_the_load(fit):
    placement = place_blocks(SIX, fit=fit)
    assert placement.footprint_bytes == peak_bytes(SIX) == 10
    assert placement.offsets == ((0,), (8,), (5,), (8,), (0,), (5,))


@pytest.mark.parametrize("fit", FITS)
def test_first_come_first_served_takes_more(fit):
    assert place_blocks(SIX, fit=fit, order="arrival").footprint_bytes == 14


def test_best_fit_is_not_always_better_than_first_fit():
    assert peak_bytes(FITS_DIFFER) == 11
    assert place_blocks(FITS_DIFFER, fit="first").footprint_bytes == 11
    assert place_blocks(FITS_DIFFER, fit="best").footprint_bytes == 12


def test_blocks_across_the_border_keep_their_bytes_to_themselves():
    """In iterations of 10, the first block of one is there until 2 of the next, so two lie side by side."""
    blocks = [Block(8, 12, 4), Block(0, 3, 2), Block(3, 8, 6)]
    placement = place_blocks(blocks, period=10)
    assert peak_bytes(blocks, period=10) == placement.footprint_bytes == 6
    assert peak_bytes(blocks) == 6
    assert placement.offsets == ((0,), (4,), (0,))


def test_a_block_longer_than_an_iteration_lies_at_two_places_in_turn():
    blocks = [Block(0, 15, 4), Block(6, 8, 3)]
    placement = place_blocks(blocks, period=10)
    assert placement.laps == 2
    assert placement.offsets[0] == (0, 4)
    assert peak_bytes(blocks, period=10) == 8
    assert placement.footprint_bytes == 8  # the short one lies where the long one has not begun or has ended


def test_offsets_keep_the_alignment():
    placement = place_blocks([Block(0, 2, 100), Block(0, 2, 700), Block(1, 2, 1)], alignment_bytes=512)
    assert placement.offsets == ((1024,), (0,), (1536,))
    assert placement.footprint_bytes == 2048


@pytest.mark.parametrize("block", [Block(3, 3, 1), Block(3, 2, 1), Block(0, 1, 0)])
def test_impossible_blocks_are_refused(block):
    for ask in place_blocks, peak_bytes:
        with pytest.raises(ValueError, match="block 0: found Block"):
            ask([block])


def test_nothing_needs_no_memory():
    assert place_blocks([]).footprint_bytes == peak_bytes([]) == 0


def some_blocks(longest, largest=9, most=9):
    block = st.tuples(st.integers(-20, 20), st.integers(1, longest), st.integers(1, largest))
    return st.lists(block, min_size=1, max_size=most).map(
        lambda found: [Block(start, start + length, size) for start, length, size in found]
    )


def occupied_bytes(blocks, placement, period):
    """Return the block on each byte at each time; fail when two lie on the same."""
    found = {}
    circle = placement.laps * period
    for number, (block, offsets) in enumerate(zip(blocks, placement.offsets, strict=True)):
        for lap, offset in enumerate(offsets):
            for time in range(block.start, block.end):
                for byte in range(offset, offset + block.size_bytes):
                    at = ((time + lap * period) % circle, byte)
                    assert at not in found, f"{number} and {found[at]} share byte {byte} at time {at[0]}"
                    found[at] = number
    return found


@given(some_blocks(longest=30), st.sampled_from(FITS), st.sampled_from(ORDERS), st.integers(1, 12))
def test_no_two_blocks_share_bytes_in_any_iteration(blocks, fit, order, period):
    placement = place_blocks(blocks, period=period, fit=fit, order=order)
    found = occupied_bytes(blocks, placement, period)
    assert max(byte for _, byte in found) + 1 == placement.footprint_bytes
    loads = [sum(1 for at, _ in found if at == time) for time in range(placement.laps * period)]
    assert max(loads) == peak_bytes(blocks, period=period) <= placement.footprint_bytes


@given(some_blocks(longest=30), st.sampled_from(FITS), st.sampled_from(ORDERS))
def test_blocks_of_one_iteration_share_no_bytes(blocks, fit, order):
    placement = place_blocks(blocks, fit=fit, order=order)
    occupied_bytes(blocks, placement, period=1000)
    assert peak_bytes(blocks) <= placement.footprint_bytes


def least_of_all_orders(blocks):
    """Each block as low as those before it in an order allow: some order gives the least footprint."""
    footprints = []
    for order in permutations(blocks):
        ends = []
        for block in order:
            below = (end for end, other in ends if block.start < other.end and other.start < block.end)
            ends.append((max(below, default=0) + block.size_bytes, block))
        footprints.append(max(end for end, _ in ends))
    return min(footprints)


@given(some_blocks(longest=6, most=5))
def test_least_footprint_is_that_of_the_best_order(blocks):
    bounds = least_footprint(blocks)
    assert bounds.is_exact
    assert bounds.upper_bytes == least_of_all_orders(blocks)


@given(some_blocks(longest=12, most=9))
def test_least_footprint_lies_between_load_and_heuristic(blocks):
    bounds = least_footprint(blocks)
    assert peak_bytes(blocks) <= bounds.lower_bytes <= bounds.upper_bytes
    assert bounds.upper_bytes <= min(place_blocks(blocks, fit=fit).footprint_bytes for fit in FITS)


def test_least_footprint_where_best_fit_misses_it():
    assert least_footprint(FITS_DIFFER).upper_bytes == 11
    assert least_footprint(FITS_DIFFER).is_exact


def test_a_time_limit_leaves_bounds():
    blocks = [Block(7 * i % 31, 7 * i % 31 + 5 + i % 11, 1 + 13 * i % 17) for i in range(60)]
    bounds = least_footprint(blocks, time_limit_seconds=0.01)
    assert peak_bytes(blocks) <= bounds.lower_bytes <= bounds.upper_bytes


def placed_one_by_one(blocks, period, order, fit):
    """Offsets and top of blocks that live for an iteration at most, each compared with all before it."""
    circle = period or max(block.end for block in blocks) - min(block.start for block in blocks)

    def together(one, other):
        apart = (other.start - one.start) % circle
        return apart < one.end - one.start or -apart % circle < other.end - other.start

    offsets = {}
    for number in order:
        block = blocks[number]
        ranges = sorted(
            (offsets[n], offsets[n] + blocks[n].size_bytes) for n in offsets if together(block, blocks[n])
        )
        top, holes = 0, []
        for begin, end in ranges:
            holes += [(begin - top, top)] if begin - top >= block.size_bytes else []
            top = max(top, end)
        chosen = min(holes, key=lambda hole: hole if fit == "best" else hole[1], default=None)
        offsets[number] = chosen[1] if chosen else top
    return [offsets[number] for number in range(len(blocks))]


@given(
    spans=st.lists(
        st.tuples(st.integers(-20, 60), st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=80
    ),
    period=st.sampled_from([None, 30, 45]),
    fit=st.sampled_from(FITS),
)
def test_every_block_lies_beside_those_before_it_that_it_shares_time_with(spans, period, fit):
    blocks = [Block(start, start + length, size) for start, length, size in spans]
    order = sorted(range(len(blocks)), key=lambda n: (-blocks[n].size_bytes, blocks[n].start))
    found = [places[0] for places in place_blocks(blocks, period=period, fit=fit).offsets]
    assert found == placed_one_by_one(blocks, period, order, fit)


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=90
    ),
    seed=st.integers(0, 9),
)
def test_a_search_keeps_blocks_apart_and_never_does_worse(spans, seed):
    blocks = [Block(start, start + length, size) for start, length, size in spans]
    found = search_placement(blocks, 0, rounds=30, seed=seed)
    assert peak_bytes(blocks) <= found.footprint_bytes <= place_blocks(blocks).footprint_bytes
    ranges = [
        (places[0], places[0] + block.size_bytes) for places, block in zip(found.offsets, blocks, strict=True)
    ]
    assert max(end for _, end in ranges) == found.footprint_bytes
    for (one, (begin, end)), (other, (start, stop)) in combinations(zip(blocks, ranges, strict=True), 2):
        if one.start < other.end and other.start < one.end:
            assert end <= start or stop <= begin
