"""Contiguous memory: where blocks go, and that nothing is lost or given twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from g10sim.errors import InvariantError
from g10sim.hardware.gpu_memory.allocators.space import ContiguousSpace
from g10sim.hardware.gpu_memory.placement import Block, first_fit_left, first_fit_right


def starts(space):
    return {owner: block.start for owner, block in space.blocks.items()}


def test_first_fit_from_both_ends():
    space = ContiguousSpace(100)
    assert space.allocate(0, 10, first_fit_left)
    assert space.allocate(1, 20, first_fit_right)
    assert space.allocate(2, 5, first_fit_left)
    assert space.allocate(3, 5, first_fit_right)
    assert starts(space) == {0: 0, 2: 10, 3: 75, 1: 80}
    assert list(space.holes) == [Block(15, 60)]


def test_first_fit_takes_the_first_hole_that_is_large_enough_even_if_it_fits_exactly():
    space = ContiguousSpace(60)
    for owner in range(6):
        space.allocate(owner, 10, first_fit_left)
    for owner in (1, 3, 4):
        space.release(owner)
    assert list(space.holes) == [Block(10, 10), Block(30, 20)]
    assert first_fit_left(space.holes, 10) == 10
    assert first_fit_left(space.holes, 11) == 30
    assert first_fit_right(space.holes, 10) == 40
    assert first_fit_right(space.holes, 20) == 30
    assert first_fit_left(space.holes, 21) is None
    assert first_fit_right(space.holes, 21) is None


def test_free_memory_in_pieces_does_not_hold_a_large_block():
    space = ContiguousSpace(40)
    for owner in range(4):
        space.allocate(owner, 10, first_fit_left)
    space.release(0)
    space.release(2)
    assert space.free_pages == 20
    assert space.holes.largest_pages == 10
    assert not space.allocate(9, 11, first_fit_left)
    space.release(1)
    assert list(space.holes) == [Block(0, 30)]
    assert space.allocate(9, 30, first_fit_right)
    assert space.holes.largest_pages == 0


def test_what_the_rule_chooses_must_be_free():
    space = ContiguousSpace(10)
    space.allocate(0, 4, first_fit_left)
    with pytest.raises(InvariantError, match="pages 2 to 5 are not all free"):
        space.allocate(1, 4, lambda holes, pages: 2)
    with pytest.raises(InvariantError, match="owner 0 has a block already"):
        space.allocate(0, 1, first_fit_left)
    with pytest.raises(InvariantError, match="are free already"):
        space.holes.give_back(Block(3, 2))


STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 40), st.sampled_from([first_fit_left, first_fit_right])),
    max_size=60,
)


@given(st.integers(1, 120), STEPS)
def test_blocks_and_holes_tile_the_memory_whatever_happens(capacity, steps):
    space, pages_of = ContiguousSpace(capacity), {}
    for owner, pages, rule in steps:
        if owner in pages_of:
            space.release(owner)
            del pages_of[owner]
        else:
            largest = max((hole.pages for hole in space.holes), default=0)
            there_is_room = space.allocate(owner, pages, rule)
            assert there_is_room == (pages <= largest)
            if there_is_room:
                pages_of[owner] = pages
        space.check()
        covered = [page for block in space.blocks.values() for page in range(block.start, block.end)]
        assert len(covered) == len(set(covered)), "blocks overlap"
        free = sorted(set(range(capacity)) - set(covered))
        assert [page for hole in space.holes for page in range(hole.start, hole.end)] == free
        assert len(space.holes) == sum(page - 1 not in free for page in free), "neighbouring holes"
        assert {owner: block.pages for owner, block in space.blocks.items()} == pages_of
        assert space.used_pages == sum(pages_of.values())
    for owner in list(pages_of):
        space.release(owner)
    assert list(space.holes) == [Block(0, capacity)]
